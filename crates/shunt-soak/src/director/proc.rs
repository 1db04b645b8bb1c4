//! Other processes, as `/proc` shows them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Children, their children, and so on.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
        {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

pub(super) fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

pub(super) fn anyones_daemon() -> Option<u32> {
    let pids = fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|&pid| comm(pid) == "shuntd")
}

/// The number behind a name in a file of `/proc`.
pub(super) fn field_kb(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(Path::new(path)).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

pub(crate) fn signal(pid: u32, number: libc::c_int) {
    if pid > 1
        && let Ok(pid) = libc::pid_t::try_from(pid)
    {
        // SAFETY: integers only; the process is one of ours.
        unsafe { libc::kill(pid, number) };
    }
}

pub(crate) fn print_stacks(pid: u32) {
    if pid == 0 {
        return;
    }
    println!("---- stacks of {pid} ({})", comm(pid));
    let output = Command::new("timeout")
        .args([
            "-k",
            "5",
            "30",
            "gdb",
            "-batch",
            "-nx",
            "-ex",
            "thread apply all bt 25",
            "-p",
            &pid.to_string(),
        ])
        .stdin(Stdio::null())
        .output();
    for line in output
        .iter()
        .flat_map(|output| output.stdout.split(|&byte| byte == b'\n'))
    {
        if line.starts_with(b"#") || line.starts_with(b"Thread") {
            println!("{}", String::from_utf8_lossy(line));
        }
    }
}
