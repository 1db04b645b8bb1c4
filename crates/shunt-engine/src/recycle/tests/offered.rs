//! What is kept is offered, and taken.

use super::*;

#[test]
fn a_connection_that_both_have_closed_is_the_next_one() {
    let mut scene = Scene::new();
    let to = scene.target();
    let cookie = scene.ends.sockets[CONNECTED].cookie();
    assert!(scene.close(CONNECTED) && scene.close(ACCEPTED));
    let listener = scene.listener;
    let acceptor = std::thread::spawn(move || {
        // SAFETY: no address is asked for.
        unsafe {
            accept(
                listener,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC,
            )
        }
    });
    let fd = Scene::fresh();
    while Scene::connect(fd, &to) != Outcome::Done(0) {
        assert!(!acceptor.is_finished());
        std::thread::yield_now();
    }
    let Outcome::Done(accepted) = acceptor.join().unwrap() else {
        panic!("nothing was accepted");
    };
    scene.ends.fds = [accepted as c_int, fd];
    let named = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
    assert_eq!(named, Ok(cookie));
    assert!(Conn::of(fd).is_some() && Conn::of(accepted as c_int).is_some());
    scene.talk(b"once more");
    // And so is the one after that.
    assert!(scene.close(ACCEPTED) && scene.close(CONNECTED));
}

/// Both ends are closed, and this thread alone accepts at the listener.
fn busy() -> Scene {
    let scene = Scene::new();
    let listener = scene.listener();
    listener.made.note(libc::SOCK_CLOEXEC);
    listener.accepts.note_backlog(128);
    listener.accepts.note_wait(thread::here());
    assert!(scene.close(ACCEPTED) && scene.close(CONNECTED));
    scene
}

#[test]
fn who_alone_accepts_at_a_listener_is_offered_connections_while_it_is_busy() {
    let mut scene = busy();
    scene.connect_again();
    assert!(concerns(scene.listener(), true));
    scene.accept_again();
    scene.talk(b"while busy");
    assert!(scene.close(CONNECTED) && scene.close(ACCEPTED));
    scene.connect_again();
    scene.accept_again();
}

#[test]
fn a_busy_thread_is_offered_nothing_once_others_may_accept_or_a_new_connection_would_be_different()
{
    let changes: [fn(&Socket); 4] = [
        |listener| listener.made.forget(),
        |listener| listener.accepts.note_wait(1),
        |listener| listener.settings.is_odd.store(true, Ordering::Relaxed),
        |_| crate::socket::made::before_child(),
    ];
    for change in changes {
        let scene = busy();
        change(scene.listener());
        shut_shared();
        let fd = Scene::fresh();
        assert_eq!(Scene::connect(fd, &scene.target()), Outcome::Kernel);
        table::enter(fd, Word::NOTHING);
        sys::close(fd);
    }
}

#[test]
fn what_was_offered_to_a_busy_thread_is_accepted_though_others_may_accept_since() {
    let mut scene = busy();
    scene.connect_again();
    scene.listener().made.forget();
    shut_shared();
    assert!(is_readable(scene.listener()));
    scene.accept_again();
    scene.talk(b"before that");
}

#[test]
fn what_was_offered_to_a_busy_thread_is_reset_when_its_listener_goes() {
    let mut scene = busy();
    scene.connect_again();
    forget_listener(scene.listener());
    let conn = Conn::of(scene.ends.fds[CONNECTED]).unwrap();
    let mut byte = 0u8;
    let part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: there is room for a byte.
    let received = unsafe { stream::receive(&conn, &[part], libc::MSG_DONTWAIT) };
    assert_eq!(received, Outcome::Fail(libc::ECONNRESET));
}

#[test]
fn what_many_connections_have_passed_by_is_kept_no_longer() {
    let scene = busy();
    let passes = &scene.listener().accepts.keeps;
    (0..128).for_each(|_| passes.note_passed());
    let count = || lock::lock().unwrap().each().count();
    lock::lock().unwrap().sweep();
    assert_eq!(count(), 2);
    passes.note_passed();
    lock::lock().unwrap().sweep();
    assert_eq!(count(), 1);
    assert!(!passes.is_due(), "the next one is not kept at once");
}

#[test]
fn nobody_is_offered_a_connection_who_does_not_wait() {
    let scene = Scene::new();
    let to = scene.target();
    assert!(scene.close(ACCEPTED) && scene.close(CONNECTED));
    let fd = Scene::fresh();
    assert_eq!(Scene::connect(fd, &to), Outcome::Kernel);
    assert!(Socket::of(fd).unwrap().stage() == Stage::Fresh);
    table::enter(fd, Word::NOTHING);
    sys::close(fd);
}

