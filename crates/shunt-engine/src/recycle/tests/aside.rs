//! A connection is closed: which are kept, and how their end is told.

use super::*;

#[test]
fn the_end_of_one_that_is_kept_is_told_in_memory() {
    let scene = Scene::new();
    scene.ends.exchange(b"both ways");
    assert!(scene.close(ACCEPTED));
    let conn = scene.conn(CONNECTED);
    assert!(conn.is_put_aside_by_peer() && crate::stream::awaits_base(&conn));
    let ended = (libc::POLLIN | libc::POLLRDHUP) as u32;
    let seen = crate::stream::mask(&conn, ended, false);
    assert_eq!(seen & ended, ended);
    let mut byte = 0u8;
    let part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: there is room for a byte.
    let received = unsafe { crate::stream::receive(&conn, &[part], libc::MSG_DONTWAIT) };
    assert_eq!(received, Outcome::Done(0));
}

#[test]
fn nobody_sleeps_on_an_end_that_was_said_while_the_stream_was_still_on_tcp() {
    let scene = Scene::new();
    // The connecting end sends nothing: it moves to its ring as it closes.
    let conn = scene.conn(ACCEPTED);
    assert_eq!(conn.way_in(), Way::Tcp);
    assert!(scene.close(CONNECTED));
    let place = wake::enter().unwrap();
    assert!(stream::asleep(&conn, Want::Data, Some(place)));
    stream::awake(&conn, Want::Data, Some(place));
    place.leave();
}

#[test]
fn who_sends_just_as_its_peer_closes_is_told_of_a_reset_once() {
    let scene = Scene::new();
    let said = &scene.conn(CONNECTED).pair.own.face.state;
    assert!(scene.close(CONNECTED));
    // The sender has looked at the word before, and publishes when the peer has looked at the ring.
    let closed = said.fetch_and(!slot::CLOSED, Ordering::Relaxed);
    let (conn, mut byte) = (scene.conn(ACCEPTED), 0u8);
    let parts = [libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    }];
    // SAFETY: a byte of this test's, here and below.
    let sent = unsafe { stream::send(&conn, &parts, libc::MSG_DONTWAIT) };
    assert_eq!(sent, Outcome::Done(1));
    said.store(closed, Ordering::Relaxed);
    for told in [Outcome::Fail(libc::ECONNRESET), Outcome::Done(0)] {
        // SAFETY: as above.
        let received = unsafe { stream::receive(&conn, &parts, libc::MSG_DONTWAIT) };
        assert_eq!(received, told);
    }
    assert!(!scene.close(ACCEPTED));
}

#[test]
fn one_with_unread_bytes_is_not_kept() {
    let scene = Scene::new();
    scene.ends.send(b"unread");
    assert!(!scene.close(CONNECTED));
    // And nothing was said: a peer that looked meanwhile would have been told of an end, and not of a reset.
    let conn = scene.conn(CONNECTED);
    assert!(crate::stream::turns(conn.pair).own().turn == Turn::InUse);
    let state = conn.pair.own.face.state.load(Ordering::Relaxed);
    assert_eq!(state & slot::CLOSED, 0);
}

#[test]
fn one_with_an_option_that_cannot_be_told_anew_is_not_kept() {
    let scene = Scene::new();
    let settings = &scene.ends.sockets[ACCEPTED].settings;
    settings.note(libc::SOL_SOCKET, libc::SO_LINGER, None);
    assert!(!scene.close(ACCEPTED));
}

#[test]
fn one_that_a_relative_may_have_is_not_kept() {
    let scene = Scene::new();
    let share = &scene.ends.sockets[CONNECTED].share;
    assert!(share.before_fork());
    assert!(!scene.close(CONNECTED));
    share.settle();
    assert!(scene.close(CONNECTED));
}

#[test]
fn what_is_kept_long_enough_ends_and_the_kernel_says_so() {
    const LATER: u64 = 2_000_000_000;
    let scene = Scene::new();
    assert!(scene.close(ACCEPTED));
    let conn = scene.conn(CONNECTED);
    let locked = lock::lock().unwrap();
    locked.sweep();
    assert!(crate::stream::awaits_base(&conn) && store::is_any());
    locked.sweep_at(sys::now() + LATER);
    drop(locked);
    assert!(!crate::stream::awaits_base(&conn) && !store::is_any());
}

