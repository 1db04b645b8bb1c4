//! The descriptor of a connection's other end, borrowed for a moment; or, where that is another user's or of
//! another network namespace, the daemon's offer to send by it.
//!
//! On a connection to the daemon of its own: the one who asks may be a forked or a
//! `vfork`ed child, whose parent speaks on the usual one.

use libc::c_int;
use shunt_abi::message::{FLAG_RESENDS, Kind, Message};

use super::wire::Sent;
use super::{dial, wire};
use crate::kept::Kept;
use crate::sys;

/// What became of the request for a descriptor.
pub(crate) enum Loan {
    /// The descriptor. The caller closes it soon, since a `close` of the peer's does not reach this side before that.
    Lent(c_int),
    /// The client does not get the descriptor, but the daemon sends by it.
    Proxy(Proxy),
    /// There is no daemon, or it does not know the socket, or may not lend it.
    Refused,
    /// The daemon has not answered yet: the caller waits on for the same request.
    Late(Request),
}

/// What became of bytes that the daemon was to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resent {
    /// The kernel has all of them, or as many as it had room for.
    Done,
    /// None of them is sent, nor will be.
    Nothing,
    /// The daemon has begun to send them and does not end.
    Unknown,
}

/// A request that the daemon has not answered. A new request instead would be queued behind all others again: a
/// daemon that gets no processor for longer than one wait would never be heard.
pub(crate) struct Request {
    /// Kept as one of the library's own, since other threads of the program may close numbers that they find.
    daemon: Kept,
    cookie: u64,
    fd: c_int,
}

impl Request {
    /// Asks for a descriptor of the socket at the other end of `fd`, whose `SO_COOKIE` is `cookie`. `None`: there is nobody
    /// to be asked.
    fn new(cookie: u64, fd: c_int) -> Option<Self> {
        // SAFETY: takes nothing and cannot fail.
        let (daemon, _) = dial::greet(unsafe { libc::geteuid() }).ok()?;
        let request = Self::of(daemon, cookie, fd)?;
        (request.say(Kind::Lend, None) == Sent::Done).then_some(request)
    }

    /// Makes the request on this connection to the daemon.
    fn of(daemon: c_int, cookie: u64, fd: c_int) -> Option<Self> {
        let kept = Kept::nothing();
        kept.keep(daemon).then_some(Self {
            daemon: kept,
            cookie,
            fd,
        })
    }

    /// What the daemon answers within `patience_ms` milliseconds.
    pub(crate) fn answer(self, patience_ms: i64) -> Loan {
        match self.await_kind(Kind::Lent, patience_ms) {
            Answer::Is(_, Some(passed)) => Loan::Lent(passed),
            Answer::Is(lent, None) if lent.flags & FLAG_RESENDS != 0 => Loan::Proxy(Proxy(self)),
            Answer::Is(..) | Answer::Lost => Loan::Refused,
            Answer::Late => Loan::Late(self),
        }
    }

    fn say(&self, kind: Kind, passed: Option<c_int>) -> Sent {
        let mut message = Message::new(kind);
        (message.cookie, message.fd) = (self.cookie, self.fd);
        let daemon = self.daemon.get();
        daemon.map_or(Sent::Lost, |daemon| {
            wire::transmit(daemon, &message, passed)
        })
    }

    fn await_kind(&self, kind: Kind, patience_ms: i64) -> Answer {
        let daemon = self.daemon.get();
        daemon.map_or(Answer::Lost, |daemon| await_kind(daemon, kind, patience_ms))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            sys::close(daemon);
        }
    }
}

/// A daemon that sends by the other end of a connection.
pub(crate) struct Proxy(Request);

impl Proxy {
    /// How long the daemon may take once it has begun, in milliseconds: some system calls, unless it
    /// was stopped there.
    const LONGEST_MS: i64 = 4_000;

    /// Has the daemon send the bytes in a memory file. It may take `patience_ms` milliseconds to begin, and this time
    /// again as often as `goes_on` says so.
    pub(crate) fn send(
        &self,
        bytes: c_int,
        patience_ms: i64,
        goes_on: impl Fn() -> bool,
    ) -> Resent {
        if self.0.say(Kind::Resend, Some(bytes)) != Sent::Done {
            return Resent::Nothing;
        }
        let mut answer = self.await_resent(patience_ms);
        while matches!(answer, Answer::Late) && goes_on() {
            answer = self.await_resent(patience_ms);
        }
        // Whoever seals the file first decides. So a daemon that has gone has begun before this, or never will.
        if !matches!(answer, Answer::Is(..)) && sys::seal(bytes) {
            return Resent::Nothing;
        }
        if matches!(answer, Answer::Late) {
            answer = self.await_resent(Self::LONGEST_MS);
        }
        match answer {
            Answer::Is(resent, _) if resent.status != 0 => Resent::Nothing,
            Answer::Is(..) | Answer::Lost => Resent::Done,
            Answer::Late => Resent::Unknown,
        }
    }

    fn await_resent(&self, patience_ms: i64) -> Answer {
        self.0.await_kind(Kind::Resent, patience_ms)
    }
}

