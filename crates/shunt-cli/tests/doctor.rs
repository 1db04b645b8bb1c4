//! `shunt doctor`: what it looks at, and its one advice for each thing that is wrong.

mod common;

use common::isolated::{DAEMONS, assert_advice, isolated, stdout};

#[test]
fn doctor_is_content_on_a_fresh_machine() {
    let Some(out) = stdout("$SHUNT doctor; echo $?") else {
        return;
    };
    assert!(out.contains("none runs yet; `shunt run` starts "), "{out}");
    assert!(!out.contains("->") && out.ends_with("\n0\n"), "{out}");
    // Unless there is nothing to start.
    let script =
        "cp $SHUNT /tmp/alone-$$; PATH=/usr/bin:/bin /tmp/alone-$$ doctor; rm /tmp/alone-$$";
    let out = stdout(script).unwrap();
    assert_advice(&out, "shuntd", "install shuntd beside shunt");
    let script = "mkdir /tmp/old-$$; cp $SHUNT /tmp/old-$$/shunt
        printf '#!/bin/sh\necho shuntd 0.0.9\n' >/tmp/old-$$/shuntd; chmod +x /tmp/old-$$/shuntd
        /tmp/old-$$/shunt doctor; rm -r /tmp/old-$$";
    let out = stdout(script).unwrap();
    assert!(out.contains("\"shuntd 0.0.9\""), "{out}");
    assert_advice(&out, "shuntd", "from one version");
}

#[test]
fn doctor_looks_at_a_program_or_a_process() {
    let Some(out) = stdout(
        "$SHUNT doctor sh -c true | tail -n 1; $SHUNT doctor env -i sh >/dev/null; echo $?
         $SHUNT doctor $$ | grep -c 'does not run under Shunt'; $SHUNT doctor $$ >/dev/null; echo $?
         SHUNT_UPGRADE= LD_PRELOAD=$SHUNT_LIB sh -c '$SHUNT doctor $$ | tail -n 1'",
    ) else {
        return;
    };
    let lines: Vec<_> = out.lines().collect();
    assert!(
        lines[0].starts_with("ok    program") && lines[0].ends_with(" will load libshunt.so"),
        "{out}"
    );
    assert_eq!(lines[1..4], ["1", "1", "1"], "{out}");
    assert!(lines[4].ends_with(") runs under Shunt"), "{out}");
}

#[test]
fn doctor_has_one_advice_for_each_thing_that_is_wrong() {
    let stopped = "$SHUNT run true; pid=$(DAEMONS); kill -STOP $pid; $SHUNT doctor";
    let cases = [
        (stopped, "shuntd", "-> `kill -CONT "),
        ("SHUNT_LIB=/no/such $SHUNT doctor", "library", "or unset it"),
        (
            "(ulimit -f 100; $SHUNT doctor)",
            "limits",
            "`ulimit -f unlimited`",
        ),
        (
            "(ulimit -v 60000; $SHUNT doctor)",
            "limits",
            "`ulimit -v unlimited`",
        ),
    ];
    for (script, check, advice) in cases {
        let Some(out) = isolated(&script.replace("DAEMONS", DAEMONS)) else {
            return;
        };
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert_advice(&String::from_utf8(out.stdout).unwrap(), check, advice);
    }
}

/// Starts a process as `$pid`, and goes on once it has become `sleep`.
fn sleeping(start: &str) -> String {
    format!("{start} & pid=$!; until grep -q sleep /proc/$pid/comm; do :; done; ")
}

#[test]
fn doctor_looks_at_the_network_namespace_of_a_process() {
    let doctor = "$SHUNT doctor $pid; echo $?";
    let script = sleeping("$SHUNT run -- unshare -n sleep 50") + doctor;
    let Some(out) = stdout(&script) else { return };
    assert_advice(&out, "namespace", "`shuntd --system`");
    assert!(out.ends_with("\n1\n"), "{out}");
    // One that has a shuntd there.
    let script = sleeping("unshare -n $SHUNT run -- sleep 50") + doctor;
    let out = stdout(&script).unwrap();
    assert!(
        out.contains("another network namespace") && out.ends_with("\n0\n"),
        "{out}"
    );
}

#[test]
fn doctor_looks_at_the_limits_of_a_process() {
    let doctor = "$SHUNT doctor $pid; echo $?";
    for (limit, all) in [
        ("-f 100", "`ulimit -f unlimited`"),
        ("-v 60000", "`ulimit -v unlimited`"),
    ] {
        let script = format!("(ulimit {limit}; exec $SHUNT run -- sleep 50)");
        let Some(out) = stdout(&format!("$SHUNT run true; {}{doctor}", sleeping(&script))) else {
            return;
        };
        assert_advice(&out, "limits", all);
        assert!(
            out.contains("start it again") && out.ends_with("\n1\n"),
            "{out}"
        );
    }
    // The limits of who asks do not count.
    let script = sleeping("$SHUNT run -- sleep 50") + "ulimit -f 100; " + doctor;
    assert!(stdout(&script).unwrap().ends_with("\n0\n"));
}

