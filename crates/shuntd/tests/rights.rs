//! What `shuntd --system` may do once it serves.

mod common;

use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};

use common::place::file;
use common::skip;

/// `capabilities(7)`: SETGID, SETUID, DAC_READ_SEARCH, NET_ADMIN, SYS_PTRACE, BPF.
const KEPT: u64 = 1 << 6 | 1 << 7 | 1 << 2 | 1 << 12 | 1 << 19 | 1 << 39;

#[test]
fn none_of_its_threads_may_do_more_than_it_needs() {
    let test = "none_of_its_threads";
    if !rustix::process::geteuid().is_root() {
        return skip(&format!("{test}: shuntd --system needs root"));
    }
    let name = format!("shuntd-test/{}/rights", std::process::id());
    let script = "exec \"$0\" \"$@\" --ready-fd 3 3>&1 >/dev/null";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_shuntd"), "--system"])
        .args(["--config", "/dev/null", "--name", &name, "--socket"])
        .arg(file(test))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    let threads = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let statuses: Vec<String> = threads
        .map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).unwrap())
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(said, b"1");
    assert!(!statuses.is_empty());
    for status in &statuses {
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let set = |key| u64::from_str_radix(value(key).unwrap().trim(), 16).unwrap();
        for key in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_eq!(set(key) & !KEPT, 0, "{key} {status}");
        }
        assert_eq!(value("NoNewPrivs:").map(str::trim), Some("1"), "{status}");
    }
}
