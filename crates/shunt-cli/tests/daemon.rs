//! `shunt` and shuntd together.

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::isolated::{DAEMONS, SHUNT, assert_advice, isolated, skip, stdout};

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
fn the_daemon_runs_on_all_cores_also_if_its_starter_does_not() {
    let script = "cores() { grep Cpus_allowed_list /proc/$1/status; }; \
         all=$(taskset -c 0-1023 sh -c 'grep Cpus_allowed_list /proc/self/status'); \
         one=$(echo \"$all\" | grep -o '[0-9]*$'); \
         taskset -c $one $SHUNT run true; \
         echo \"$all\"; cores $(DAEMONS)";
    let Some(out) = stdout(&script.replace("DAEMONS", DAEMONS)) else {
        return;
    };
    let lines: Vec<_> = out.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{out}");
}

#[test]
fn ss_needs_a_daemon_and_says_so() {
    let Some(out) = isolated("$SHUNT ss") else {
        return;
    };
    assert_eq!(out.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("no shuntd answers"),
        "{out:?}"
    );
}

#[test]
fn why_looks_at_processes_without_a_daemon() {
    let Some(out) = isolated("$SHUNT why $$; $SHUNT why 999999; $SHUNT why 127.0.0.1:1") else {
        return;
    };
    let (text, error) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(
        text.contains(" does not run under Shunt.\n  -> start it by"),
        "{text}"
    );
    assert!(text.contains("no shuntd answers"), "{text}");
    assert_eq!(
        error.matches("no such process or connection").count(),
        2,
        "{error}"
    );
    assert_eq!(out.status.code(), Some(1));
}

#[test]
fn a_daemon_of_another_version_is_told_of_and_does_no_harm() {
    let script = r#"
        perl -MSocket -e '
            socket(S, AF_UNIX, SOCK_SEQPACKET, 0) or die;
            bind(S, pack("Sa*", AF_UNIX, "\0shunt/7/user/0")) or die;
            listen(S, 5);
            socket(C, AF_UNIX, SOCK_DGRAM, 0) or die;
            bind(C, pack("Sa*", AF_UNIX, "\0shunt/call/\xfb")) or die; # No text.
            system("$ENV{SHUNT} ss 2>&1"); system("$ENV{SHUNT} why $$");
            system("$ENV{SHUNT} doctor"); print $? >> 8, "\n"'
    "#;
    let Some(out) = stdout(script) else { return };
    let named = out.matches("a shuntd of another version listens (@shunt/7/user/0)");
    assert_eq!(named.count(), 2, "{out}");
    assert!(
        out.contains("one of another version runs beside it (@shunt/7/user/0)"),
        "{out}"
    );
    assert!(out.ends_with("\n0\n"), "{out}");
}

#[test]
fn ss_lists_and_doctor_is_content_once_there_is_one() {
    let script =
        "$SHUNT run true; $SHUNT ss; $SHUNT ss --json | tr -d ' \\n'; echo; $SHUNT doctor --json";
    let Some(out) = stdout(script) else { return };
    let (head, doctor) = out
        .split_once("{\"connections\":[],\"listeners\":[]}\n")
        .expect(&out);
    let columns = "LOCAL  PEER  SERVER  CLIENT  PATH  TO-CLIENT  TO-SERVER  REASON\n";
    assert_eq!(head, columns);
    let report: serde_json::Value = serde_json::from_str(doctor).unwrap();
    assert_eq!(report["checks"][1]["name"], "shuntd");
    assert_eq!(report["checks"][1]["ok"], true, "{report}");
}

#[test]
fn without_a_daemon_the_program_runs_all_the_same() {
    let script =
        "dir=$(mktemp -d); cp $SHUNT $dir; PATH=/usr/bin:/bin $dir/shunt run echo ran; rm -r $dir";
    let Some(out) = isolated(script) else { return };
    assert_eq!(String::from_utf8_lossy(&out.stdout), "ran\n");
    let warning = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(warning.lines().count(), 1, "{warning}");
    assert!(warning.contains("no shuntd"), "{warning}");
}

