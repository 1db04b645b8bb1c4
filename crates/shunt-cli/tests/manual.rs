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
            // `--watch[=<SECONDS>]`
            let name = name.split(['[', '=']).next().unwrap_or_default();
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

#[test]
fn no_line_of_text_has_a_macro_in_it() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man");
    let is_macro = |word: &str| matches!(word.as_bytes(), [b'.', first, second] if first.is_ascii_uppercase() && second.is_ascii_lowercase());
    for file in sources(&directory) {
        let text = std::fs::read_to_string(&file).unwrap();
        for line in text.lines().filter(|line| !line.starts_with('.')) {
            let found = line.split_whitespace().find(|word| is_macro(word));
            assert_eq!(found, None, "{}: {line}", file.display());
        }
    }
}

/// The names of variables in a file, but its tests: `SHUNT_` and what follows.
fn variables(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let behind = text.split("\"SHUNT_").skip(1);
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    let names = behind.map(|rest| rest.split(|c| !is_part(c)).next().unwrap_or_default());
    names.map(|name| format!("SHUNT_{name}")).collect()
}

/// Every file with sources in a directory.
fn sources(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    });
    files.collect()
}

#[test]
fn every_variable_is_in_the_manual() {
    let manual = ["shunt.1", "shuntd.8"].map(page).concat();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let products = [
        "shunt-abi",
        "shunt-cli",
        "shunt-engine",
        "shunt-preload",
        "shuntd",
    ];
    let files = products.map(|name| sources(&crates.join(name).join("src")));
    let texts = files.iter().flatten().map(std::fs::read_to_string);
    let mut found: Vec<_> = texts.flat_map(|text| variables(&text.unwrap())).collect();
    found.sort();
    found.dedup();
    assert!(found.contains(&"SHUNT_UPGRADE".to_owned()), "{found:?}");
    for name in found {
        assert!(manual.contains(&name), "the manual lacks {name}");
    }
}