/// Asks for a descriptor of the socket at the other end of `fd`, and waits for the answer, for `patience_ms` milliseconds at
/// most. `cookie` is the `SO_COOKIE` of `fd`.
pub(crate) fn borrow(cookie: u64, fd: c_int, patience_ms: i64) -> Loan {
    Request::new(cookie, fd).map_or(Loan::Refused, |request| request.answer(patience_ms))
}

/// What the daemon has said.
enum Answer {
    /// This message, with this descriptor.
    Is(Message, Option<c_int>),
    Late,
    /// The daemon is gone, or has dropped this client.
    Lost,
}

fn await_kind(daemon: c_int, kind: Kind, patience_ms: i64) -> Answer {
    let until = sys::now() + patience_ms as u64 * 1_000_000;
    loop {
        match wire::receive(daemon) {
            Ok(Some((m, passed))) if m.kind() == Some(kind) => return Answer::Is(m, passed),
            Ok(Some((_, Some(passed)))) => sys::close(passed),
            Ok(Some(_)) => {}
            Ok(None) => {
                let left = until.saturating_sub(sys::now()).div_ceil(1_000_000) as i64;
                if left == 0 || sys::poll_ms(daemon, libc::POLLIN, left) == 0 {
                    return Answer::Late;
                }
            }
            Err(()) => return Answer::Lost,
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use shunt_abi::Reason;

    /// How long the daemon may take, in milliseconds.
    const PATIENCE_MS: i64 = 50;

    /// A daemon's end of the connection of a request, and the request.
    fn ends() -> (c_int, Request) {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
        assert_eq!(made, 0);
        let [far, daemon] = ends;
        (far, Request::of(daemon, 7, 3).unwrap())
    }

    fn resent(status: u8) -> Message {
        let mut resent = Message::new(Kind::Resent);
        resent.status = status;
        resent
    }

    #[test]
    fn an_answer_says_whether_anything_was_sent() {
        let bytes = sys::memory_file(c"test", 0).unwrap();
        for (status, expected) in [
            (0, Resent::Done),
            (Reason::NotEstablished as u8, Resent::Nothing),
        ] {
            let (far, request) = ends();
            let proxy = Proxy(request);
            assert_eq!(wire::transmit(far, &resent(status), None), Sent::Done);
            assert_eq!(proxy.send(bytes, PATIENCE_MS, || false), expected);
            let (asked, passed) = wire::receive(far).unwrap().unwrap();
            assert_eq!((asked.kind(), asked.cookie), (Some(Kind::Resend), 7));
            assert_eq!(sys::file(passed.unwrap()), sys::file(bytes));
            sys::close(passed.unwrap());
            sys::close(far);
        }
        sys::close(bytes);
    }

    #[test]
    fn an_answer_counts_however_late_it_comes() {
        let (far, request) = ends();
        let Loan::Late(request) = request.answer(0) else {
            panic!("nobody has said anything");
        };
        let Loan::Late(request) = request.answer(1) else {
            panic!("nobody has said anything");
        };
        let event = sys::eventfd().unwrap();
        let lent = Message::new(Kind::Lent);
        assert_eq!(wire::transmit(far, &lent, Some(event)), Sent::Done);
        let Loan::Lent(passed) = request.answer(PATIENCE_MS) else {
            panic!("the daemon has lent a descriptor");
        };
        assert_eq!(sys::file(passed), sys::file(event));
        [passed, event, far].into_iter().for_each(sys::close);
    }

    #[test]
    fn a_daemon_that_is_gone_lends_nothing() {
        let (far, request) = ends();
        sys::close(far);
        assert!(matches!(request.answer(PATIENCE_MS), Loan::Refused));
    }

    #[test]
    fn what_a_daemon_has_not_begun_in_time_it_finds_sealed() {
        let bytes = sys::memory_file(c"test", 0).unwrap();
        let (far, request) = ends();
        assert_eq!(Proxy(request).send(bytes, 1, || false), Resent::Nothing);
        assert!(!sys::seal(bytes), "the daemon could still begin");
        sys::close(far);
        sys::close(bytes);
    }

    #[test]
    fn a_daemon_may_begin_late_as_long_as_nobody_else_waits() {
        let bytes = sys::memory_file(c"test", 0).unwrap();
        let (far, request) = ends();
        let waits = std::cell::Cell::new(3);
        let begins = || {
            waits.set(waits.get() - 1);
            if waits.get() == 0 {
                assert_eq!(wire::transmit(far, &resent(0), None), Sent::Done);
            }
            true
        };
        assert_eq!(Proxy(request).send(bytes, 1, begins), Resent::Done);
        assert_eq!(waits.get(), 0);
        sys::close(far);
        sys::close(bytes);
    }

    #[test]
    fn a_daemon_that_ends_has_sent_what_it_had_begun_to_send() {
        for begun in [false, true] {
            let bytes = sys::memory_file(c"test", 0).unwrap();
            assert!(!begun || sys::seal(bytes));
            let (far, request) = ends();
            let proxy = Proxy(request);
            let ended = std::thread::spawn(move || {
                while sys::ready(far, libc::POLLIN) == 0 {
                    std::thread::yield_now();
                }
                sys::close(far);
            });
            let expected = if begun { Resent::Done } else { Resent::Nothing };
            assert_eq!(proxy.send(bytes, PATIENCE_MS, || false), expected);
            ended.join().unwrap();
            sys::close(bytes);
        }
    }
}
