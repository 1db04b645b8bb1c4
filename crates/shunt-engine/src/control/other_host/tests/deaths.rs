//! The process at the other end dies, or says its end: what this library's end finds, and what it sends again.

use std::sync::atomic::Ordering;

use libc::iovec;
use shunt_abi::message::{Kind, Message};

use super::played_end::Both;
use super::{GENERATION, SLOT};
use crate::stream;
use crate::{Outcome, reach, sys};

/// The other end's process ends without a word, and the daemon says how far it had come.
fn die(both: &mut Both, link: u64) {
    let own = both.scene.peer.lines.own;
    let bytes = [&own.progress.bytes, &own.output.bytes];
    let (wire, of_peer) = both.link();
    of_peer.abandon(wire);
    sys::shutdown(both.scene.fds[1], libc::SHUT_WR).unwrap();
    let mut died = Message::new(Kind::Died);
    (died.cookie, died.fd) = (both.conn.socket.cookie(), both.scene.fds[0]);
    (died.link, died.slot, died.generation) = (link, SLOT, GENERATION);
    died.bytes[0] = bytes.map(|count| count.load(Ordering::Relaxed));
    both.scene.hear(&died);
}

/// What this end finds of its stream.
fn found(both: &Both) -> Outcome {
    let mut byte = 0_u8;
    let part = iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: there is room for it.
    unsafe { stream::receive(&both.conn, &[part], libc::MSG_DONTWAIT) }
}

fn tells(both: &Both) -> u32 {
    stream::mask(&both.conn, libc::EPOLLIN as u32, true)
}

#[test]
fn a_peer_that_has_died_having_read_everything_gets_nothing_again_and_is_no_reset() {
    let mut both = Both::new(300);
    both.enter();
    both.send(5000);
    both.finish();
    assert!(both.conn.in_flight() > 0);
    die(&mut both, 300);
    reach::progress();
    stream::answer_recall(&both.conn);
    let ends = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
    assert_eq!(tells(&both) & ends, libc::EPOLLRDHUP as u32);
    assert_eq!(found(&both), Outcome::Done(0));
    let mut byte = 0;
    let came = sys::recv(both.scene.fds[1], &raw mut byte, 1, libc::MSG_DONTWAIT);
    assert_eq!(came, Err(libc::EAGAIN));
}

#[test]
fn a_peer_that_has_died_with_bytes_unread_is_a_reset() {
    for calls_first in [false, true] {
        let mut both = Both::new(310 + u64::from(calls_first));
        both.enter();
        both.finish();
        both.send(5000);
        die(&mut both, 310 + u64::from(calls_first));
        if calls_first {
            assert_ne!(tells(&both) & libc::EPOLLERR as u32, 0);
        }
        assert_eq!(found(&both), Outcome::Fail(libc::ECONNRESET));
    }
}

#[test]
fn a_peer_that_says_its_end_having_read_everything_gets_nothing_again() {
    let mut both = Both::new(320);
    both.enter();
    both.send(5000);
    both.finish();
    let (wire, link) = both.link();
    link.end(wire, SLOT);
    link.abandon(wire);
    reach::progress();
    assert!(!stream::recall_is_due(&both.conn) && both.conn.in_flight() == 0);
    // It may go on receiving.
    both.send(100);
    both.finish();
}

#[test]
fn of_a_peer_of_which_nobody_says_anything_nothing_is_believed() {
    let mut both = Both::new(330);
    both.enter();
    both.send(5000);
    let (wire, link) = both.link();
    link.abandon(wire);
    sys::shutdown(both.scene.fds[1], libc::SHUT_WR).unwrap();
    reach::progress();
    stream::answer_recall(&both.conn);
    assert!(!both.conn.is_on_ring());
    both.finish();
    let in_vain = both.conn.pair.link.is_waited_for_in_vain();
    assert!(in_vain.load(Ordering::Relaxed));
}