#[test]
fn why_the_daemon_could_not_start_is_said() {
    let script = r#"
        export XDG_CONFIG_HOME=/tmp/wrong-$$
        mkdir -p $XDG_CONFIG_HOME/shunt
        echo '[policy' >$XDG_CONFIG_HOME/shunt/shunt.toml
        $SHUNT run echo ran
        rm -r $XDG_CONFIG_HOME
    "#;
    let Some(out) = isolated(script) else { return };
    assert_eq!(String::from_utf8_lossy(&out.stdout), "ran\n");
    let warning = String::from_utf8_lossy(&out.stderr);
    assert_eq!(warning.lines().count(), 1, "{warning}");
    for part in ["/shunt.toml:1:", "`shunt doctor`", "use plain TCP"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
}

#[test]
fn who_runs_a_program_beside_a_stopped_daemon_is_told() {
    let script = "$SHUNT run true; pid=$(DAEMONS); kill -STOP $pid; echo $pid; $SHUNT run echo ran";
    let Some(out) = isolated(&script.replace("DAEMONS", DAEMONS)) else {
        return;
    };
    let out_text = String::from_utf8_lossy(&out.stdout);
    let pid = out_text.strip_suffix("\nran\n").expect(&out_text);
    let warning = String::from_utf8_lossy(&out.stderr);
    assert_eq!(warning.lines().count(), 1, "{warning}");
    let advice = format!("is stopped: `kill -CONT {pid}`");
    assert!(warning.contains(&advice), "{warning}");
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
fn a_daemon_that_is_stopped_while_it_is_watched_is_named() {
    let script = "$SHUNT run true; pid=$(DAEMONS); echo $pid
        $SHUNT ss --json --watch=0.05 | { read list; kill -STOP $pid; cat > /dev/null; }";
    let Some(out) = isolated(&script.replace("DAEMONS", DAEMONS)) else {
        return;
    };
    let pid = String::from_utf8_lossy(&out.stdout);
    let error = String::from_utf8_lossy(&out.stderr);
    let advice = format!("is stopped: `kill -CONT {}`", pid.trim());
    assert!(error.contains(&advice), "{error}");
}

/// Runs a script while another user's process, `$holder`, listens at this abstract name; `None` where that cannot be.
fn beside_squatter(name: &str, script: &str) -> Option<Output> {
    // Namespaces of one user have no second one to do it with, but root's have.
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let script = format!(
        r#"
        setpriv --reuid 65534 --clear-groups perl -MSocket -e '
            socket(S, AF_UNIX, SOCK_SEQPACKET, 0) or die;
            bind(S, pack("Sa*", AF_UNIX, "\0{name}")) or die;
            listen(S, 50); $| = 1; print "$$\n"; sleep 50' | {{
            read holder || exit 77
            {script}
            kill $holder
        }}
    "#
    );
    let directory = Path::new(SHUNT).parent().unwrap();
    let out = Command::new("unshare")
        .args(["--net", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["timeout", "60", "sh", "-c", &script])
        .env("SHUNT", directory.join("shunt"))
        .env("SHUNT_LIB", common::library(shunt_abi::PROTOCOL))
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    if error.contains("unshare:") || out.status.code() == Some(77) {
        skip(&error);
        return None;
    }
    Some(out)
}

#[test]
fn who_has_taken_the_daemons_address_is_named() {
    let script = "$SHUNT run true; ${SHUNT}d; $SHUNT ss; $SHUNT downgrade 1; $SHUNT doctor";
    let Some(out) = beside_squatter(&shunt_abi::control_name(Some(0)), script) else {
        return;
    };
    let error = String::from_utf8_lossy(&out.stderr);
    let named = error.matches("has taken the address");
    assert_eq!(named.count(), 4, "{error}");
    let report = String::from_utf8_lossy(&out.stdout);
    assert_advice(&report, "shuntd", "that process must end");
}

#[test]
fn who_has_taken_the_address_of_roots_daemon_keeps_nobody_from_his_own() {
    let script = "$SHUNT doctor; echo $?; $SHUNT run true; $SHUNT doctor; echo $?";
    let Some(out) = beside_squatter(&shunt_abi::control_name(None), script) else {
        return;
    };
    let report = String::from_utf8_lossy(&out.stdout);
    let named = report.matches("warning: user 65534 has taken the address of root's shuntd");
    assert_eq!(named.count(), 2, "{report}");
    let statuses: Vec<_> = report.lines().filter(|line| line.len() == 1).collect();
    assert_eq!(statuses, ["0", "0"], "{report}");
    assert!(!report.contains("FAIL"), "{report}");
}

#[test]
fn another_users_daemon_is_told_of_where_there_is_none_of_ones_own() {
    let script = "$SHUNT ss; $SHUNT downgrade 1; $SHUNT doctor; $SHUNT run true; $SHUNT doctor";
    let sentence = "user 65534 has a shuntd of his own: ask as that user";
    let Some(out) = beside_squatter(&shunt_abi::control_name(Some(65534)), script) else {
        return;
    };
    let error = String::from_utf8_lossy(&out.stderr);
    assert_eq!(error.matches(sentence).count(), 2, "{error}");
    let report = String::from_utf8_lossy(&out.stdout);
    assert_eq!(report.matches(sentence).count(), 1, "{report}");
    // Of a third user, whose daemon that cannot be, nothing is said.
    let out = beside_squatter(&shunt_abi::control_name(Some(65533)), "$SHUNT ss").unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    let alone = "under Shunt here: `shunt run -- CMD` starts one\n";
    assert!(error.contains(alone), "{error}");
}

#[test]
fn who_listens_at_the_daemons_address_and_takes_nobody_is_told_of() {
    let script = r#"
        perl -MSocket -e '
            my $name = pack("Sa*", AF_UNIX, "\0shunt/PROTOCOL/user/0");
            socket(S, AF_UNIX, SOCK_SEQPACKET, 0) or die;
            bind(S, $name) or die;
            listen(S, 0);
            socket(C, AF_UNIX, SOCK_SEQPACKET, 0) or die;
            connect(C, $name) or die;
            system("$ENV{SHUNT} doctor"); print $? >> 8, "\n";
            system("$ENV{SHUNT} ss"); system("$ENV{SHUNT} run true")'
    "#;
    let script = script.replace("PROTOCOL", &shunt_abi::PROTOCOL.to_string());
    let Some(out) = isolated(&script) else { return };
    let report = String::from_utf8(out.stdout).unwrap();
    assert_advice(&report, "shuntd", "`ss -xlp`");
    assert!(report.ends_with("\n1\n"), "{report}");
    let error = String::from_utf8_lossy(&out.stderr);
    assert_eq!(error.matches("takes no connections").count(), 2, "{error}");
}

#[test]
fn a_daemon_that_closes_without_a_word_refuses_us() {
    let script = r#"
        perl -MSocket -e '
            socket(S, AF_UNIX, SOCK_SEQPACKET, 0) or die;
            bind(S, pack("Sa*", AF_UNIX, "\0shunt/PROTOCOL/user/0")) or die;
            listen(S, 5); $| = 1; print "$$\n";
            accept(C, S) or die; close C; sleep 50' | {
            read holder || exit 77
            $SHUNT ss
            kill $holder
        }
    "#;
    let script = script.replace("PROTOCOL", &shunt_abi::PROTOCOL.to_string());
    let Some(out) = isolated(&script) else { return };
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(
        error.contains("refuses us") && !error.contains("kill"),
        "{error}"
    );
}

