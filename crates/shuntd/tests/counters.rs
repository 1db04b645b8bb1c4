//! Counters regions: the line of a client that dies, and regions that are none.

mod common;

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use common::region::{MANY, SEALS, append, lines_with, region, show};
use common::{Client, Fixture, WATCHDOG, may_copy_descriptors};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::SealFlags;
use rustix::process::{Gid, Uid};
use shunt_abi::counters::{RECORDS_AT, SIZE};
use shunt_abi::message::{Kind, Message, Role};

const DAEMON: &str = "SHUNTD_TEST_COUNTERS_OF";
const FILE: &str = "SHUNTD_TEST_COUNTERS_FILE";
const ROAD: &str = "SHUNTD_TEST_COUNTERS_ROAD";

fn good(written: u32, used: u32) -> OwnedFd {
    region(written, used, SIZE as u64, SEALS)
}

/// Not a test by itself: the client that the others kill.
#[test]
fn child() {
    let (Ok(daemon), Ok(path), Ok(road)) = (
        std::env::var(DAEMON),
        std::env::var(FILE),
        std::env::var(ROAD),
    ) else {
        return;
    };
    let region = match road.as_str() {
        "written" => good(1, 1),
        "many" => good(0, MANY as u32),
        "absurd" => good(0, u32::MAX),
        _ => good(0, 1),
    };
    let file = append(&path);
    if road == "other" {
        become_other();
    }
    if matches!(road.as_str(), "unheard" | "unread") {
        let client = Client::raw(&daemon);
        client.say_hello("child");
        if road == "unread" {
            let mut answer = [PollFd::new(&client.socket, PollFlags::IN)];
            rustix::event::poll(&mut answer, None).unwrap();
        }
        show(&client, &region, file);
        println!("ready");
        std::process::abort();
    }
    let client = Client::hello(&daemon, "child");
    show(&client, &region, file);
    client.sync();
    let again = match road.as_str() {
        "back" => {
            drop(client);
            let client = Client::hello(&daemon, "child");
            show(&client, &region, append(&path));
            client.sync();
            Some(client)
        }
        "silent" => {
            drop(client);
            None
        }
        _ => Some(client),
    };
    println!("ready");
    std::thread::sleep(WATCHDOG);
    drop(again);
}

/// A user, and a group, that nobody has.
const OTHER: (u32, u32) = (54321, 54322);

/// This thread acts as that user.
fn become_other() {
    let (user, group) = (Uid::from_raw(OTHER.0), Gid::from_raw(OTHER.1));
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(group, group, group).unwrap();
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
}

/// A file of that user's in root's group, whose set-group-ID bit a write by anybody who is
/// not of that group clears.
fn file_of_other(path: &str) {
    let _ = std::fs::remove_file(path);
    append(path);
    std::os::unix::fs::chown(path, Some(OTHER.0), Some(0)).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o2660)).unwrap();
}

fn has_group_bit(path: &str) -> bool {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o2000 != 0
}

#[test]
fn a_line_is_written_with_its_users_rights_and_no_more() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can be somebody else.
    }
    let path = format!("{}/rights", env!("CARGO_TARGET_TMPDIR"));
    file_of_other(&path);
    assert!(has_group_bit(&path));
    let mut file = append(&path);
    let written = std::thread::spawn(move || {
        become_other();
        file.write_all(b"\n").unwrap();
    });
    written.join().unwrap();
    if has_group_bit(&path) {
        eprintln!("skipped: this kernel does not tell members of a group from others");
        return;
    }
    file_of_other(&path);
    let daemon = Fixture::host();
    let pid = kill(&daemon, &path, "other");
    lines_with(&path, pid);
    assert!(!has_group_bit(&path));
    std::fs::remove_file(path).unwrap();
}

/// Kills such a client; its process id.
fn kill(daemon: &Fixture, path: &str, road: &str) -> u32 {
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .envs([(DAEMON, daemon.name.as_str()), (FILE, path), (ROAD, road)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("ready")));
    child.kill().unwrap();
    child.wait().unwrap();
    child.id()
}

