//! The policy: what its rules are asked about, and what a new one does to connections that are there.

mod common;

use std::io::Read as _;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::place::{Namespace, file};
use common::{
    Client, Fixture, connection, may_copy_descriptors, paired, paired_with, skip, told, wish,
};
use rustix::net::sockopt::socket_cookie;
use rustix::process::{Pid, Signal, kill_process};
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message, Role};

/// A rule that denies all of whom this is true.
fn deny(condition: &str) -> String {
    format!("[[policy.rule]]\naction = \"deny\"\n{condition}\n")
}

/// What two clients are told of a connection between them: a reason, or that they are paired.
fn answers(clients: &[Client; 2], ends: &(TcpStream, TcpStream)) -> [Option<Reason>; 2] {
    clients[0].claim(&ends.0, Role::Connector, 0);
    clients[1].claim(&ends.1, Role::Acceptor, 0);
    clients.each_ref().map(|client| {
        let (mut answer, _) = client.receive().expect("the daemon has closed");
        while answer.kind() == Some(Kind::Abroad) {
            answer = client.receive().expect("the daemon has closed").0;
        }
        match answer.kind() {
            Some(Kind::Paired) => None,
            Some(Kind::Unpaired) => Reason::from_number(answer.status),
            _ => panic!("{answer:?}"),
        }
    })
}

fn with_memory(clients: [Client; 2]) -> [Client; 2] {
    for client in &clients {
        drop(client.spare(1));
        client.sync();
    }
    clients
}