#[test]
fn what_was_accepted_by_a_listener_goes_with_it() {
    let scene = Scene::new();
    assert!(scene.close(ACCEPTED) && scene.close(CONNECTED));
    forget_listener(Socket::of(scene.listener).unwrap());
    let locked = lock::lock().unwrap();
    let left: Vec<_> = locked.each().filter_map(store::Kept::socket).collect();
    assert!(left.len() == 1 && std::ptr::eq(left[0], scene.ends.sockets[CONNECTED]));
}

#[test]
fn what_the_program_has_put_in_the_place_of_a_kept_connection_stays_open() {
    let scene = Scene::new();
    assert!(scene.close(ACCEPTED) && scene.close(CONNECTED));
    let kept = scene.ends.sockets[CONNECTED].fd();
    let other = sys::eventfd().unwrap();
    sys::dup3(other, kept, 0).unwrap();
    sys::close(other);
    assert!(give_up_all() && !store::is_any());
    assert!(sys::fcntl(kept, libc::F_GETFD, 0).is_ok());
    sys::close(kept);
}

/// A set of the program's with the connecting end.
fn watch_connected(scene: &Scene, events: c_int) -> &'static epoll::Set {
    let fd = sys::epoll_create().unwrap();
    epoll::Set::enter(fd);
    let set = epoll::Set::of(fd).unwrap();
    let event = libc::epoll_event {
        events: events as u32,
        u64: 7,
    };
    let (socket, number) = (scene.ends.sockets[CONNECTED], scene.ends.fds[CONNECTED]);
    let added = epoll::register(set, libc::EPOLL_CTL_ADD, socket, number, event);
    assert_eq!(added, Outcome::Done(0));
    set
}

fn end_set(set: &'static epoll::Set) {
    let fd = set.fd();
    table::enter(fd, Word::NOTHING);
    set.unhold();
    sys::close(fd);
}

/// A byte goes from the connecting end to the accepted one.
fn answer(scene: &Scene) {
    let mut byte = 0u8;
    let parts = [libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    }];
    // SAFETY: a byte of this test's.
    unsafe {
        stream::send(&scene.conn(CONNECTED), &parts, libc::MSG_DONTWAIT);
        let received = stream::receive(&scene.conn(ACCEPTED), &parts, libc::MSG_DONTWAIT);
        assert_eq!(received, Outcome::Done(1));
    }
}

/// How many events a wait on the set finds that looks at the rings.
fn events_of(set: &'static epoll::Set) -> usize {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
    // SAFETY: the array is there as long as the room is.
    let mut room = unsafe { epoll::Room::new(events.as_mut_ptr(), events.len()) };
    epoll::collect(set, &mut room, false, 0)
}

#[test]
fn a_wait_that_is_about_to_sleep_finds_an_end_that_was_said_while_it_polled() {
    for events in [libc::EPOLLIN, libc::EPOLLIN | libc::EPOLLET] {
        let scene = Scene::new();
        let set = watch_connected(&scene, events);
        let conn = scene.conn(CONNECTED);
        let is_watched = || conn.pair.own.face.wait.load(Ordering::Relaxed) & slot::WATCHED != 0;
        for _ in 0..100 {
            scene.ends.send(b"more");
            events_of(set);
            assert_eq!(scene.ends.receive::<8>(), b"more");
            answer(&scene);
            if set.has_chores() {
                epoll::see_to_chores(set);
            }
        }
        assert!(!is_watched());
        assert!(scene.close(ACCEPTED));
        // As the thread does before it sleeps.
        assert!(epoll::begin_sleep(set));
        assert_eq!(events_of(set), 1);
        epoll::end_sleep(set);
        end_set(set);
    }
}

#[test]
fn a_connection_leaves_the_sets_that_it_is_in() {
    let scene = Scene::new();
    let set = watch_connected(&scene, libc::EPOLLIN);
    assert!(set.is_shunted());
    assert!(scene.close(CONNECTED));
    assert!(!set.is_shunted() && scene.ends.sockets[CONNECTED].items.is_empty());
    end_set(set);
}
