//! The manual keeps up with the options.

use std::path::Path;
use std::process::Command;

#[test]
fn every_option_is_in_the_manual() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man/shuntd.8");
    let page = std::fs::read_to_string(path).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_shuntd"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(out.stdout).unwrap();
    let words = help.split_whitespace().map(|word| {
        let end = |c: char| !(c.is_ascii_lowercase() || c == '-');
        word.trim_start_matches('[')
            .split(end)
            .next()
            .unwrap_or_default()
    });
    let options = words.filter_map(|word| word.strip_prefix("--"));
    let options: Vec<_> = options
        .filter(|name| !matches!(*name, "" | "help" | "version"))
        .collect();
    assert!(
        options.contains(&"ready-fd") && options.contains(&"verbose"),
        "{help}"
    );
    for option in options {
        let is_there =
            page.contains(&format!("Fl -{option}")) || page.contains(&format!(", -{option}"));
        assert!(is_there, "shuntd.8 lacks --{option}");
    }
}