fn is_denied(config: &str) -> bool {
    let daemon = Fixture::with(config);
    let clients = with_memory([daemon.client(), daemon.client()]);
    match answers(&clients, &connection()) {
        [None, None] => false,
        [Some(Reason::Policy), Some(Reason::Policy)] => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rules_are_asked_about_what_the_kernel_says_of_a_process() {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    for condition in [
        format!("user = {user}"),
        format!("group = {group}"),
        format!("program = \"{program}\""),
        "program = \"test\"".to_owned(),
        "container = \"/*\"".to_owned(),
        "address = \"127.0.0.0/8\"".to_owned(),
        "namespace = \"host\"".to_owned(),
    ] {
        assert!(is_denied(&deny(&condition)), "{condition}");
    }
    for condition in [
        format!("user = {}", user + 1),
        format!("group = {}", group + 1),
        format!("program = \"{program}2\""),
        "container = \"/nowhere/*\"".to_owned(),
        "address = \"10.0.0.0/8\"".to_owned(),
        "namespace = \"other\"".to_owned(),
        "across = \"user\"".to_owned(),
    ] {
        assert!(!is_denied(&deny(&condition)), "{condition}");
    }
}

#[test]
fn a_rule_keeps_one_program_on_tcp_and_the_list_says_why() {
    let daemon = Fixture::with(&deny("program = \"secret\""));
    let clients = [daemon.client(), Client::hello(&daemon.name, "secret")];
    let ends = connection();
    assert_eq!(answers(&clients, &ends), [Some(Reason::Policy); 2]);
    let rows = clients[0].rows();
    assert_eq!((rows.len(), rows[0].status), (1, Reason::Policy as u8));
}

#[test]
fn a_rule_may_keep_what_crosses_namespaces_on_tcp_by_the_number_of_one() {
    let test = "a_rule_may_keep_what_crosses";
    let Ok(place) = Namespace::new() else {
        return skip(&format!("{test}: no network namespaces"));
    };
    let number = place.within(|| {
        let link = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let link = link.to_str().unwrap().to_owned();
        link.trim_start_matches("net:[")
            .trim_end_matches(']')
            .to_owned()
    });
    let file = file(test);
    let daemon = Fixture::crossing(&deny(&format!("namespace = {number}")), &file);
    let inside = with_memory(place.within(|| [(); 2].map(|()| Client::at(&file))));
    let ends = place.within(connection);
    assert_eq!(answers(&inside, &ends), [Some(Reason::Policy); 2]);
    let outside = with_memory([daemon.client(), daemon.client()]);
    assert_eq!(answers(&outside, &connection()), [None; 2]);
}

/// A configuration that tests change.
fn written(test: &str, text: &str) -> PathBuf {
    let name = format!("{test}-{}.toml", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Of a connection's end: whether it may come back to its rings.
fn may_return(client: &Client, end: &TcpStream) -> bool {
    let mut question = Message::new(Kind::Alone);
    (question.fd, question.cookie) = (end.as_raw_fd(), socket_cookie(end).unwrap());
    (question.generation, question.index) = (1, 1);
    client.send(&question, None);
    client.expect(Kind::Alone).0.status == 0
}

#[test]
fn what_a_new_policy_forbids_goes_back_to_tcp_and_stays_there() {
    let test = "what_a_new_policy_forbids";
    if !may_copy_descriptors(test) {
        return;
    }
    let path = written(test, "");
    let daemon = Fixture::reading(&path);
    let (clients, [near, far]) = paired(&daemon);
    assert!(may_return(&clients[0], &near));
    let port = far.local_addr().unwrap().port();
    std::fs::write(&path, deny(&format!("port = {port}"))).unwrap();
    daemon.reload();
    for (client, end) in clients.iter().zip([&near, &far]) {
        let (message, _) = client.expect(Kind::Downgrade);
        let (cookie, policy) = (socket_cookie(end).unwrap(), Reason::Policy as u8);
        assert_eq!((message.cookie, message.status), (cookie, policy));
        assert!(!may_return(client, end));
    }
    // Others go on, and new ones are paired.
    assert_eq!(answers(&clients, &connection()), [None; 2]);
    std::fs::write(&path, "").unwrap();
    daemon.reload();
    assert!(may_return(&clients[0], &near));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_that_is_not_valid_changes_nothing() {
    let path = written("a_file_that_is_not_valid", &deny("program = \"secret\""));
    let daemon = Fixture::reading(&path);
    let (clients, [near, far]) = paired(&daemon);
    std::fs::write(&path, deny("port = 70000")).unwrap();
    daemon.reload();
    for client in &clients {
        client.sync();
        client.expect_nothing();
    }
    let secret = [daemon.client(), Client::hello(&daemon.name, "secret")];
    assert_eq!(answers(&secret, &connection()), [Some(Reason::Policy); 2]);
    let ends = [near.local_addr().unwrap(), far.local_addr().unwrap()];
    // The connection is as it was.
    assert_eq!(told(&daemon.client(), &wish(ends)), 2);
    std::fs::remove_file(path).unwrap();
}

/// Runs the program until it ends: its status and what it says.
fn shuntd(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shuntd"));
    let ended = command.args(arguments).output().unwrap();
    let [out, err] = [ended.stdout, ended.stderr].map(|said| String::from_utf8(said).unwrap());
    (ended.status.code(), out, err)
}

#[test]
fn check_says_whether_a_file_is_valid_and_where_it_is_not() {
    let path = written("check_says", &deny("port = 5432"));
    let name = path.to_str().unwrap();
    let (status, said, _) = shuntd(&["--check", name]);
    assert_eq!(
        (status, said),
        (Some(0), format!("{name}: valid, 1 rule\n"))
    );
    std::fs::write(&path, deny("user = \"nobody at all\"")).unwrap();
    let (status, _, error) = shuntd(&["--check", name]);
    assert_eq!(status, Some(1));
    assert!(error.contains(&format!("{name}:3:8: ")), "{error}");
    std::fs::remove_file(&path).unwrap();
    let (status, _, error) = shuntd(&["--check", name]);
    assert!(status == Some(1) && error.contains(name), "{error}");
}

#[test]
fn check_names_the_rule_that_denies_a_program() {
    let path = written("check_names", &deny("program = \"redis*\""));
    let ask = |comm| {
        shuntd(&[
            "--check",
            path.to_str().unwrap(),
            "--program",
            "7",
            "/usr/bin/it",
            comm,
        ])
    };
    let (status, said, _) = ask("redis-server");
    assert_eq!(status, Some(3));
    assert!(
        said.ends_with("the rule at line 1 denies redis-server\n"),
        "{said}"
    );
    assert_eq!(ask("nginx").0, Some(0));
    assert_eq!(ask("").0, Some(0));
    std::fs::write(&path, deny("")).unwrap();
    let (status, said, _) = ask("");
    assert_eq!(status, Some(3));
    assert!(said.ends_with("denies all of user 7\n"), "{said}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_program_reads_a_users_configuration_again_at_a_sighup() {
    let home =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("home-{}", std::process::id()));
    let path = home.join("shunt/shunt.toml");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "").unwrap();
    let name = format!("shuntd-test/{}/sighup", std::process::id());
    let mut command = Command::new(env!("CARGO_BIN_EXE_shuntd"));
    command
        .args(["--name", &name, "--ready-fd", "7"])
        .env("XDG_CONFIG_HOME", &home);
    let mut child = ready(command);
    let clients = [(); 2].map(|()| Client::hello(&name, "test"));
    let (clients, _ends) = paired_with(clients, connection());
    std::fs::write(&path, deny("")).unwrap();
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::HUP).unwrap();
    for client in &clients {
        assert_eq!(
            client.expect(Kind::Downgrade).0.status,
            Reason::Policy as u8
        );
    }
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    std::fs::remove_dir_all(home).unwrap();
}

/// Starts the program by a shell that makes its standard output descriptor 7, and waits until it serves.
fn ready(command: Command) -> std::process::Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" 7>&1 >/dev/null", "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    shell.envs(
        command
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    shell.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    assert_eq!(said, b"1");
    child
}
