//! Borrowing the descriptor of a connection's other end, for a moment.
//!
//! On a connection to the daemon of its own: the one who asks may be a forked or a
//! `vfork`ed child, whose parent speaks on the usual one.

use libc::c_int;
use shunt_abi::message::{Kind, Message};

use super::state::PATIENCE_MS;
use super::wire::Sent;
use super::{dial, wire};
use crate::sys;

/// What became of the request for a descriptor.
pub(crate) enum Loan {
    /// The caller closes it soon, since its holder's `close` would not reach us before.
    Lent(c_int),
    /// There is no daemon, or it does not know the socket, or may not lend it.
    Refused,
    /// It has not answered in time. What it finds until then it keeps for the next request.
    Late,
}

/// Asks for a descriptor of the socket at the other end of `fd`, whose `SO_COOKIE` is `cookie`.
pub(crate) fn borrow(cookie: u64, fd: c_int) -> Loan {
    // SAFETY: takes nothing and cannot fail.
    let Ok((daemon, _)) = dial::greet(unsafe { libc::geteuid() }) else {
        return Loan::Refused;
    };
    let mut lend = Message::new(Kind::Lend);
    (lend.cookie, lend.fd) = (cookie, fd);
    let loan = if wire::transmit(daemon, &lend, None) == Sent::Done {
        await_lent(daemon)
    } else {
        Loan::Refused
    };
    sys::close(daemon);
    loan
}

fn await_lent(daemon: c_int) -> Loan {
    let until = sys::now() + PATIENCE_MS as u64 * 1_000_000;
    loop {
        match wire::receive(daemon) {
            Ok(Some((m, passed))) if m.kind() == Some(Kind::Lent) => {
                return passed.map_or(Loan::Refused, Loan::Lent);
            }
            Ok(Some((_, Some(passed)))) => sys::close(passed),
            Ok(Some(_)) => {}
            Ok(None) => {
                let left = until.saturating_sub(sys::now()).div_ceil(1_000_000) as i64;
                if left == 0 || sys::poll_ms(daemon, libc::POLLIN, left) == 0 {
                    return Loan::Late;
                }
            }
            Err(()) => return Loan::Refused,
        }
    }
}
