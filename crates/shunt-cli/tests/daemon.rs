//! `shunt` and shuntd together, in a network namespace of their own: the
//! daemon's name is confined to it, and in a process namespace of their own:
//! nothing outlives the test.

use std::path::Path;
use std::process::{Command, Output, Stdio};

const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// Runs a shell script there; `None` where namespaces are not allowed.
fn isolated(script: &str) -> Option<Output> {
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
        // Any library does: these tests have no connections.
        command.env("SHUNT_LIB", "/proc/self/exe").output()
    };
    if !unshare("true").is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: no namespaces here");
        return None;
    }
    let script = format!(
        "export SHUNT_LIB=$(ls -d /lib*/*/libc.so.6 /lib*/libc.so.6 2>/dev/null | head -1)\n{script}"
    );
    Some(unshare(&script).unwrap())
}

fn stdout(script: &str) -> Option<String> {
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
const DAEMONS: &str = "grep -l '[r]eady-fd' /proc/[0-9]*/cmdline | cut -d/ -f3";

#[test]
fn concurrent_runs_share_one_daemon() {
    let script = "for i in 1 2 3 4 5 6 7 8; do $SHUNT run true & done; wait; DAEMONS | wc -l";
    let Some(out) = stdout(&script.replace("DAEMONS", DAEMONS)) else {
        return;
    };
    assert_eq!(out.trim(), "1");
}

#[test]
fn the_daemon_is_nobodys_child_and_holds_nothing_of_its_starters() {
    // The reader of descriptor 5 sees its end although the daemon goes on, and
    // the program has no child that it did not make.
    let script = r#"
        { $SHUNT run sh -c 'cat /proc/$$/task/*/children' 5>&1 | cat; } | grep -c . 
        pid=$(DAEMONS)
        readlink /proc/$pid/cwd /proc/$pid/fd/0 /proc/$pid/fd/1 /proc/$pid/fd/2
        test $(cut -d' ' -f6 /proc/$pid/stat) != $(cut -d' ' -f6 /proc/$$/stat) && echo own session
        tr '\0' '\n' < /proc/$pid/environ | grep -c LD_PRELOAD
    "#;
    let Some(out) = stdout(&script.replace("DAEMONS", DAEMONS)) else {
        return;
    };
    let lines: Vec<_> = out.lines().map(str::trim).collect();
    // (`cat` itself is the one child.)
    assert_eq!(
        lines,
        [
            "1",
            "/",
            "/dev/null",
            "/dev/null",
            "/dev/null",
            "own session",
            "0"
        ]
    );
}

#[test]
fn ss_and_doctor_need_a_daemon_and_say_so() {
    let Some(out) = isolated("$SHUNT ss") else {
        return;
    };
    assert_eq!(out.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("no shuntd answers"),
        "{out:?}"
    );
    let Some(out) = isolated("$SHUNT doctor") else {
        return;
    };
    assert_eq!(out.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&out.stdout).contains("FAIL  shuntd"),
        "{out:?}"
    );
}

#[test]
fn ss_lists_and_doctor_is_content_once_there_is_one() {
    let script =
        "$SHUNT run true; $SHUNT ss; $SHUNT ss --json | tr -d ' \\n'; echo; $SHUNT doctor --json";
    let Some(out) = stdout(script) else { return };
    let (head, doctor) = out.split_once("{\"connections\":[]}\n").expect(&out);
    assert_eq!(head, "LOCAL  PEER  SERVER  CLIENT  PATH  REASON\n");
    let report: serde_json::Value = serde_json::from_str(doctor).unwrap();
    assert_eq!(report["checks"][0]["name"], "shuntd");
    assert_eq!(report["checks"][0]["ok"], true, "{report}");
}

#[test]
fn without_a_daemon_the_program_runs_all_the_same() {
    let script =
        "cp $SHUNT /tmp/alone-$$; PATH=/usr/bin:/bin /tmp/alone-$$ run echo ran; rm /tmp/alone-$$";
    let Some(out) = isolated(script) else { return };
    assert_eq!(String::from_utf8_lossy(&out.stdout), "ran\n");
    let warning = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(warning.lines().count(), 1, "{warning}");
    assert!(warning.contains("no shuntd"), "{warning}");
}

#[test]
fn a_stopped_daemon_is_named_at_once() {
    let script = "$SHUNT run true; pid=$(DAEMONS); kill -STOP $pid; echo $pid; $SHUNT ss";
    let Some(out) = isolated(&script.replace("DAEMONS", DAEMONS)) else {
        return;
    };
    let (pid, error) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert_eq!(out.status.code(), Some(1));
    let advice = format!("is stopped: `kill -CONT {}`", pid.trim());
    assert!(
        error.contains(&advice) && !error.contains("os error"),
        "{error}"
    );
}

#[test]
fn who_has_taken_the_daemons_address_is_named() {
    // Namespaces of one user have no second one to do it with, but root's have.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let script = r#"
        setpriv --reuid 65534 --clear-groups perl -MSocket -e '
            socket(S, AF_UNIX, SOCK_SEQPACKET, 0) or die;
            bind(S, pack("Sa*", AF_UNIX, "\0shunt/PROTOCOL/user/0")) or die;
            listen(S, 5); $| = 1; print "$$\n"; sleep 50' | {
            read holder || exit 77
            $SHUNT run true
            ${SHUNT}d
            kill $holder
        }
    "#;
    let script = script.replace("PROTOCOL", &shunt_abi::PROTOCOL.to_string());
    let directory = Path::new(SHUNT).parent().unwrap();
    let out = Command::new("unshare")
        .args(["--net", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["timeout", "60", "sh", "-c", &script])
        .env("SHUNT", directory.join("shunt"))
        .env("SHUNT_LIB", "/lib/x86_64-linux-gnu/libc.so.6")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    if error.contains("unshare:") || out.status.code() == Some(77) {
        eprintln!("skipped: {error}");
        return;
    }
    let named = error.matches("of user 65534 has taken the address");
    assert_eq!(named.count(), 2, "{error}");
}
