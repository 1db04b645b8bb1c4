//! `shunt` in a network namespace of its own, to which the daemon's name is confined, and in a process namespace of its own:
//! nothing outlives the test.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

pub(crate) const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// Says so also where the harness captures what tests print.
pub(crate) fn skip(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {}", why.trim());
}

/// Runs a shell script there; `None` where namespaces are not allowed.
pub(crate) fn isolated(script: &str) -> Option<Output> {
    let directory = Path::new(SHUNT).parent().unwrap();
    assert!(
        directory.join("shuntd").exists(),
        "shuntd is not built: cargo build -p shuntd"
    );
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args([
            "--map-root-user",
            "--net",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ]);
        command
            .args(["timeout", "60", "sh", "-c", script])
            .stdin(Stdio::null());
        command.env("SHUNT", SHUNT).env_remove("LD_PRELOAD");
        // These tests have no connections.
        let library = super::library(shunt_abi::PROTOCOL);
        command.env("SHUNT_LIB", library).output()
    };
    if !unshare("true").is_ok_and(|out| out.status.success()) {
        skip("no namespaces here");
        return None;
    }
    Some(unshare(script).unwrap())
}

pub(crate) fn stdout(script: &str) -> Option<String> {
    let out = isolated(script)?;
    assert!(
        out.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    Some(String::from_utf8(out.stdout).unwrap())
}

/// The pids of daemons. (One that lost a race and ended is a zombie here, where
/// nobody collects orphans, and has no command line.)
pub(crate) const DAEMONS: &str = "grep -l '[r]eady-fd' /proc/[0-9]*/cmdline | cut -d/ -f3";

/// In what `shunt doctor` has reported, one check failed, and one thing is to be done.
pub(crate) fn assert_advice(report: &str, check: &str, advice: &str) {
    assert_eq!(report.matches("FAIL ").count(), 1, "{report}");
    assert!(report.contains(&format!("FAIL  {check}")), "{report}");
    let given: Vec<_> = report.lines().filter(|line| line.contains("->")).collect();
    assert!(given.len() == 1 && given[0].contains(advice), "{report}");
}