#[test]
fn doctor_tries_what_the_kernel_allows() {
    let refuse = common::program("refuse");
    let doctor = |call: i64| isolated(&format!("{} {call} $SHUNT doctor", refuse.display()));
    for (call, check, advice) in [
        (libc::SYS_membarrier, "membarrier", "allows membarrier"),
        (
            libc::SYS_memfd_create,
            "sealed memory",
            "allows memfd_create",
        ),
    ] {
        let Some(out) = doctor(call) else { return };
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert_advice(&String::from_utf8(out.stdout).unwrap(), check, advice);
    }
    // shuntd has another way.
    let out = doctor(libc::SYS_pidfd_getfd).unwrap();
    assert!(out.status.success(), "{out:?}");
    let report = String::from_utf8(out.stdout).unwrap();
    assert!(
        report.contains("reduced: shuntd asks sock_diag(7)"),
        "{report}"
    );
}

#[test]
fn doctor_survives_a_filter_that_ends_its_callers() {
    let refuse = common::program("refuse");
    for (call, name) in [
        (libc::SYS_membarrier, "membarrier"),
        (libc::SYS_memfd_create, "memfd_create"),
        (libc::SYS_pidfd_open, "pidfd_open"),
        (libc::SYS_connect, "connect"),
    ] {
        let script = format!("{} -{call} $SHUNT doctor true", refuse.display());
        let Some(out) = isolated(&script) else { return };
        assert_eq!(out.status.code(), Some(1), "{name}: {out:?}");
        let report = String::from_utf8(out.stdout).unwrap();
        assert_advice(&report, "system calls", &format!("allow {name};"));
        assert!(!report.contains("will load"), "{report}");
    }
}

#[test]
fn doctor_reads_the_policy_that_would_hold() {
    let script = r#"
        export XDG_CONFIG_HOME=/tmp/policy-$$
        mkdir -p $XDG_CONFIG_HOME/shunt
        printf '[[policy.rule]]\naction = "deny"\nport = 80\n' >$XDG_CONFIG_HOME/shunt/shunt.toml
        $SHUNT doctor | grep policy
        echo '[policy' >$XDG_CONFIG_HOME/shunt/shunt.toml
        $SHUNT doctor; echo $?
        rm -r $XDG_CONFIG_HOME
    "#;
    let Some(out) = stdout(script) else { return };
    let (first, rest) = out.split_once('\n').unwrap();
    assert!(
        first.starts_with("ok    policy ") && first.ends_with("/shunt.toml: valid, 1 rule"),
        "{first}"
    );
    assert_advice(rest, "policy", "no shuntd starts with it");
    assert!(
        rest.contains("/shunt.toml:1:") && rest.ends_with("\n1\n"),
        "{rest}"
    );
}

#[test]
fn doctor_names_the_rule_that_denies_the_program() {
    let with_rule = |condition: &str, script: &str| {
        stdout(&format!(
            "export XDG_CONFIG_HOME=/tmp/denied-$$; mkdir -p $XDG_CONFIG_HOME/shunt
             printf '[[policy.rule]]\naction = \"deny\"\n{condition}\n' >$XDG_CONFIG_HOME/shunt/shunt.toml
             {script}; echo $?; rm -r $XDG_CONFIG_HOME"
        ))
    };
    let sleep = "program = \"sleep\"";
    let process = sleeping("$SHUNT run -- sleep 50") + "$SHUNT doctor $pid";
    for (condition, script, whom) in [
        (sleep, "$SHUNT doctor nice sleep 50", "sleep"),
        (sleep, &process, "sleep"),
        ("", "$SHUNT doctor nice sleep 50", "sleep"),
        ("", "$SHUNT doctor", "all of user 0"),
    ] {
        let Some(out) = with_rule(condition, script) else {
            return;
        };
        assert_advice(&out, "policy", "change that rule");
        assert!(
            out.contains(&format!("the rule at line 1 denies {whom}")),
            "{out}"
        );
        assert!(out.ends_with("\n1\n"), "{out}");
    }
    for script in ["$SHUNT doctor true", "$SHUNT doctor"] {
        let out = with_rule(sleep, script).unwrap();
        assert!(out.ends_with("\n0\n"), "{out}");
    }
}
