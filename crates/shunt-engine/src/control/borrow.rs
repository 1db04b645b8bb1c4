//! Borrowing the descriptor of a connection's other end, for a moment.
//!
//! On a connection to the daemon of its own: the one who asks may be a forked or a
//! `vfork`ed child, whose parent speaks on the usual one.

use libc::c_int;
use shunt_abi::message::{Kind, Message};

use super::wire::Sent;
use super::{PATIENCE_MS, dial, wire};
use crate::sys;

/// A descriptor of the socket at the other end of `fd`, whose `SO_COOKIE` is
/// `cookie`; the caller closes it soon, since its holder's `close` would not reach
/// us before. `None`: the daemon does not know it, or may not lend it.
pub(crate) fn borrow(cookie: u64, fd: c_int) -> Option<c_int> {
    // SAFETY: takes nothing and cannot fail.
    let (daemon, _) = dial::greet(unsafe { libc::geteuid() }).ok()?;
    let mut lend = Message::new(Kind::Lend);
    (lend.cookie, lend.fd) = (cookie, fd);
    let lent = if wire::transmit(daemon, &lend, None) == Sent::Done {
        await_lent(daemon)
    } else {
        None
    };
    sys::close(daemon);
    lent
}

fn await_lent(daemon: c_int) -> Option<c_int> {
    let until = sys::now() + PATIENCE_MS as u64 * 1_000_000;
    loop {
        match wire::receive(daemon) {
            Ok(Some((m, passed))) if m.kind() == Some(Kind::Lent) => return passed,
            Ok(Some((_, Some(passed)))) => sys::close(passed),
            Ok(Some(_)) => {}
            Ok(None) => {
                let left = until.saturating_sub(sys::now()).div_ceil(1_000_000) as i64;
                if left == 0 || sys::poll_ms(daemon, libc::POLLIN, left) == 0 {
                    return None;
                }
            }
            Err(()) => return None,
        }
    }
}
