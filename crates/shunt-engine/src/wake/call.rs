//! One call: by which socket?

use shunt_shm::wake::Address;

use super::{abroad, caller};

/// Of [`call`]: the socket that this process has made, in its own network namespace.
pub(crate) const OWN: u32 = 0;

/// Calls who sleeps at a peer's address, by [`OWN`] socket or by one from the peer's network
/// namespace. A full queue is a call that is pending. `false`: nobody has heard it, as there is no
/// such channel in that namespace, or the kernel does not let this process send there.
pub(crate) fn call(at: &Address, by: u32) -> bool {
    let (name, secret) = at.look();
    if name == Address::NOWHERE {
        return true;
    }
    if by == OWN {
        caller::call(name, secret)
    } else {
        abroad::call(by, name, secret)
    }
}
