//! Calling peers in other network namespaces.
//!
//! The names of wake channels are those of a namespace, and a socket looks them up in the one that it
//! was made in, whoever sends by it. So shuntd makes a socket in the peer's namespace, for this
//! process alone, and passes it before the first link to a process there.

use libc::c_int;

use super::caller::{await_sent, is_heard, sending};
use crate::kept::Kept;
use crate::region::count;
use crate::sys;
use crate::thread::undisturbed;

/// From so many namespaces at the same time a process has peers. (shuntd gives no higher number.)
const MOST: usize = shunt_abi::message::MOST_ABROAD as usize;

static SOCKETS: [Kept; MOST] = [const { Kept::nothing() }; MOST];

/// The socket of that number, from 1.
fn socket(number: u32) -> Option<&'static Kept> {
    SOCKETS.get((number as usize).checked_sub(1)?)
}

/// Keeps a copy of a socket that shuntd has passed, in the place of one of the same number. With the
/// control lock.
pub(crate) fn keep(number: u32, passed: c_int) {
    let (Some(kept), Ok(copy)) = (socket(number), sys::copy_high(passed)) else {
        return;
    };
    if let Some(former) = kept.take() {
        if !undisturbed::has_begun() {
            await_sent(0);
        }
        sys::close(former);
    }
    kept.keep(copy);
}

/// Sends a call by the socket of that number. `false`: nobody has heard it.
pub(super) fn call(number: u32, name: u64, secret: u64) -> bool {
    let heard = sending(|| {
        let kept = socket(number)?;
        let known = kept.number();
        let heard = kept.is_kept() && is_heard(known, name, secret)
            || (kept.get()).is_some_and(|fd| fd != known && is_heard(fd, name, secret));
        Some(heard)
    });
    let heard = heard == Some(true);
    if heard {
        count::calls();
    }
    heard
}

/// If `fd` is the number of one of them and the program wants it: moves elsewhere.
pub(super) fn make_way(fd: c_int) {
    for kept in SOCKETS.iter().filter(|kept| kept.number() == fd) {
        kept.make_way(fd);
        // Not for itself, in a handler that is not put off.
        if !undisturbed::has_begun() {
            await_sent(0);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use shunt_shm::wake::Address;

    use super::super::{Channel, call};
    use super::*;
    use crate::thread;

    #[test]
    fn a_peer_elsewhere_is_called_by_the_socket_of_its_number() {
        thread::learn_pid();
        let (channel, at) = (Channel::new(), Address::default());
        assert!(channel.open());
        channel.tell(&at);
        assert!(!call(&at, MOST as u32), "nobody has passed that one");
        assert!(!call(&at, MOST as u32 + 1), "there is no such number");
        for _ in 0..2 {
            let passed = sys::datagram_socket().unwrap();
            keep(MOST as u32, passed);
            sys::close(passed);
            assert!(call(&at, MOST as u32) && channel.hear());
        }
        let number = SOCKETS[MOST - 1].number();
        make_way(number);
        assert_ne!(SOCKETS[MOST - 1].number(), number);
        assert!(call(&at, MOST as u32) && channel.hear());
        sys::close(SOCKETS[MOST - 1].take().unwrap());
        sys::close(number);
        channel.close();
    }
}
