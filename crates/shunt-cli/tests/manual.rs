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

/// What `shunt` says of itself, or of this command.
fn help(command: &[String]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_shunt"))
        .args(command)
        .arg("--help")
        .output()
        .unwrap();
    String::from_utf8(out.stdout).unwrap()
}

/// The lines of a help's section that name something: no others are indented by so little.
fn entries<'a>(help: &'a str, section: &str) -> Vec<&'a str> {
    let lines = help.lines().skip_while(|line| *line != section).skip(1);
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with(' '));
    let names = |line: &&str| line.starts_with("  ") && !line.starts_with("          ");
    lines.filter(names).map(str::trim).collect()
}

/// Whether a page has an option, whose name is without its first `-`.
fn has_option(page: &str, option: &str) -> bool {
    let begins = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
    let is_it = |rest: &str| rest.strip_prefix(option).is_some_and(begins);
    let lines = page
        .lines()
        .filter(|line| line.starts_with(".It Fl ") || line.starts_with(".Fl "));
    lines.flat_map(|line| line.split("Fl ").skip(1)).any(is_it)
}

#[test]
fn every_command_and_option_is_in_the_manual() {
    let page = page("shunt.1");
    let mut commands: Vec<Vec<String>> = vec![Vec::new()];
    let mut seen = Vec::new();
    while let Some(command) = commands.pop() {
        let help = help(&command);
        for line in entries(&help, "Options:") {
            let names = line
                .split([' ', ',', '=', '['])
                .filter_map(|word| word.strip_prefix('-'));
            for option in names {
                let found = has_option(&page, option);
                assert!(found, "shunt.1 lacks -{option} of {command:?}");
            }
        }
        let below = entries(&help, "Commands:");
        let synopsis = format!("\n.Nm\n.Cm {}\n", command.join(" "));
        let is_there = !below.is_empty() || page.contains(&synopsis);
        assert!(is_there, "the synopsis of shunt.1 lacks {command:?}");
        for line in &below {
            let name = line.split(' ').next().unwrap_or_default();
            let line = format!(".It Cm {name}");
            let is_it = |entry: &str| entry == line || entry.starts_with(&format!("{line} "));
            let all = [&command[..], &[name.to_owned()]].concat();
            seen.push(all.join(" "));
            match name {
                "help" => {}
                // Another program, with its own page.
                "bench" => assert!(page.lines().any(is_it), "shunt.1 lacks bench"),
                _ => {
                    let first = page.lines().any(is_it);
                    // One that a command has alone is told of with that one.
                    let is_alone = below.len() == 2;
                    assert!(first || is_alone, "shunt.1 lacks {all:?}");
                    commands.push(all);
                }
            }
        }
    }
    for name in ["run", "container print", "host key"] {
        assert!(seen.iter().any(|seen| seen == name), "{seen:?}");
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
