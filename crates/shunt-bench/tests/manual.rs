//! The manual keeps up with the options.

use std::process::Command;

#[test]
fn every_option_is_in_the_manual() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/shunt-bench.1");
    let page = std::fs::read_to_string(path).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_shunt-bench"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(out.stdout).unwrap();
    let options: Vec<_> = help
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("--"))
        .filter(|name| !matches!(*name, "help" | "version"))
        .collect();
    assert!(options.contains(&"quick"), "{help}");
    for option in options {
        let entry = format!(".It Fl -{option}");
        assert!(page.contains(&entry), "shunt-bench.1 lacks --{option}");
    }
}