#[test]
fn who_names_a_file_asks_nobody_else() {
    let script = r#"
        $SHUNT run true
        export SHUNT_SOCKET=/nonexistent/shunt/socket
        $SHUNT run true
        $SHUNT doctor
        $SHUNT ss
    "#;
    let Some(out) = isolated(script) else { return };
    let report = String::from_utf8_lossy(&out.stdout);
    assert_advice(&report, "shuntd", "start `shuntd --system` on the host");
    let error = String::from_utf8_lossy(&out.stderr);
    let named = error.matches("/nonexistent/shunt/socket, which SHUNT_SOCKET names");
    assert_eq!(named.count(), 2, "{error}");
    assert_eq!(out.status.code(), Some(1), "{error}");
}

#[test]
fn a_daemon_of_another_pid_namespace_is_found_and_no_process_is_named() {
    let script = r#"
        $SHUNT run true
        inside='$SHUNT ss; $SHUNT doctor; $SHUNT run true; exit 0'
        unshare --pid --fork --mount-proc sh -c "$inside"
        DAEMONS | wc -l
    "#;
    let Some(out) = isolated(&script.replace("DAEMONS", DAEMONS)) else {
        return;
    };
    let (text, error) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(error.is_empty(), "{error}");
    assert!(text.starts_with("LOCAL"), "{text}");
    assert!(
        text.contains("a process of another PID namespace serves this user"),
        "{text}"
    );
    assert!(text.trim_end().ends_with("\n1"), "a second daemon: {text}");
}

#[test]
fn filters_that_do_not_exist_are_named() {
    let Some(out) =
        isolated("$SHUNT run true; $SHUNT ss --path tcp --port 1; $SHUNT ss --reason NONE")
    else {
        return;
    };
    assert_eq!(out.status.code(), Some(2));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(error.contains("`shunt reasons` lists all"), "{error}");
    let out = isolated("$SHUNT run true; $SHUNT ss -tulnpi sport = no-service").unwrap();
    assert_eq!(out.status.code(), Some(2));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(error.contains("\"no-service\" is not a port"), "{error}");
}

#[test]
fn the_seconds_of_watch_stand_behind_a_sign() {
    let out = Command::new(SHUNT)
        .args(["ss", "--watch", "2"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(error.contains("`--watch=2`"), "{error}");
}

#[test]
fn the_letters_that_hands_are_used_to_are_understood() {
    let Some(out) = stdout("$SHUNT run true; $SHUNT ss -tanp | wc -l; $SHUNT ss -Hla") else {
        return;
    };
    assert_eq!(out.trim(), "1");
}

#[test]
fn downgrade_needs_a_daemon_and_says_so() {
    let Some(out) = isolated("$SHUNT downgrade 127.0.0.1:1") else {
        return;
    };
    assert_eq!(out.status.code(), Some(1));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(error.contains("no shuntd answers"), "{error}");
}

#[test]
fn ss_is_watched_until_its_reader_has_enough() {
    let Some(out) = stdout(
        "$SHUNT run true; $SHUNT ss --watch=0.01 | head -n 5; $SHUNT ss -H --watch=0.01 | head -n 2 | wc -w",
    ) else {
        return;
    };
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 6, "{out}");
    assert!(lines[0] == lines[2] && lines[2] == lines[4], "{out}");
    assert_eq!((lines[1], lines[5].trim()), ("", "0"), "{out}");
}