#[test]
fn a_client_that_is_killed_has_one_line_unless_it_has_written_it() {
    let daemon = Fixture::start();
    let path = format!("{}/counters", env!("CARGO_TARGET_TMPDIR"));
    let _ = std::fs::remove_file(&path);
    let mut pids = Vec::new();
    for road in ["stay", "back", "silent", "many", "absurd"] {
        let total = match road {
            "many" | "absurd" => MANY,
            _ => 1,
        };
        let silent = kill(&daemon, &path, "written");
        let pid = kill(&daemon, &path, road);
        pids.push(pid);
        let lines = lines_with(&path, pid);
        assert_eq!(lines.len(), pids.len(), "{road}, {silent}: {lines:?}");
        let expected = format!(
            "{{\"pid\":{pid},\"comm\":\"we\\\"ird\",\"connections\":{{\"total\":{total},\
             \"shunted\":{total},\"downgraded\":0}},\"reasons\":{{}},\
             \"tx\":{{\"ring_bytes\":{},\"kernel_bytes\":0}},\"rx\":{{\"ring_bytes\":0,\"kernel_bytes\":0}},\"calls\":{{\"user\":0,\"kernel\":0}},\
             \"doorbells\":{{\"sent\":0,\"received\":0}},\"sleeps\":0}}",
            5 * total
        );
        assert_eq!(lines.last(), Some(&expected), "{road}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_client_that_ends_before_it_is_heard_or_reads_has_its_line() {
    let path = format!("{}/unheard", env!("CARGO_TARGET_TMPDIR"));
    let _ = std::fs::remove_file(&path);
    let (begin, may_begin) = mpsc::channel();
    let daemon = Fixture::late(may_begin);
    let pid = kill(&daemon, &path, "unheard");
    begin.send(()).unwrap();
    lines_with(&path, pid);
    // The daemon may be before, at or behind what it says at last.
    for _ in 0..20 {
        let pid = kill(&daemon, &path, "unread");
        lines_with(&path, pid);
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_is_no_region_or_no_file_to_append_to_ends_the_client() {
    let daemon = Fixture::start();
    let pipe = rustix::pipe::pipe().unwrap().0;
    for file in [
        region(0, 1, 4096, SEALS),
        region(0, 1, SIZE as u64 + 4096, SEALS),
        region(0, 1, SIZE as u64, SealFlags::GROW),
        region(0, 1, SIZE as u64, SealFlags::SHRINK),
        common::arena_file(SIZE as u64, SEALS),
        pipe,
    ] {
        let client = daemon.client();
        client.send(&Message::new(Kind::Counters), Some(file.as_fd()));
        client.expect_closed();
    }
    let client = daemon.client();
    client.send(&Message::new(Kind::Counters), None);
    client.expect_closed();
    let client = daemon.client();
    let file = File::open("/etc/passwd").unwrap();
    client.send(&Message::new(Kind::Counters), Some(good(0, 1).as_fd()));
    client.send(&Message::new(Kind::Statistics), Some(file.as_fd()));
    client.expect_closed();
    daemon.client().sync();
}

#[test]
fn a_connection_that_was_closed_without_a_word_so_far_is_not_listed() {
    // By its address it is found while a child that another test forks has a copy.
    if !may_copy_descriptors("a connection that was closed without a word") {
        return;
    }
    let daemon = Fixture::start();
    let client = daemon.client();
    client.send(&Message::new(Kind::Counters), Some(good(0, 0).as_fd()));
    let (near, _far) = common::connection();
    client.claim(&near, Role::Acceptor, 0);
    assert_eq!(client.rows().len(), 1);
    drop(near);
    assert!(client.rows().is_empty());
}

#[test]
fn a_region_full_of_garbage_hurts_nobody() {
    let daemon = Fixture::start();
    let file = region(0, u32::MAX, SIZE as u64, SealFlags::empty());
    let garbage = vec![0xa5_u8; 1 << 20];
    rustix::io::pwrite(&file, &garbage, RECORDS_AT as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
    let client = daemon.client();
    client.send(&Message::new(Kind::Counters), Some(file.as_fd()));
    client.sync();
    assert!(daemon.client().rows().is_empty());
}
