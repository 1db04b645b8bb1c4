//! The descriptor of a connection's other end, borrowed for a moment; or, where that is another user's or of
//! another network namespace, the daemon's offer to send by it.
//!
//! On a connection to the daemon of its own: the one who asks may be a forked or a
//! `vfork`ed child, whose parent speaks on the usual one.

use libc::c_int;
use shunt_abi::message::{FLAG_RESENDS, Kind, Message};

use super::state::PATIENCE_MS;
use super::wire::Sent;
use super::{dial, wire};
use crate::sys;

/// What became of the request for a descriptor.
pub(crate) enum Loan {
    /// The caller closes it soon, since its holder's `close` would not reach us before.
    Lent(c_int),
    /// It stays where it is, and the daemon sends by it.
    Proxy(Proxy),
    /// There is no daemon, or it does not know the socket, or may not lend it.
    Refused,
    /// It has not answered in time. What it finds until then it keeps for the next request.
    Late,
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

/// A daemon that sends by the other end of a connection.
pub(crate) struct Proxy {
    daemon: c_int,
    cookie: u64,
    fd: c_int,
}

impl Proxy {
    /// How long the daemon may take once it has begun, in milliseconds: some system calls, unless it
    /// was stopped there.
    const LONGEST_MS: i64 = 4_000;

    /// Has the bytes in a memory file sent.
    pub(crate) fn send(&self, bytes: c_int) -> Resent {
        let mut resend = Message::new(Kind::Resend);
        (resend.cookie, resend.fd) = (self.cookie, self.fd);
        if wire::transmit(self.daemon, &resend, Some(bytes)) != Sent::Done {
            return Resent::Nothing;
        }
        let mut answer = self.await_resent(PATIENCE_MS);
        // Who has sealed it decides: a daemon that is not there any more had begun before, or never does.
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
        await_kind(self.daemon, Kind::Resent, patience_ms)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        sys::close(self.daemon);
    }
}

/// Asks for a descriptor of the socket at the other end of `fd`, whose `SO_COOKIE` is `cookie`.
pub(crate) fn borrow(cookie: u64, fd: c_int) -> Loan {
    // SAFETY: takes nothing and cannot fail.
    let Ok((daemon, _)) = dial::greet(unsafe { libc::geteuid() }) else {
        return Loan::Refused;
    };
    let proxy = Proxy { daemon, cookie, fd };
    let mut lend = Message::new(Kind::Lend);
    (lend.cookie, lend.fd) = (cookie, fd);
    if wire::transmit(daemon, &lend, None) != Sent::Done {
        return Loan::Refused;
    }
    match await_kind(daemon, Kind::Lent, PATIENCE_MS) {
        Answer::Is(_, Some(passed)) => Loan::Lent(passed),
        Answer::Is(lent, None) if lent.flags & FLAG_RESENDS != 0 => Loan::Proxy(proxy),
        Answer::Is(..) | Answer::Lost => Loan::Refused,
        Answer::Late => Loan::Late,
    }
}

/// What the daemon has said.
enum Answer {
    /// This, with that descriptor.
    Is(Message, Option<c_int>),
    Late,
    /// It is gone, or has dropped this client.
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

    /// A daemon's end of a proxy's connection, and the proxy.
    fn ends() -> (c_int, Proxy) {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
        assert_eq!(made, 0);
        let [far, daemon] = ends;
        let proxy = Proxy {
            daemon,
            cookie: 7,
            fd: 3,
        };
        (far, proxy)
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
            let (far, proxy) = ends();
            assert_eq!(wire::transmit(far, &resent(status), None), Sent::Done);
            assert_eq!(proxy.send(bytes), expected);
            let (asked, passed) = wire::receive(far).unwrap().unwrap();
            assert_eq!((asked.kind(), asked.cookie), (Some(Kind::Resend), 7));
            assert_eq!(sys::file(passed.unwrap()), sys::file(bytes));
            sys::close(passed.unwrap());
            sys::close(far);
        }
        sys::close(bytes);
    }

    #[test]
    fn what_a_daemon_has_not_begun_in_time_it_finds_sealed() {
        let bytes = sys::memory_file(c"test", 0).unwrap();
        let (far, proxy) = ends();
        assert_eq!(proxy.send(bytes), Resent::Nothing);
        assert!(!sys::seal(bytes), "the daemon could still begin");
        sys::close(far);
        sys::close(bytes);
    }

    #[test]
    fn a_daemon_that_ends_has_sent_what_it_had_begun_to_send() {
        for begun in [false, true] {
            let bytes = sys::memory_file(c"test", 0).unwrap();
            assert!(!begun || sys::seal(bytes));
            let (far, proxy) = ends();
            let ended = std::thread::spawn(move || {
                while sys::ready(far, libc::POLLIN) == 0 {
                    std::thread::yield_now();
                }
                sys::close(far);
            });
            let expected = if begun { Resent::Done } else { Resent::Nothing };
            assert_eq!(proxy.send(bytes), expected);
            ended.join().unwrap();
            sys::close(bytes);
        }
    }
}