#[test]
fn nothing_is_offered_while_the_kernels_queue_may_have_what_was_connected_before() {
    let mut scene = Scene::new();
    let to = scene.target();
    let (_, port, _) = address::parts(&to);
    let waits = scene.awaited();
    let before = Queued::default();
    before.note_connect(port);
    let fd = Scene::fresh();
    assert_eq!(Scene::connect(fd, &to), Outcome::Kernel);
    before.note_end(port);
    assert_eq!(Scene::connect(fd, &to), Outcome::Done(0));
    scene.ends.fds[CONNECTED] = fd;
    waits.end();
    scene.accept_again();
}

#[test]
fn both_directions_of_one_that_is_taken_are_in_their_rings() {
    let mut scene = Scene::new();
    assert_eq!(scene.conn(ACCEPTED).way_in(), Way::Tcp);
    let waits = scene.awaited();
    scene.connect_again();
    waits.end();
    scene.accept_again();
    for end in [ACCEPTED, CONNECTED] {
        let conn = scene.conn(end);
        assert_eq!((conn.way_in(), conn.way_out()), (Way::Ring, Way::Ring));
    }
}

#[test]
fn what_is_offered_to_a_call_that_waits_makes_the_listener_readable_until_it_is_accepted() {
    let mut scene = Scene::new();
    let (waits, listener) = (scene.awaited(), scene.listener());
    scene.connect_again();
    assert!(waits.have_news() && !is_readable(listener));
    waits.end();
    assert!(is_readable(listener) && concerns(listener, true));
    // It stays where nobody waits, also for longer than anything is kept.
    lock::lock().unwrap().sweep_at(u64::MAX);
    scene.accept_again();
    assert!(!is_readable(listener));
    scene.talk(b"by poll");
}

#[test]
fn nothing_is_offered_to_a_call_that_waits_no_more() {
    let scene = Scene::new();
    let (to, fd) = (scene.target(), Scene::fresh());
    scene.awaited().end();
    assert_eq!(Scene::connect(fd, &to), Outcome::Kernel);
    table::enter(fd, Word::NOTHING);
    sys::close(fd);
}

#[test]
fn a_thread_takes_what_is_offered_to_another_that_waits_at_the_same_listener() {
    let mut scene = Scene::new();
    assert!(scene.close(ACCEPTED) && scene.close(CONNECTED));
    let (listener, number) = (scene.listener(), scene.listener);
    std::thread::scope(|scope| {
        let (go, goes) = std::sync::mpsc::channel();
        let (say, said) = std::sync::mpsc::channel();
        let other = scope.spawn(move || {
            let waits = Waits::none();
            waits.begin(Socket::of(number).unwrap(), false);
            say.send(waits.are_any()).unwrap();
            goes.recv().unwrap();
            let has_lost = waits.have_news();
            waits.end();
            has_lost
        });
        assert!(said.recv().unwrap());
        scene.connect_again();
        take_for_others(listener);
        assert!(is_readable(listener));
        scene.accept_again();
        go.send(()).unwrap();
        assert!(other.join().unwrap());
    });
    scene.talk(b"for another");
}

#[test]
fn a_call_of_a_handler_ends_the_wait_of_the_call_that_it_interrupts() {
    let mut scene = Scene::new();
    let waits = scene.awaited();
    let inner = Waits::none();
    inner.begin(scene.listener(), false);
    scene.connect_again();
    inner.end();
    scene.accept_again();
    // The outer call has lost what it waited at, and leaves the connection alone.
    assert!(waits.have_news());
    waits.end();
    scene.talk(b"from a handler");
}

#[test]
fn what_nobody_has_accepted_is_reset_when_the_listener_goes() {
    let mut scene = Scene::new();
    let waits = scene.awaited();
    scene.connect_again();
    waits.end();
    forget_listener(scene.listener());
    assert!(!is_readable(scene.listener()) && !store::is_any());
    let mut byte = 0u8;
    let part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let conn = Conn::of(scene.ends.fds[CONNECTED]).unwrap();
    // SAFETY: there is room for a byte.
    let received = unsafe { crate::stream::receive(&conn, &[part], libc::MSG_DONTWAIT) };
    assert_eq!(received, Outcome::Fail(libc::ECONNRESET));
}
