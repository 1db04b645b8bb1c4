//! What is attached, and that nothing is left of it; and what takes a hand in the maps.

#[path = "../tests/common/socket.rs"]
mod socket;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};

use super::*;
use crate::bpf::query::attached;

/// Says that a test is skipped where the kernel attaches nothing, also where the harness captures what
/// tests print.
fn attach_or_skip(test: &str) -> Option<Identities> {
    match Identities::attach(4096) {
        Ok(identities) => Some(identities),
        Err(why @ (Unavailable::NoCgroup | Unavailable::NotPermitted)) => {
            let _ = writeln!(io::stderr(), "skipped: {test}: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

fn is_attached(program: u32) -> bool {
    let root = cgroup::root().unwrap();
    attached(root.as_fd()).contains(&program)
}

/// The number of the program of a link, as the kernel tells it of the descriptor.
fn program_of(identities: &Identities) -> u32 {
    let link = identities.attachment._link.as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{link}")).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("prog_id:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn an_acceptor_follows_its_connector_soon() {
    let at = |side, milliseconds| Identity {
        netns: 1,
        side,
        local: ([127, 0, 0, 1], 1).into(),
        remote: ([127, 0, 0, 1], 2).into(),
        sent: 1,
        received: 2,
        established: Duration::from_millis(milliseconds),
    };
    let connector = at(Side::Connector, 5000);
    let acceptor = |milliseconds| at(Side::Acceptor, milliseconds);
    for (then, is_one) in [(4999, false), (5000, true), (7000, true), (7001, false)] {
        assert_eq!(
            is_one_handshake(&connector, &acceptor(then)),
            is_one,
            "{then}"
        );
        assert_eq!(
            is_one_handshake(&acceptor(then), &connector),
            is_one,
            "{then}"
        );
    }
    assert!(!is_one_handshake(&connector, &connector));
}

/// The true connector's record had to go for newer ones. (The other forgeries are in `tests/forged.rs`.)
#[test]
fn a_connector_that_is_later_than_its_acceptor_has_no_mirror() {
    let name = "a_connector_that_is_later_than_its_acceptor_has_no_mirror";
    let Some(identities) = attach_or_skip(name) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (connector, acceptor) = socket::connection(&listener);
    let known = |cookie| identities.of(cookie).unwrap().unwrap();
    let (cookie, acceptor) = (socket::cookie(&connector), known(socket::cookie(&acceptor)));
    let connector = known(cookie);
    assert_eq!(
        identities.mirror(&acceptor).unwrap(),
        Some((cookie, connector))
    );
    identities
        .attachment
        .pairs
        .delete(&Numbers::of(&connector))
        .unwrap();
    identities.attachment.ends.delete(&cookie).unwrap();
    let forged = socket::forge(connector.sent, connector.received);
    let forged = known(socket::cookie(&forged));
    assert_eq!(Numbers::of(&forged), Numbers::of(&connector));
    assert_eq!(identities.mirror(&forged).unwrap(), None);
    assert_eq!(identities.mirror(&acceptor).unwrap(), None);
}

/// What the verifier says of it is the reason that a person gets to see.
#[test]
fn a_program_that_the_kernel_refuses_says_why() {
    let name = "a_program_that_the_kernel_refuses_says_why";
    if attach_or_skip(name).is_none() {
        return;
    }
    let mut code = assembly::Assembly::default();
    code.exit(); // without a result
    let why = bpf::load(&code.finish()).unwrap_err();
    assert!(why.to_string().ends_with(": R0 !read_ok"), "{why}");
}

#[test]
fn nothing_is_attached_after_the_last_one_is_dropped() {
    let Some(one) = attach_or_skip("nothing_is_attached_after_the_last_one_is_dropped") else {
        return;
    };
    let other = Identities::attach(64).unwrap();
    let ids = [program_of(&one), program_of(&other)];
    let are_there = || ids.map(is_attached);
    assert_eq!(are_there(), [true, true]);
    drop(one);
    assert_eq!(are_there(), [false, true]);
    drop(other);
    assert_eq!(are_there(), [false, false]);
}

#[test]
fn nothing_is_attached_after_a_process_is_killed() {
    const VICTIM: &str = "SHUNT_TEST_IS_KILLED";
    if std::env::var_os(VICTIM).is_some() {
        return hold_one();
    }
    if attach_or_skip("nothing_is_attached_after_a_process_is_killed").is_none() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("tests::nothing_is_attached_after_a_process_is_killed")
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let id = lines.map_while(Result::ok).find_map(|line| {
        let (_, id) = line.split_once("attached as ")?;
        id.parse::<u32>().ok()
    });
    let id = id.unwrap();
    assert!(is_attached(id));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!is_attached(id));
}

/// What the process does that is killed.
fn hold_one() {
    let identities = Identities::attach(64).unwrap();
    println!("attached as {}", program_of(&identities));
    let _ = io::stdin().read_line(&mut String::new());
}
