//! What kind of file libshunt.so is.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

fn tool(command: &[&str]) -> String {
    let output = Command::new(command[0])
        .args(&command[1..])
        .output()
        .expect("binutils are installed");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Names of the dynamic symbols that a file defines, without versions.
fn defined(path: &str) -> BTreeSet<String> {
    tool(&["nm", "-D", "--defined-only", "--format=posix", path])
        .lines()
        .filter_map(|line| line.split([' ', '@']).next())
        .map(String::from)
        .collect()
}

#[test]
fn exports_only_what_libc_exports() {
    let library = common::library();
    let exported = defined(library.to_str().expect("a plain path"));
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    let libc = maps
        .split_whitespace()
        .find(|word| word.ends_with("/libc.so.6"))
        .expect("the test is linked to glibc");
    // Of glibc 2.39.
    let newer = ["pidfd_spawn", "pidfd_spawnp"].map(String::from);
    let known = &defined(libc) | &BTreeSet::from(newer);
    let foreign: Vec<_> = exported.difference(&known).cloned().collect();
    assert!(foreign.is_empty(), "not in libc: {foreign:?}");
    for essential in [
        "read",
        "write",
        "send",
        "recv",
        "poll",
        "epoll_wait",
        "close",
        "dprintf",
        "syscall",
        "execle",
        "pidfd_spawn",
        "pidfd_spawnp",
    ] {
        assert!(exported.contains(essential), "{essential} is missing");
    }
    // Its handlers see every fork; a `vfork` of ours jumps to libc's.
    assert!(!exported.contains("fork"), "fork must stay libc's");
}

#[test]
fn needs_only_libc_and_its_linker() {
    let dynamic = tool(&[
        "readelf",
        "-dW",
        common::library().to_str().expect("a plain path"),
    ]);
    let needed: Vec<_> = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .collect();
    assert!(!needed.is_empty());
    for line in &needed {
        assert!(
            line.contains("[libc.so.6]") || line.contains("[ld-linux-"),
            "needs more than libc: {line}"
        );
    }
    assert!(
        dynamic.contains("NODELETE"),
        "dlclose must not unload the library:\n{dynamic}"
    );
}

#[test]
fn trampolines_can_be_unwound() {
    let frames = tool(&[
        "readelf",
        "--debug-dump=frames",
        common::library().to_str().expect("a plain path"),
    ]);
    let symbols = tool(&[
        "nm",
        "--format=posix",
        common::library().to_str().expect("a plain path"),
    ]);
    for name in ["syscall", "dprintf", "execl"] {
        let address = symbols
            .lines()
            .filter_map(|line| line.split(' ').collect::<Vec<_>>().try_into().ok())
            .find_map(|[symbol, _, address, _]: [&str; 4]| (symbol == name).then_some(address))
            .unwrap_or_else(|| panic!("{name} has no symbol"));
        assert!(
            frames.contains(&format!("pc={address:0>16}..")),
            "{name} at {address} has no frame description"
        );
    }
}
