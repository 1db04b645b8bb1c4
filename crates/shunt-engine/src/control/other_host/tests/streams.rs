//! Both streams of a connection, from TCP to the rings and back.

use libc::iovec;
use shunt_abi::Reason;
use shunt_rdma::resume::BYTES;
use shunt_shm::slot::{self, Way};

use super::played_end::Both;
use super::{GENERATION, SLOT};
use crate::stream::{self, leave_ring};
use crate::{Outcome, reach, sys};

#[test]
fn what_is_sent_by_rings_arrives() {
    let mut both = Both::new(200);
    both.enter();
    for n in [1, 8, 100, 3000, 40_000] {
        assert_eq!(both.send(n), n);
        assert_eq!(both.send_there(n), n);
        both.finish();
    }
    assert!(both.by_rings.iter().all(|&n| n > 43_000));
    assert!(both.conn.is_on_ring() && both.out_ring);
}

#[test]
fn rings_go_round_as_both_sides_say_how_far_they_have_read() {
    let mut both = Both::new(210);
    both.enter();
    for _ in 0..300 {
        both.send(9000);
        both.send_there(9000);
        both.finish();
    }
    assert!(both.by_rings.iter().all(|&n| n >= 2_700_000));
}

#[test]
fn a_sender_that_leaves_its_ring_sends_again_what_is_unread() {
    let mut both = Both::new(220);
    both.enter();
    both.send(5000);
    leave_ring(&both.conn, Reason::Requested);
    assert!(!both.conn.is_on_ring());
    both.send(100);
    both.send_there(5000);
    both.receive(2000);
    both.leave_there();
    both.send_there(100);
    both.finish();
}

#[test]
fn what_is_unread_is_counted_across_the_record_by_which_the_peer_has_left() {
    let mut both = Both::new(340);
    both.enter();
    both.send_there(5000);
    both.receive(1000);
    assert_eq!(stream::unread(&both.conn), 4000);
    both.leave_there();
    both.send_there(100);
    // The kernel may keep it back behind the record until that is acknowledged.
    let all = Ok(BYTES as i32 + 5000 + 100);
    while sys::ioctl_int(both.conn.fd, libc::FIONREAD) != all {}
    assert_eq!(stream::unread(&both.conn), 4100);
    both.receive(3000);
    assert_eq!(stream::unread(&both.conn), 1100);
    both.finish();
}

#[test]
fn a_full_ring_is_kept_while_the_peer_reads() {
    let mut both = Both::new(232);
    both.enter();
    for _ in 0..5 {
        while both.send(10_000) > 0 {}
        while both.receive_there() > 0 {}
    }
    assert!(both.conn.is_on_ring() && both.by_rings[0] > 1_000_000);
    both.finish();
}

#[test]
fn a_full_ring_of_which_nobody_reads_goes_to_tcp() {
    let mut both = Both::new(230);
    both.enter();
    while both.conn.is_on_ring() {
        both.send(10_000);
    }
    both.send(10_000);
    both.finish();
}

#[test]
fn what_the_peer_still_says_of_a_life_that_is_over_is_nobodys() {
    let mut both = Both::new(236);
    both.enter();
    while both.send(10_000) > 0 {}
    while both.receive_there() > 0 {}
    // The slot begins the life of another connection, as the daemon has said, and credits of the former one come.
    let pair = *both.conn.pair;
    reach::close(pair.link.own_number(), SLOT);
    pair.own.begin(slot::first_life(GENERATION + 1), pair.out);
    reach::progress();
    assert!(!both.scene.peer.is_parted());
}

#[test]
fn bytes_that_were_put_into_the_ring_and_do_not_go_out_go_by_tcp() {
    let mut both = Both::new(240);
    both.enter();
    let (wire, link) = both.link();
    link.abandon(wire);
    assert_eq!(both.send(100), 100);
    assert!(!both.conn.is_on_ring());
    both.finish();
}

#[test]
fn a_connection_whose_peer_has_proposed_its_ring_comes_home_once_the_peer_has_heard_that() {
    let mut both = Both::new(250);
    both.send_there(10);
    both.enter_there();
    (0..2).for_each(|_| {
        both.receive(100);
    });
    assert_eq!(both.conn.way_in(), Way::Ring);
    assert!(!stream::downgrade(&both.conn, Reason::Requested));
    both.progress_there();
    assert!(stream::downgrade(&both.conn, Reason::Requested));
    both.send_there(100);
    both.send(100);
    both.finish();
}

