//! The names of a connection in a message.

use libc::c_int;
use shunt_abi::message::Message;

use crate::sys::{
    self,
    address::{self, Names},
};

/// The names of a connection's ends; `None`: it has none yet, or no more.
pub(super) fn names_of(fd: c_int) -> Option<Names> {
    let name = |peer| sys::name(fd, peer).ok().map(|name| address::parts(&name));
    Some([name(false)?, name(true)?])
}

/// Writes them into a message.
pub(super) fn write_names(m: &mut Message, names: Option<Names>) {
    for (i, (family, port, address)) in names.into_iter().flatten().enumerate() {
        (m.family, m.ports[i], m.addresses[i]) = (family, port, address);
    }
}
