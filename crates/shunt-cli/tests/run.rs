//! `shunt run` as its user and the program that it becomes see it.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// A library that any program may preload.
fn harmless_library() -> String {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| common::library(shunt_abi::PROTOCOL));
    LIBRARY.display().to_string()
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("SHUNT_LIB", harmless_library())
        .env_remove("LD_PRELOAD");
    for name in ["SHUNT_UPGRADE", "SHUNT_IO_URING", "SHUNT_STATS"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Without a daemon: nothing of this test leaves its process tree.
fn run(arguments: &[&str]) -> Output {
    command(SHUNT)
        .args(["run", "--upgrade=off"])
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A shell line that finds shunt in `$SHUNT`.
fn shell(line: &str) -> Output {
    command("sh")
        .env("SHUNT", SHUNT)
        .args(["-c", line])
        .output()
        .unwrap()
}

#[test]
fn status_and_signals_are_the_programs_own() {
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(
        run(&["sh", "-c", "kill -TERM $$"]).status.signal(),
        Some(15)
    );
    let mut child = command(SHUNT)
        .args(["run", "--upgrade=off", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_program_that_cannot_run_is_told_apart_from_one_that_is_missing() {
    let missing = run(&["--", "no-such-program-anywhere"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(
        text(&missing.stderr).contains("no-such-program-anywhere"),
        "{missing:?}"
    );
    assert_eq!(run(&["--", "/no/such/file"]).status.code(), Some(127));
    assert_eq!(run(&["--", "/etc/passwd"]).status.code(), Some(126));
    assert_eq!(run(&["--", "/"]).status.code(), Some(126));
}

#[test]
fn options_end_where_the_program_begins() {
    let out = run(&["echo", "--json", "-x", "--", "--upgrade=eager"]);
    assert_eq!(text(&out.stdout), "--json -x -- --upgrade=eager\n");
    assert_eq!(
        command(SHUNT).arg("run").output().unwrap().status.code(),
        Some(2)
    );
}

#[test]
fn the_environment_names_the_library_last_and_the_files_in_full() {
    let library = harmless_library();
    let out = run(&["sh", "-c", "echo $LD_PRELOAD $SHUNT_UPGRADE $SHUNT_STATS."]);
    assert_eq!(text(&out.stdout), format!("{library} off .\n"));
    let out = command(SHUNT)
        .args(["run", "--upgrade", "off", "--stats", "null"])
        .args(["--", "sh", "-c", "echo $LD_PRELOAD; echo $SHUNT_STATS"])
        .env("LD_PRELOAD", "libm.so.6")
        .current_dir("/dev")
        .output()
        .unwrap();
    assert_eq!(
        text(&out.stdout),
        format!("libm.so.6:{library}\n/dev/null\n")
    );
}

#[test]
fn a_statistics_file_that_cannot_be_written_is_reported_before_anything_runs() {
    for file in ["/nonexistent/file", "/"] {
        let out = run(&["--stats", file, "echo", "ran"]);
        assert_eq!(out.status.code(), Some(125), "{out:?}");
        assert!(out.stdout.is_empty());
        assert!(text(&out.stderr).contains(file), "{out:?}");
    }
}

#[test]
fn an_option_that_does_not_exist_is_no_program() {
    let wrong: [&[&str]; 8] = [
        &["run", "--stat", "file"],
        &["run", "--upgrade=eager", "-x", "echo"],
        &["run", "--upgrade=often", "echo"],
        &["run", "--stats", "file"],
        &["ss", "--jsn"],
        &["reasons", "now"],
        &["stats", "--jsn", "file"],
        &["downgrade", "--all"],
    ];
    for arguments in wrong {
        let out = command(SHUNT).args(arguments).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {out:?}");
        assert!(out.stdout.is_empty(), "{arguments:?}: {out:?}");
    }
    let out = command(SHUNT).args(wrong[0]).output().unwrap();
    let hint = text(&out.stderr);
    assert!(
        hint.contains("a similar argument exists: '--stats'"),
        "{hint}"
    );
    // Behind `--` all is the program's.
    assert_eq!(run(&["--", "--stat"]).status.code(), Some(127));
    assert_eq!(text(&run(&["--", "echo", "--", "-x"]).stdout), "-- -x\n");
}

#[test]
fn with_a_wrong_library_nothing_runs() {
    let directory = std::env::temp_dir().join(format!("shunt-wrong-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let file = directory.join(name);
        std::fs::write(&file, bytes).unwrap();
        file
    };
    let good = std::fs::read(harmless_library()).unwrap();
    let mut foreign = good.clone();
    foreign[18] = 8; // MIPS
    let wrong = [
        (PathBuf::from("/no/such"), "does not exist"),
        (directory.clone(), "is not a file"),
        (file("text", b"no library\n"), "is not a library"),
        (file("half", &good[..good.len() / 8]), "is damaged"),
        (
            file("foreign", &foreign),
            "is a library for another kind of machine",
        ),
        (SHUNT.into(), "is not a libshunt.so"),
        (common::library(7), "speaks version 7 of Shunt's protocol"),
    ];
    for (library, why) in wrong {
        let out = command(SHUNT)
            .env("SHUNT_LIB", &library)
            .args(["run", "--upgrade=off", "echo", "ran"])
            .output()
            .unwrap();
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(125), "{out:?}");
        assert!(
            out.stdout.is_empty() && error.lines().count() == 1,
            "{out:?}"
        );
        let named = format!("SHUNT_LIB names {}, which {why}", library.display());
        assert!(
            error.contains(&named) && error.contains("unset it"),
            "{error}"
        );
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn who_cleans_the_environment_is_told_once() {
    let out = run(&["nice", "env", "-i", "echo", "ran"]);
    assert_eq!(text(&out.stdout), "ran\n");
    let warning = text(&out.stderr);
    assert_eq!(warning.lines().count(), 1, "{warning}");
    assert!(
        warning.starts_with("shunt: env cleans its environment: what it starts will use plain TCP"),
        "{warning}"
    );
    assert_eq!(text(&run(&["env", "A=b", "echo", "-i"]).stderr), "");
}

#[test]
fn a_program_of_another_libc_runs_without_the_library() {
    let directory = std::env::temp_dir().join(format!("shunt-musl-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let program = directory.join("program");
    std::fs::write(directory.join("program.c"), MUSL).unwrap();
    let built = Command::new("musl-gcc")
        .arg("-o")
        .args([&program, &directory.join("program.c")])
        .status();
    if built.is_ok_and(|status| status.success()) {
        let out = run(&["nice", program.to_str().unwrap()]);
        assert_eq!(text(&out.stdout), "(none)\n");
        assert!(text(&out.stderr).contains("is linked to musl"), "{out:?}");
    } else {
        eprintln!("skipped: musl-gcc is not installed");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

const MUSL: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) { const char *p = getenv("LD_PRELOAD"); puts(p ? p : "(none)"); }
"#;

#[test]
fn without_the_library_nothing_runs() {
    let directory = std::env::temp_dir().join(format!("shunt-alone-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let alone = directory.join("shunt");
    // By another program: a child that another thread forks just now would have the copy open
    // for writing, and nobody could execute it.
    let copied = Command::new("cp").arg(SHUNT).arg(&alone).status().unwrap();
    assert!(copied.success());
    let out = command(alone.to_str().unwrap())
        .env_remove("SHUNT_LIB")
        .args(["run", "echo", "ran"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(
        out.stdout.is_empty() && text(&out.stderr).contains("SHUNT_LIB"),
        "{out:?}"
    );
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_broken_pipe_kills_the_program_only_if_it_would_have_without_shunt() {
    let inner = r#"sh -c 'kill -PIPE $$; echo survived'"#;
    let out = shell(&format!("exec $SHUNT run --upgrade=off {inner}"));
    assert_eq!(out.status.signal(), Some(13));
    let out = shell(&format!(
        "trap '' PIPE; exec $SHUNT run --upgrade=off {inner}"
    ));
    assert_eq!(text(&out.stdout), "survived\n");
}

#[test]
fn the_program_has_exactly_the_descriptors_that_shunt_was_given() {
    let list = "sh -c 'echo /proc/$$/fd/*' | sed 's,/proc/[0-9]*/fd/,,g'";
    for redirections in ["", "<&-", "2>&-", "5</dev/null 7</dev/null <&-"] {
        let native = shell(&format!("({list}) {redirections}"));
        let under = shell(&format!("($SHUNT run --upgrade=off {list}) {redirections}"));
        assert_eq!(text(&under.stdout), text(&native.stdout), "{redirections}");
    }
}

#[test]
fn a_static_program_runs_with_a_warning() {
    // A program without a loader by its header; it has nothing else.
    let directory = std::env::temp_dir().join(format!("shunt-static-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("program");
    let mut header = vec![0_u8; 64];
    header[..6].copy_from_slice(b"\x7fELF\x02\x01");
    header[18] = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    std::fs::write(&file, header).unwrap();
    rustix::fs::chmod(&file, 0o755.into()).unwrap();
    let out = run(&[file.to_str().unwrap()]);
    assert!(
        text(&out.stderr).contains("is statically linked: it will use plain TCP"),
        "{out:?}"
    );
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn reasons_and_help_are_complete() {
    let out = command(SHUNT).arg("reasons").output().unwrap();
    for reason in shunt_abi::Reason::ALL {
        assert!(
            text(&out.stdout).contains(reason.name()),
            "{}",
            reason.name()
        );
    }
    let out = command(SHUNT).args(["reasons", "--json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(list[0]["name"], "PENDING");
    for command_line in [
        &["--help"][..],
        &["run", "--help"],
        &["doctor", "--help"],
        &["--version"],
    ] {
        let out = command(SHUNT).args(command_line).output().unwrap();
        assert!(out.status.success() && !out.stdout.is_empty());
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let out = shell("$SHUNT reasons | true; $SHUNT reasons >&-; echo done");
    assert!(!text(&out.stderr).contains("panicked"), "{out:?}");
}

#[test]
fn io_uring_is_denied_by_an_option() {
    let told = |options: &[&str]| {
        let words = [options, &["--", "sh", "-c", "echo $SHUNT_IO_URING"]].concat();
        text(&run(&words).stdout)
    };
    assert_eq!(told(&["--io-uring=deny"]), "deny\n");
    assert_eq!(told(&["--io-uring=allow"]), "allow\n");
    assert_eq!(told(&[]), "\n");
}

#[test]
fn a_program_that_a_filter_would_end_runs_without_libshunt() {
    let refuse = common::program("refuse");
    let run = |call: i64| {
        let out = command(refuse.to_str().unwrap())
            .arg(call.to_string())
            .args([
                SHUNT,
                "run",
                "--upgrade=off",
                "sh",
                "-c",
                "echo \"<$LD_PRELOAD>\"",
            ])
            .output()
            .unwrap();
        assert!(out.status.success(), "{out:?}");
        (text(&out.stdout), text(&out.stderr))
    };
    for (call, name) in [
        (libc::SYS_membarrier, "membarrier"),
        (libc::SYS_memfd_create, "memfd_create"),
        (libc::SYS_bind, "bind"),
    ] {
        let (environment, warning) = run(-call);
        assert_eq!(environment, "<>\n");
        assert!(warning.contains(&format!("calls {name}, ")), "{warning}");
        // What is refused without harm is no reason, and has one of its own at each connection.
        let (environment, warning) = run(call);
        assert!(environment.contains("libshunt"), "{environment}");
        assert_eq!(warning, "");
    }
    // Nor is a call that Shunt can do without.
    assert_eq!(run(-libc::SYS_chroot).1, "");
}
