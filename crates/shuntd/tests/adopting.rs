//! Claims of sockets that other processes have made.

mod common;

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use common::region::{region_with, show_region};
use common::{Client, Fixture, connection, may_copy_descriptors, named};
use rustix::process::{Uid, geteuid};
use shunt_abi::Reason;
use shunt_abi::message::{FLAG_ADOPTED, FLAG_AGAIN, FLAG_USED, Kind, Role};

/// A process that has a copy of the socket and does nothing.
fn holder(socket: &TcpStream) -> Child {
    let copy = OwnedFd::from(socket.try_clone().unwrap());
    let mut sleep = Command::new("sleep");
    sleep.arg("60").stdin(Stdio::from(copy)).spawn().unwrap()
}

fn adopt(client: &Client, socket: &TcpStream, copies: u32) -> u64 {
    let mut claim = named(socket, Role::Acceptor, FLAG_ADOPTED);
    claim.index = copies;
    client.send(&claim, None);
    claim.cookie
}

/// Two clients with two arenas each.
fn two(daemon: &Fixture) -> [Client; 2] {
    [daemon.client(), daemon.client()].map(|client| {
        client.spare(1);
        client.spare(2);
        client
    })
}

/// A connection whose one end has been claimed; and so has its other, of which another
/// process has a copy.
fn held_by_another(daemon: &Fixture) -> ([Client; 2], [TcpStream; 2], Child) {
    let [a, b] = two(daemon);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    let other = holder(&far);
    adopt(&b, &far, 1);
    ([a, b], [near, far], other)
}

#[test]
fn a_socket_that_one_process_has_is_paired() {
    let daemon = Fixture::start();
    let [a, b] = two(&daemon);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    adopt(&b, &far, 1);
    assert_eq!(a.expect(Kind::Paired).0.slot, b.expect(Kind::Paired).0.slot);
}

#[test]
fn a_socket_of_which_another_process_has_a_copy_is_not() {
    let daemon = Fixture::start();
    let ([a, b], [_near, far], mut other) = held_by_another(&daemon);
    let (refusal, _) = b.expect(Kind::Unpaired);
    assert_eq!(refusal.status, Reason::Held as u8);
    other.kill().unwrap();
    other.wait().unwrap();
    adopt(&b, &far, 1);
    b.expect(Kind::Paired);
    a.expect(Kind::Paired);
}

#[test]
fn a_claim_waits_a_while_for_the_one_who_handed_it_on() {
    let daemon = Fixture::start();
    let ([a, b], [_near, far], mut other) = held_by_another(&daemon);
    b.sync();
    other.kill().unwrap();
    other.wait().unwrap();
    // Within the daemon's patience, or after it on a slow machine.
    let (answer, _) = b.receive().unwrap();
    if answer.kind() == Some(Kind::Unpaired) {
        adopt(&b, &far, 1);
        b.expect(Kind::Paired);
    }
    a.expect(Kind::Paired);
}

#[test]
fn copies_that_the_claimant_does_not_know_of_count_as_anothers() {
    let daemon = Fixture::start();
    let [a, b] = two(&daemon);
    let (near, far) = connection();
    let _copy = far.try_clone().unwrap();
    a.claim(&near, Role::Connector, 0);
    adopt(&b, &far, 1);
    assert_eq!(b.expect(Kind::Unpaired).0.status, Reason::Held as u8);
    adopt(&b, &far, 2);
    b.expect(Kind::Paired);
    a.expect(Kind::Paired);
}

#[test]
fn an_end_whose_peer_was_handed_on_waits_for_the_next_holder() {
    let daemon = Fixture::start();
    let [a, b] = two(&daemon);
    let c = daemon.client();
    c.spare(1);
    let (near, far) = connection();
    let near_cookie = a.claim(&near, Role::Connector, 0);
    let far_cookie = b.claim(&far, Role::Acceptor, 0);
    let (first, _) = a.expect(Kind::Paired);
    b.expect(Kind::Paired);
    a.expect(Kind::NeedSpare);
    // b hands it on to c, unused; a has seen that in b's slot.
    b.report(far_cookie, Reason::Passed as u8);
    a.claim_as(&near, near_cookie, Role::Connector, FLAG_AGAIN);
    adopt(&c, &far, 1);
    let (second, _) = a.expect(Kind::Paired);
    c.expect(Kind::Paired);
    assert_ne!(
        (first.link, first.generation),
        (second.link, second.generation)
    );
}

