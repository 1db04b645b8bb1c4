//! shuntd as a service manager starts it: with sockets that are listened at already.

mod common;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Client, new_name};
use rustix::net::sockopt;

/// Takes descriptors 0 and 1 as those that the manager hands over, for this process.
const OWN: &str = "LISTEN_PID=$$ LISTEN_FDS=$COUNT exec \"$0\" \"$@\" 3<&0 4>&1";

/// A shuntd that the script starts with these sockets.
fn start(script: &str, sockets: Vec<OwnedFd>, options: &[&str]) -> Child {
    let mut command = Command::new("sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_shuntd")])
        .args(options)
        .env("COUNT", sockets.len().to_string())
        .stderr(Stdio::piped());
    let mut sockets = sockets.into_iter();
    command.stdin(sockets.next().map_or(Stdio::null(), Stdio::from));
    command.stdout(sockets.next().map_or(Stdio::null(), Stdio::from));
    command.spawn().unwrap()
}

/// What one that ended said, and its status.
fn ended(child: Child) -> (String, Option<i32>) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (said, output.status.code())
}

#[test]
fn who_comes_before_the_daemon_is_served_and_the_next_one_knows_it() {
    let name = new_name();
    let socket = shuntd::listen(&name).unwrap();
    let early = Client::raw(&name);
    let mut daemon = start(OWN, vec![socket], &["--name", &name]);
    let (early, _) = Client::introduced(early, "early");
    let late = Client::hello(&name, "late");
    // The one who had come before was told of who listened then.
    let seen = [&early, &late].map(|client| {
        let credentials = sockopt::socket_peercred(&client.socket).unwrap();
        credentials.pid.as_raw_pid().cast_unsigned()
    });
    assert_eq!(seen, [std::process::id(), daemon.id()]);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn sockets_for_another_process_are_not_taken() {
    let name = new_name();
    let socket = shuntd::listen(&name).unwrap();
    let script = OWN.replace("$$", "1");
    let (said, status) = ended(start(&script, vec![socket], &["--name", &name]));
    assert!(said.contains("another shuntd already serves"), "{said}");
    assert_eq!(status, Some(2));
}

#[test]
fn errors_are_errors_to_the_journal_and_plain_lines_to_all_others() {
    use std::os::unix::fs::MetadataExt as _;
    let path = std::env::temp_dir().join(format!("shuntd-journal-{}", std::process::id()));
    let said = |moved: u64| {
        let file = File::create(&path).unwrap();
        let about = file.metadata().unwrap();
        let stream = format!("{}:{}", about.dev(), about.ino() + moved);
        let mut command = Command::new(env!("CARGO_BIN_EXE_shuntd"));
        command.args(["--check", "/nonexistent"]);
        command.env("JOURNAL_STREAM", stream).stderr(file);
        assert_eq!(command.status().unwrap().code(), Some(1));
        std::fs::read_to_string(&path).unwrap()
    };
    let [journal, redirected] = [said(0), said(1)];
    std::fs::remove_file(&path).unwrap();
    assert!(redirected.starts_with("shuntd: "), "{redirected}");
    assert_eq!(journal, format!("<3>{redirected}"));
}

#[test]
fn a_socket_that_no_program_looks_for_is_an_error() {
    let [own, other] = [new_name(), new_name()];
    let sockets = [&own, &other].map(|name| shuntd::listen(name).unwrap());
    let (said, status) = ended(start(OWN, sockets.into(), &["--name", &own]));
    assert!(said.contains(&format!("listens at @{other}")), "{said}");
    assert_eq!(status, Some(1));
    let file = File::open("/dev/null").unwrap();
    let (said, status) = ended(start(OWN, vec![file.into()], &["--name", &own]));
    assert!(
        said.contains("what the service manager hands over"),
        "{said}"
    );
    assert_eq!(status, Some(1));
}

#[test]
fn units_listen_where_programs_look() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let places = |path: PathBuf| -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines();
        let places = lines.filter_map(|line| line.strip_prefix("ListenSequentialPacket="));
        places.map(str::to_owned).collect()
    };
    let host = format!("@{}", shunt_abi::control_name(None));
    assert_eq!(
        places(packaging.join("shuntd.socket")),
        [host, shunt_abi::host_socket()]
    );
    // %U is the number of the user whose manager reads it (systemd.unit(5)).
    let user = shunt_abi::control_name(Some(7)).replace("/7", "/%U");
    assert_eq!(
        places(packaging.join("user/shuntd.socket")),
        [format!("@{user}")]
    );
}
