//! The manual keeps up with the code.

use std::path::Path;
use std::process::Command;

fn page(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man");
    std::fs::read_to_string(directory.join(name)).unwrap()
}

#[test]
fn every_reason_is_in_the_manual_with_its_text() {
    let page = page("shunt-reasons.7");
    for reason in shunt_abi::Reason::ALL {
        let entry = format!(".It Dv {}\n{}\n", reason.name(), reason.text());
        assert!(page.contains(&entry), "shunt-reasons.7 lacks:\n{entry}");
    }
    assert_eq!(
        page.matches(".It Dv ").count(),
        shunt_abi::Reason::ALL.len()
    );
}

#[test]
fn every_command_and_option_is_in_the_manual() {
    let page = page("shunt.1");
    let help = |arguments: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_shunt"))
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let main = help(&["--help"]);
    let commands = main.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<_> = commands
        .map_while(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"run"), "{main}");
    // `bench` is another program, with its own page.
    assert!(page.contains(".It Cm bench\n"), "shunt.1 lacks bench");
    let own = |name: &&str| !matches!(*name, "help" | "bench");
    for command in commands.into_iter().filter(own) {
        assert!(
            page.contains(&format!(".It Cm {command}\n")),
            "shunt.1 lacks {command}"
        );
        for word in help(&[command, "--help"]).split_whitespace() {
            let name = word
                .trim_start_matches('[')
                .trim_end_matches([',', ']', '.']);
            if let Some(option) = name
                .strip_prefix("--")
                .filter(|o| !o.is_empty() && *o != "help")
            {
                assert!(
                    page.contains(&format!("Fl -{option}")),
                    "shunt.1 lacks --{option}"
                );
            }
        }
    }
}
