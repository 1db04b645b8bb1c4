//! Connections that both programs have closed in order, and that are used again: base socket, slot and rings.
//!
//! ```text
//!           connector's process                              acceptor's process
//!   close    keeps the base socket by a copy (Kept)           likewise
//!   accept                                                    waits at one of those that it keeps, and for the kernel
//!   connect  offers one at which somebody waits;
//!            puts it in the place of the program's socket ──> takes it: a copy of it is the accepted socket
//! ```
//!
//! To the programs and to the kernel each is a connection with a descriptor of its own. What the two sides say to each other
//! is [`shunt_shm::recycle`]'s; [decision 20](../../../docs/decisions/0020-recycled-connections.md) says why it is so, and what
//! is not there yet: it is a test's switch (`SHUNT_RECYCLE`).
//!
//! * [`store`]: what is kept, how long, and how it is given up; [`lock`]: by whose leave. [`pristine`]: the sockets whose places
//!   such connections take.
//! * [`keep`]: a connection is closed. [`offer`]: `connect`. [`accept`]: `accept`.
//! * [`await_offer`]: a thread waits for the next one, in `accept` or in a readiness call.

mod accept;
mod await_offer;
mod keep;
mod lock;
mod offer;
mod pristine;
mod store;

pub(crate) use accept::accept;
pub(crate) use await_offer::{Waits, concerns, is_readable, take_for_others};
pub(crate) use keep::put_aside;
pub(crate) use lock::after_fork_parent;
pub(crate) use offer::connect;
pub(crate) use pristine::{Taken, set_apart, take as take_new};
pub(crate) use store::{
    after_fork_child, before_fork, forget_listener, give_up_all, is_any, is_any_taken,
    keep_no_more, last_taken, make_way,
};

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::atomic::Ordering;

    use libc::{c_int, sockaddr_storage};
    use shunt_shm::recycle::Turn;
    use shunt_shm::slot::{self, Way};

    use super::*;
    use crate::both_ends::BothEnds;
    use crate::epoll::Known;
    use crate::socket::{Queued, Socket, Stage};
    use crate::stream::{self, Conn, Want};
    use crate::sys::{self, address};
    use crate::table::{self, Word};
    use crate::{Outcome, config, hold::Held, upgrade, wake};

    /// Both ends, as `connect` and `accept` leave them, and a listener that has nothing in the kernel's queue.
    struct Scene {
        ends: BothEnds,
        listener: c_int,
    }

    /// The accepted end, and the connecting one.
    const ACCEPTED: usize = 0;
    const CONNECTED: usize = 1;

    impl Scene {
        fn new() -> Self {
            let ends = BothEnds::paired();
            config::set_recycles(true);
            for (socket, fd) in ends.sockets.into_iter().zip(ends.fds) {
                assert!(upgrade::progress(socket, fd, Known::Nothing));
            }
            let listener =
                sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::listen(listener, 4) }, 0);
            let listens = Socket::enter(listener, Stage::Listener).unwrap();
            ends.sockets[ACCEPTED].origin.note_accept(listens);
            let connected = ends.sockets[CONNECTED];
            connected.origin.note_connect();
            connected.set_port(address::parts(&sys::name(ends.fds[CONNECTED], true).unwrap()).1);
            let scene = Self { ends, listener };
            scene.talk(b"once");
            scene
        }

        /// Bytes go both ways, as connections have them before they are closed.
        fn talk(&self, bytes: &[u8]) {
            self.ends.send(bytes);
            assert_eq!(self.ends.receive::<16>(), bytes);
        }

        /// Closes an end as the program does. `true`: it is kept.
        fn close(&self, end: usize) -> bool {
            let (socket, fd) = (self.ends.sockets[end], self.ends.fds[end]);
            let is_kept = put_aside(socket, fd);
            if is_kept {
                sys::close(fd);
            }
            is_kept
        }

        /// The connection at an end that is not closed, or not kept.
        fn conn(&self, end: usize) -> Conn<'static> {
            Conn::new(self.ends.sockets[end], self.ends.fds[end]).unwrap()
        }

        /// Where the connecting end leads.
        fn target(&self) -> sockaddr_storage {
            sys::name(self.ends.sockets[CONNECTED].fd(), true).unwrap()
        }

        /// A new socket of the program's.
        fn fresh() -> c_int {
            let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
            Socket::enter(fd, Stage::Fresh).unwrap();
            fd
        }

        fn connect(fd: c_int, to: &sockaddr_storage) -> Outcome {
            let length = size_of::<libc::sockaddr_in>() as u32;
            // SAFETY: an address of this test's.
            unsafe { connect(fd, std::ptr::from_ref(to).cast(), length) }
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            config::set_recycles(false);
            // Those that are kept end here, and what is left is the ends' own to close.
            give_up_all();
            if let Some(listener) = Socket::of(self.listener) {
                table::enter(self.listener, Word::NOTHING);
                listener.unhold();
            }
            sys::close(self.listener);
            for (socket, fd) in self.ends.sockets.into_iter().zip(&mut self.ends.fds) {
                // Its memory is gone with it.
                if !socket.is_live() || !socket.is_at(*fd) {
                    *fd = -1;
                }
            }
        }
    }

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
    fn the_end_of_one_that_is_kept_is_told_in_memory() {
        let scene = Scene::new();
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

    impl Scene {
        fn listener(&self) -> &'static Socket {
            Socket::of(self.listener).unwrap()
        }

        /// Both ends are closed, and a readiness call of this thread waits at the listener.
        fn awaited(&self) -> Waits {
            assert!(self.close(ACCEPTED) && self.close(CONNECTED));
            let waits = Waits::none();
            waits.begin(self.listener());
            assert!(waits.are_any() && !waits.have_news());
            waits
        }

        /// A connect that is to find somebody who waits.
        fn connect_again(&mut self) {
            let fd = Self::fresh();
            assert_eq!(Self::connect(fd, &self.target()), Outcome::Done(0));
            self.ends.fds[CONNECTED] = fd;
        }

        /// The program accepts what is there.
        fn accept_again(&mut self) {
            let none = std::ptr::null_mut();
            // SAFETY: no address is asked for.
            let accepted = unsafe { accept(self.listener, none, none.cast(), libc::SOCK_CLOEXEC) };
            let Outcome::Done(accepted) = accepted else {
                panic!("nothing was accepted");
            };
            self.ends.fds[ACCEPTED] = accepted as c_int;
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

    /// The program's new socket has become a connection that is used again, after `change` was done to it. Its name.
    fn replaced_after(scene: &mut Scene, change: impl FnOnce(&Socket, c_int)) -> u64 {
        let waits = scene.awaited();
        let fd = Scene::fresh();
        let socket = Socket::of(fd).unwrap();
        socket.made.note(libc::SOCK_CLOEXEC);
        let name = socket.whereabouts.place(fd).unwrap().cookie;
        change(socket, fd);
        assert_eq!(Scene::connect(fd, &scene.target()), Outcome::Done(0));
        scene.ends.fds[CONNECTED] = fd;
        waits.end();
        scene.accept_again();
        name
    }

    fn name_of(fd: c_int) -> Option<u64> {
        sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok()
    }

    #[test]
    fn the_socket_whose_place_a_connection_takes_is_the_next_new_one_of_its_family() {
        let mut scene = Scene::new();
        let name = replaced_after(&mut scene, |_, _| ());
        assert!(take_new(libc::AF_INET6, 0).is_none());
        let fd = take_new(libc::AF_INET, libc::SOCK_NONBLOCK).unwrap().fd;
        assert_eq!(name_of(fd), Some(name));
        let flags = [libc::F_GETFD, libc::F_GETFL].map(|which| sys::fcntl(fd, which, 0).unwrap());
        assert_eq!(flags, [0, (libc::O_RDWR | libc::O_NONBLOCK) as usize]);
        assert!(take_new(libc::AF_INET, 0).is_none());
        sys::close(fd);
    }

    #[test]
    fn one_that_is_not_as_it_was_made_is_nobodys_next_one() {
        let changes: [fn(&Socket, c_int); 4] = [
            |socket, _| {
                socket
                    .settings
                    .note(libc::IPPROTO_TCP, libc::TCP_NODELAY, Some(1))
            },
            |socket, _| socket.made.forget(),
            |_, _| crate::socket::made::before_child(),
            |socket, _| socket.set_reason(shunt_abi::Reason::Passed),
        ];
        for change in changes {
            let mut scene = Scene::new();
            replaced_after(&mut scene, change);
            assert!(take_new(libc::AF_INET, 0).is_none());
        }
    }

    #[test]
    fn what_the_program_has_put_in_the_place_of_one_is_its_own() {
        let mut scene = Scene::new();
        let name = replaced_after(&mut scene, |_, _| ());
        let mut kept = -1;
        table::each(|fd, word| {
            if word == Word::OURS && name_of(fd) == Some(name) {
                kept = fd;
            }
        });
        let other = sys::eventfd().unwrap();
        sys::dup3(other, kept, 0).unwrap();
        assert!(take_new(libc::AF_INET, 0).is_none());
        assert!(sys::fcntl(kept, libc::F_GETFD, 0).is_ok() && table::look(kept) == Word::NOTHING);
        sys::close(kept);
        sys::close(other);
        // Likewise where another socket has taken the number before it connects.
        replaced_after(&mut scene, |_, fd| {
            let other = sys::socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
            sys::dup3(other, fd, 0).unwrap();
            sys::close(other);
        });
        assert!(take_new(libc::AF_INET, 0).is_none());
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

    #[test]
    fn new_sockets_are_given_up_with_all_that_is_kept() {
        let ends: [fn(); 4] = [
            || lock::lock().unwrap().sweep_at(u64::MAX),
            || assert!(give_up_all()),
            || {
                before_fork();
                after_fork_parent();
            },
            || table::each(|fd, _| make_way(fd)),
        ];
        for end in ends {
            let mut scene = Scene::new();
            replaced_after(&mut scene, |_, _| ());
            end();
            assert!(take_new(libc::AF_INET, 0).is_none());
        }
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
                waits.begin(Socket::of(number).unwrap());
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
        inner.begin(scene.listener());
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

    #[test]
    fn a_connection_leaves_the_sets_that_it_is_in() {
        let scene = Scene::new();
        let fd = sys::epoll_create().unwrap();
        crate::epoll::Set::enter(fd);
        let set = crate::epoll::Set::of(fd).unwrap();
        let event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 7,
        };
        let (socket, number) = (scene.ends.sockets[CONNECTED], scene.ends.fds[CONNECTED]);
        let add = || crate::epoll::register(set, libc::EPOLL_CTL_ADD, socket, number, event);
        assert_eq!(add(), Outcome::Done(0));
        assert!(set.is_shunted());
        assert!(scene.close(CONNECTED));
        assert!(!set.is_shunted() && socket.items.is_empty());
        table::enter(fd, Word::NOTHING);
        set.unhold();
        sys::close(fd);
    }
}