#[test]
fn a_byte_that_may_begin_a_record_is_taken_once_its_sender_says_that_it_stays_on_tcp() {
    let mut both = Both::new(280);
    both.send_there(10);
    both.enter_there();
    (0..2).for_each(|_| {
        both.receive(100);
    });
    let tag = both.link().1.record(SLOT, 0).unwrap()[0];
    sys::write(both.scene.fds[1], &raw const tag, 1).unwrap();
    let receive = || {
        let mut byte = 0_u8;
        let part = iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        // SAFETY: there is room for it.
        let received = unsafe { stream::receive(&both.conn, &[part], libc::MSG_DONTWAIT) };
        (received, byte)
    };
    assert_eq!(receive().0, Outcome::Fail(libc::EAGAIN));
    let peer = &mut both.scene.peer;
    let (wire, link) = peer.port.link(peer.queue).unwrap();
    assert!(link.leave(SLOT).is_none());
    link.flush(wire);
    assert_eq!(receive(), (Outcome::Done(1), tag));
}

#[test]
fn a_proposal_is_answered_only_once_what_came_by_tcp_before_it_is_looked_for_there() {
    let mut both = Both::new(290);
    both.send_there(10);
    both.enter_there();
    (0..2).for_each(|_| {
        both.receive(100);
    });
    assert_eq!(both.conn.way_in(), Way::Ring);
    both.send_there(1);
    both.enter_there();
    reach::progress();
    both.progress_there();
    assert_eq!(both.link().1.agreed(SLOT), None);
    both.receive(100);
    both.progress_there();
    let given = both.given;
    assert_eq!(both.link().1.agreed(SLOT), Some(given));
    both.enter_there();
    both.send_there(100);
    both.finish();
}

#[test]
fn a_connection_in_both_rings_comes_home_and_tcp_brings_what_is_unread() {
    let mut both = Both::new(260);
    both.enter();
    both.send_there(5000);
    both.receive(1000);
    assert!(!stream::downgrade(&both.conn, Reason::Requested));
    both.progress_there();
    both.leave_there();
    // The kernel may keep it back behind the record until that is acknowledged.
    while !stream::downgrade(&both.conn, Reason::Requested) {}
    let queued = sys::ioctl_int(both.conn.fd, libc::FIONREAD);
    assert_eq!(queued, Ok(4000));
    both.send(100);
    both.finish();
}

#[test]
fn what_was_published_before_an_end_arrives_and_nothing_comes_by_tcp_but_the_end() {
    let mut both = Both::new(270);
    both.enter();
    both.send(5000);
    let taken = both.taken;
    assert_eq!(
        stream::shutdown(&both.conn, libc::SHUT_WR),
        Outcome::Done(0)
    );
    both.finish();
    let mut byte = 0;
    let fd = both.scene.fds[1];
    assert_eq!(sys::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT), Ok(0));
    assert_eq!(both.taken, taken);
}

/// A random number below `most`.
fn below(state: &mut u64, most: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % most
}

/// One thing happens, chosen at random.
fn step(both: &mut Both, random: &mut u64, may_break: bool) {
    match below(random, if may_break { 100 } else { 98 }) {
        0..25 => {
            let length = 1 + below(random, 4000) as usize;
            both.send(length);
        }
        25..45 => {
            let length = 1 + below(random, 4000) as usize;
            if both.backlog.is_empty() {
                both.send_there(length);
            }
        }
        45..60 => {
            both.receive(1 + below(random, 8000) as usize);
        }
        60..75 => {
            both.receive_there();
        }
        75..85 => both.enter_there(),
        85..90 => both.progress_there(),
        90..95 => reach::progress(),
        95 => both.leave_there(),
        96 => leave_ring(&both.conn, Reason::Requested),
        97 => {
            let (wire, link) = both.link();
            link.recall(wire, SLOT);
        }
        _ => {
            let (wire, link) = both.link();
            link.abandon(wire);
        }
    }
}

#[test]
fn no_byte_is_lost_or_doubled_whatever_happens_when() {
    let mut by_rings = [0; 2];
    for seed in 0..200 {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1);
        let mut both = Both::new(1000 + seed);
        let may_break = seed % 2 == 1;
        for _ in 0..200 {
            step(&mut both, &mut random, may_break);
        }
        both.finish();
        for (all, one) in by_rings.iter_mut().zip(both.by_rings) {
            *all += one;
        }
    }
    assert!(by_rings.iter().all(|&n| n > 100_000), "{by_rings:?}");
}
