//! `shunt container print`, by what the tools that read it are told.

mod common;

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};

fn print(tool: &str, socket: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shunt"))
        .args(["container", "print", tool])
        .env("SHUNT_LIB", common::library(shunt_abi::PROTOCOL))
        .env("SHUNT_SOCKET", socket)
        .output()
        .unwrap()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn without_a_daemon_it_says_how_to_start_one_and_prints_all_the_same() {
    let out = print("docker", "/nonexistent/shunt/socket");
    assert!(out.status.success());
    let warning = text(out.stderr);
    assert!(
        warning.contains("no shuntd listens at /nonexistent/shunt/socket"),
        "{warning}"
    );
    assert!(
        warning.contains("start `shuntd --system` as root"),
        "{warning}"
    );
    let line = text(out.stdout);
    assert_eq!(line.lines().count(), 1);
    assert!(
        line.contains(" --volume /nonexistent/shunt:/run/shunt:ro "),
        "{line}"
    );
    assert!(
        line.ends_with(" --env SHUNT_SOCKET=/run/shunt/socket\n"),
        "{line}"
    );
}

#[test]
fn a_socket_without_a_daemon_behind_it_is_none() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("container");
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join(format!("{}", std::process::id()));
    drop(UnixListener::bind(&path).unwrap());
    let out = print("cdi", path.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    assert!(text(out.stderr).contains("no shuntd listens at"));
}

#[test]
fn a_container_is_given_no_directory_with_anything_else_in_it() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let directory = directory.join(format!("shared-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let bind = |name: &str| drop(UnixListener::bind(directory.join(name)).unwrap());
    let refusal = |socket: &str| {
        let out = print("docker", socket);
        assert!(out.stdout.is_empty() != out.status.success(), "{out:?}");
        text(out.stderr)
    };
    let socket = directory.join("shunt.sock");
    let socket = socket.to_str().unwrap();
    bind("shunt.sock");
    bind("7");
    assert!(refusal(socket).contains("no shuntd listens at"));
    bind("docker.sock");
    let with_docker = refusal(socket);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(
        with_docker.contains("a container would get") && with_docker.contains("docker.sock"),
        "{with_docker}"
    );
    assert!(refusal("/shunt.sock").contains("a container would get all of /"));
    assert!(refusal("shunt/9").contains("is no absolute path"));
    assert!(refusal("/nonexistent/../9").contains("is no absolute path"));
}

#[test]
fn each_tool_is_told_the_same() {
    for tool in ["docker", "compose", "cdi"] {
        let out = print(tool, "/nonexistent/shunt/socket");
        let told = text(out.stdout);
        let library = common::library(shunt_abi::PROTOCOL);
        let directory = library.parent().unwrap().to_str().unwrap();
        for part in [
            directory,
            "/opt/shunt",
            "/nonexistent/shunt",
            "/run/shunt",
            "ORIGIN/..",
        ] {
            assert!(told.contains(part), "{tool} lacks {part}: {told}");
        }
    }
}

#[test]
fn an_unknown_tool_is_refused() {
    let out = print("crane", "/nonexistent/shunt/socket");
    assert_eq!(out.status.code(), Some(2));
    assert!(text(out.stderr).contains("[possible values: docker, compose, cdi]"));
}

/// musl has no symbols that the library needs: the path that is printed is none to its loader, and
/// one to glibc's.
#[test]
fn musl_programs_start_as_if_nothing_were_preloaded() {
    let library = common::library(shunt_abi::PROTOCOL);
    let out = print("docker", "/nonexistent/shunt/socket");
    let line = text(out.stdout);
    let preload = line.split("LD_PRELOAD=").nth(1).unwrap();
    let preload = preload.split_whitespace().next().unwrap();
    // Outside of a container the library is elsewhere.
    let preload = preload.replace("/opt/shunt/libshunt-", "LIBRARY");
    let start = preload.split("LIBRARY").next().unwrap();
    let path = format!("{start}{}", library.display());
    let says = |program: PathBuf| {
        let out = Command::new(program)
            .env("LD_PRELOAD", &path)
            .output()
            .unwrap();
        (out.status.success(), text(out.stdout), text(out.stderr))
    };
    let mapped = says(common::program("mapped"));
    assert_eq!(mapped, (true, "preloaded\n".into(), String::new()));
    let Some(musl) = common::musl_program("mapped") else {
        eprintln!("skipped: no musl-gcc here");
        return;
    };
    assert_eq!(says(musl), (true, "not preloaded\n".into(), String::new()));
}
