use super::*;
use crate::both_ends::{BothEnds, one_at_a_time};
use crate::thread;

#[test]
fn news_go_before_a_signal_that_came_with_them() {
    let _alone = one_at_a_time();
    thread::learn_pid();
    let fd = sys::eventfd().unwrap();
    let seen = signals::now();
    signals::count_one(true);
    let ask = || {
        let mut one = [pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        }];
        // SAFETY: no mask.
        let outcome = unsafe { poll(&mut one, Limit::new(None), std::ptr::null(), seen) };
        (outcome, one[0].revents)
    };
    assert_eq!(ask(), (Outcome::Fail(libc::EINTR), 0));
    let one = 1u64;
    // SAFETY: the number is there.
    assert_eq!(unsafe { libc::write(fd, (&raw const one).cast(), 8) }, 8);
    assert_eq!(ask(), (Outcome::Done(1), libc::POLLIN));
    sys::close(fd);
}

/// What a call that does not wait tells of a descriptor, of which it tells something.
fn told(fd: c_int, events: i16) -> i16 {
    let mut one = [pollfd {
        fd,
        events,
        revents: 0,
    }];
    let limit = Limit::new(Some(0));
    // SAFETY: no mask.
    let outcome = unsafe { poll(&mut one, limit, std::ptr::null(), signals::now()) };
    assert_eq!(outcome, Outcome::Done(1));
    one[0].revents
}

#[test]
fn a_killed_peer_is_told_of_although_there_is_room_all_the_time() {
    let ends = BothEnds::on_rings();
    let ask = || told(ends.fds[0], libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP);
    assert_eq!(ask(), libc::POLLOUT);
    // So the kernel ends the connections of a process that is killed.
    sys::shutdown(ends.fds[1], libc::SHUT_RDWR).unwrap();
    assert_ne!(sys::poll_ms(ends.fds[0], libc::POLLRDHUP, 10_000), 0);
    let until = sys::now() + 10_000_000_000;
    while ask() & libc::POLLRDHUP == 0 {
        assert!(sys::now() < until);
    }
}

#[test]
fn the_kernel_need_not_be_asked_about_a_connection_that_is_read_between_polls() {
    let ends = BothEnds::attached();
    ends.send(b"xy");
    let is_due = |events| {
        let mut one = [pollfd {
            fd: ends.fds[1],
            events,
            revents: 0,
        }];
        let (found, is_due) = look_at(&mut one, &[], 1 << 40);
        assert_eq!(found, 1);
        is_due
    };
    let both = libc::POLLIN | libc::POLLOUT;
    assert!(
        is_due(libc::POLLOUT) && is_due(both),
        "nothing was read yet"
    );
    ends.receive::<1>();
    assert!(is_due(libc::POLLIN | libc::POLLRDHUP));
    assert!(!is_due(both), "read since");
    assert!(is_due(both) && is_due(libc::POLLIN), "not read since");
}

#[test]
fn a_killed_peer_is_told_of_although_input_stays_unread() {
    let ends = BothEnds::on_rings();
    ends.send(b"y");
    let ask = || told(ends.fds[1], libc::POLLIN);
    assert_eq!(ask(), libc::POLLIN);
    // SAFETY: a C struct of integers, for which zero is a value: `AF_UNSPEC`, which resets a connection (connect(2)).
    let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    // SAFETY: such an address.
    let reset = unsafe {
        libc::connect(
            ends.fds[0],
            &raw const nowhere,
            size_of_val(&nowhere) as u32,
        )
    };
    assert_eq!(reset, 0);
    let until = sys::now() + 10_000_000_000;
    while ask() & libc::POLLERR == 0 {
        assert!(sys::now() < until);
    }
}
