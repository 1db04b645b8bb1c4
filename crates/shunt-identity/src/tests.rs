//! What is attached, and that nothing is left of it.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

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
    let link = identities._link.as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{link}")).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("prog_id:"));
    line.unwrap().trim().parse().unwrap()
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

/// A child that one test starts has the descriptors of another test until it executes its program.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn nothing_is_attached_after_the_last_one_is_dropped() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
