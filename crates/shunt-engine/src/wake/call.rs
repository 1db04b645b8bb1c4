//! One call, by the socket that suits the name.

use libc::c_int;
use shunt_shm::wake::Address;

use super::sending::sending;
use super::{abroad, caller, datagram};

/// Calls the threads that sleep at a peer's address. A full queue is a call that is pending. `false`: nobody has
/// heard it, as there is no such channel in the network namespace of the name, or the kernel does not let this
/// process send there.
pub(crate) fn call(at: &Address) -> bool {
    let (name, secret) = at.look();
    if name == Address::NOWHERE {
        return true;
    }
    if abroad::is_name(name) {
        abroad::call(name, secret)
    } else {
        caller::call(name, secret)
    }
}

/// Whether there is a channel of this name. Its owner does not notice the question.
pub(crate) fn is_there(name: u64) -> bool {
    const NO_SECRET: u64 = 0;
    sending(|| {
        sender_to(name)
            .is_none_or(|fd| datagram::send(fd, name, NO_SECRET) != Err(libc::ECONNREFUSED))
    })
}

/// The socket by which a name is called.
pub(super) fn sender_to(name: u64) -> Option<c_int> {
    if abroad::is_name(name) {
        abroad::sender()
    } else {
        caller::sender()
    }
}