#[test]
fn a_socket_that_another_users_process_made_is_not_paired() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can run the daemon as another user");
        return;
    }
    if !may_copy_descriptors("a socket that another user's process made") {
        return;
    }
    let nobody = Uid::from_raw(65534);
    let daemon = Fixture::of_user(nobody);
    let [a, b] = two(&daemon);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    adopt(&b, &far, 1);
    assert_eq!(b.expect(Kind::Unpaired).0.status, Reason::Held as u8);
    let its_own = std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(None, nobody, None).unwrap();
        connection()
    });
    let (near, far) = its_own.join().unwrap();
    a.claim(&near, Role::Connector, 0);
    adopt(&b, &far, 1);
    b.expect(Kind::Paired);
    a.expect(Kind::Paired);
}

#[test]
fn who_waits_is_told_when_the_other_end_is_let_go_unused() {
    let daemon = Fixture::start();
    let [a, b] = two(&daemon);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    let far_cookie = b.claim(&far, Role::Acceptor, 0);
    let (paired, _) = a.expect(Kind::Paired);
    a.expect(Kind::NeedSpare);
    b.release(far_cookie);
    let (left, _) = a.expect(Kind::Unpaired);
    assert_eq!(left.status, Reason::PeerLeft as u8);
    assert_eq!(
        (left.link, left.slot, left.generation),
        (paired.link, paired.slot, paired.generation)
    );
}

#[test]
fn who_uses_it_in_shared_memory_is_not_told() {
    let daemon = Fixture::start();
    let [a, b] = two(&daemon);
    let (near, far) = connection();
    let near_cookie = a.claim(&near, Role::Connector, 0);
    let far_cookie = b.claim(&far, Role::Acceptor, 0);
    a.expect(Kind::Paired);
    a.expect(Kind::NeedSpare);
    a.report(near_cookie, 0);
    a.sync();
    b.release(far_cookie);
    b.sync();
    a.expect_nothing();
}

#[test]
fn nobody_is_told_of_the_end_of_what_both_have_used() {
    let daemon = Fixture::start();
    let [a, b] = two(&daemon);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    let far_cookie = b.claim(&far, Role::Acceptor, 0);
    a.expect(Kind::Paired);
    a.expect(Kind::NeedSpare);
    b.release_used(far_cookie);
    b.sync();
    a.expect_nothing();
}

#[test]
fn who_passes_itself_what_it_has_used_does_not_get_the_same_slot_again() {
    let daemon = Fixture::start();
    let is_kept = |use_it: &dyn Fn(&Client, &TcpStream, u64)| {
        let [a, b] = two(&daemon);
        let (near, far) = connection();
        a.claim(&near, Role::Connector, 0);
        let far_cookie = b.claim(&far, Role::Acceptor, 0);
        b.expect(Kind::Paired);
        b.expect(Kind::NeedSpare);
        use_it(&b, &far, far_cookie);
        // It has closed it without a word, as a relative may use the slot still.
        adopt(&b, &far, 1);
        let (refusal, _) = b.expect(Kind::Unpaired);
        assert_eq!(refusal.status, Reason::Passed as u8);
        // So what it closes now is not the slot.
        b.release(far_cookie);
        adopt(&b, &far, 1);
        assert_eq!(b.expect(Kind::Unpaired).0.status, Reason::Passed as u8);
    };
    is_kept(&|b, _, cookie| {
        b.report(cookie, 0);
        b.report(cookie, Reason::Inherited as u8);
    });
    is_kept(&|b, far, cookie| {
        let mut report = named(far, Role::Acceptor, FLAG_USED);
        (report.kind, report.cookie) = (Kind::Report as u16, cookie);
        report.status = Reason::Inherited as u8;
        b.send(&report, None);
    });
    is_kept(&|b, far, cookie| show_region(b, &region_with(far, cookie, Role::Acceptor)));
}
