//! A recall that the peer does not answer: this side resends over TCP, in the peer's place, what it has not read of the peer's
//! ring. For that shuntd lends it a copy of the peer's descriptor for a moment, or shuntd resends the bytes itself.
//!
//! The caller makes one request and waits for its answer, however late that comes: where many programs want the processor,
//! shuntd may take seconds. Meanwhile the caller looks whether the peer answers after all.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_shm::path;
use shunt_shm::path::unread::Unread;

use super::Conn;
use super::errors::break_off;
use super::owed::{self, Written};
use crate::control::{self, Loan, Proxy, Request, Resent};
use crate::sys;
use crate::thread::give;

/// Between two requests, and between two looks at one that is not answered; nanoseconds.
pub(super) const AGAIN: u64 = 5_000_000;
/// The longest that one look at a request takes, in milliseconds.
const LOOK_MS: i64 = 5;
/// How long shuntd may take to begin to send, in milliseconds, also while the peer waits for that …
const BEGINS_MS: i64 = 50;
/// … and while it does not, in nanoseconds. (Signals of this thread wait, too.)
const BEGINS: u64 = 1_000_000_000;

/// A request to shuntd for help in resending what this side has not read.
pub(super) struct Help {
    /// The request that has not been answered yet.
    request: Option<Request>,
    /// When the next request, or look at this one, is due (nanoseconds of the monotonic clock).
    at: u64,
    is_refused: bool,
    is_late: bool,
}

impl Help {
    /// Help for which shuntd is not asked before the time `at`.
    pub(super) fn from(at: u64) -> Self {
        Self {
            request: None,
            at,
            is_refused: false,
            is_late: false,
        }
    }

    /// Whether there is no daemon, or it has refused.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether there is a daemon that may help, and has not done so in time.
    pub(super) fn is_late(&self) -> bool {
        self.is_late
    }

    /// If it is time: asks the daemon, or looks whether it has answered; with the answer, resends what is unread in the peer's
    /// ring. Without a token.
    pub(super) fn seek(&mut self, conn: &Conn) {
        if sys::now() < self.at {
            return;
        }
        let loan = match self.request.take() {
            Some(request) => request.answer(LOOK_MS),
            None => control::borrow(conn.socket.cookie(), conn.fd, LOOK_MS),
        };
        // The peer may only have been in an operation before: for an empty ring no descriptor is needed.
        let token = &conn.pair.own.receiving.token;
        let mut in_vain = false;
        if conn.take(token) {
            let asks = conn.receiver().asks();
            in_vain = asks && !send_to_self(conn, &loan);
            give(token);
            if asks {
                conn.tell_of_recall();
            }
        }
        let now = sys::now();
        match loan {
            Loan::Lent(lent) => sys::close(lent),
            Loan::Proxy(_) => self.is_late |= in_vain,
            Loan::Refused => (self.is_refused, self.is_late) = (true, false),
            Loan::Late(request) => {
                (self.request, self.is_late) = (Some(request), true);
                // The look itself has waited long enough.
                self.at = now;
                return;
            }
        }
        self.at = now + AGAIN;
    }
}

/// Answers the recall in the peer's place, if the peer is in no operation: resends what is unread in the peer's ring, by the
/// peer's descriptor or by shuntd. (If nothing is unread, no descriptor is needed.) With the receiving token. `false`: shuntd
/// was to send, and has not.
pub(super) fn send_to_self(conn: &Conn, loan: &Loan) -> bool {
    let mut means = None;
    let can = || {
        let unread = conn.receiver().switch_offset().is_some() && conn.consumer().is_ready();
        means = Means::new(conn, loan, unread);
        means.is_some()
    };
    if !conn.receiver().take_part(can) {
        return true;
    }
    let sent = means.is_none_or(|means| means.send(conn));
    if sent {
        conn.receiver().done(|| conn.unread_in_ring());
    } else {
        conn.receiver().ask_on();
    }
    sent
}

/// How this side sends itself the bytes that it has not read.
enum Means<'a> {
    /// There are no such bytes.
    Nothing,
    /// By a copy of the peer's descriptor.
    Lent(c_int),
    /// By the daemon, which sends what is in the file.
    Proxy(&'a Proxy, Written),
}

impl<'a> Means<'a> {
    /// `None`: there are unread bytes, and no way to send them. To be called while the peer cannot begin an operation.
    fn new(conn: &Conn, loan: &'a Loan, unread: bool) -> Option<Self> {
        match loan {
            _ if !unread => Some(Self::Nothing),
            _ if is_deaf(conn) => None,
            Loan::Lent(fd) => Some(Self::Lent(*fd)),
            Loan::Proxy(proxy) => {
                let there = Unread::of(conn.pair.own);
                let written = Written::new(&there, conn.consumer().memory)?;
                Some(Self::Proxy(proxy, written))
            }
            Loan::Refused | Loan::Late(_) => None,
        }
    }

    /// Sends them. `false`: nothing is sent. What TCP does not take now, the peer sends with its next call.
    fn send(self, conn: &Conn) -> bool {
        match self {
            Self::Nothing => true,
            Self::Lent(fd) => {
                let there = Unread::of(conn.pair.own);
                let _ = owed::resend(&there, conn.consumer().memory, 0, fd, owed::GROWTH_MS);
                true
            }
            Self::Proxy(proxy, written) => {
                let until = sys::now() + BEGINS;
                let goes_on = || sys::now() < until && !conn.receiver().is_in_operation();
                let resent = proxy.send(written.file(), BEGINS_MS, goes_on);
                if resent == Resent::Unknown {
                    // The daemon may send them at any later time, even after what the peer sends next.
                    break_off(conn);
                }
                resent != Resent::Nothing
            }
        }
    }
}

/// Whether this side has shut down both halves, so that nothing more can come by TCP.
pub(super) fn is_deaf(conn: &Conn) -> bool {
    path::is_deaf(conn.pair.own.face.state.load(Ordering::Relaxed))
}
