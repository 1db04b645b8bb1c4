//! The list of files keeps up with the repository.

use super::{COMPLETIONS, VERSION, pages};
use crate::build::root;
use std::fs;

fn manifest() -> String {
    fs::read_to_string(root().join("crates/shunt-cli/Cargo.toml")).unwrap()
}

#[test]
fn each_page_of_the_manual_is_packaged() {
    let manifest = manifest();
    let pages = pages().unwrap();
    assert!(!pages.is_empty());
    for page in pages {
        let section = &page.section;
        let line = format!(r#"["../../man/*.{section}", "usr/share/man/man{section}/", "644"]"#);
        assert!(manifest.contains(&line), "{} is not packaged", page.file());
    }
}

#[test]
fn each_unit_is_packaged_and_verified_and_leaves_nothing_behind() {
    let packaging = root().join("packaging");
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let verified = read("xtask/src/package/trial.rs");
    let purged = read("packaging/scripts/postrm");
    let units = fs::read_dir(&packaging).unwrap();
    let units = units.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for unit in units.filter(|name| name.ends_with(".service") || name.ends_with(".socket")) {
        let line = format!(r#"["../../packaging/{unit}", "usr/lib/systemd/system/", "644"]"#);
        assert!(manifest().contains(&line), "{unit} is not packaged");
        let file = format!("/usr/lib/systemd/system/{unit}");
        assert!(verified.contains(&file), "{unit} is not verified");
        assert!(
            purged.contains(&format!(".wants/{unit}")),
            "{unit} stays enabled"
        );
    }
}

#[test]
fn each_shell_s_completions_are_packaged() {
    for (shell, file) in COMPLETIONS {
        let source = format!("\"target/release/completions/{file}\"");
        assert!(manifest().contains(&source), "{shell}'s are not packaged");
    }
}

#[test]
fn the_packages_changelog_begins_with_this_version() {
    let changelog = fs::read_to_string(root().join("packaging/changelog")).unwrap();
    assert!(changelog.starts_with(&format!("shunt ({VERSION}-1) ")));
}

#[test]
fn the_configuration_names_every_key_of_the_manual_and_sets_none() {
    let text = fs::read_to_string(root().join("packaging/shunt.toml")).unwrap();
    let manual = fs::read_to_string(root().join("man/shunt.toml.5")).unwrap();
    let keys = manual.lines().filter_map(|line| {
        let words = line.strip_prefix(".It Ic ")?;
        words.split(' ').next()
    });
    for key in keys {
        assert!(text.contains(&format!("\n#{key} = ")), "{key} is missing");
    }
    for line in text.lines() {
        let set = !line.is_empty() && !line.starts_with(['#', '[']);
        assert!(!set, "{line}");
    }
}
