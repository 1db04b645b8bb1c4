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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_written_where_the_daemon_looks() {
        let mut m = Message::new(shunt_abi::message::Kind::Claim);
        let names = [(2, 80, [1; 16]), (2, 4000, [2; 16])];
        write_names(&mut m, Some(names));
        assert_eq!((m.family, m.ports), (2, [80, 4000]));
        assert_eq!(m.addresses, [[1; 16], [2; 16]]);
    }

    #[test]
    fn without_names_a_message_says_none() {
        let mut m = Message::new(shunt_abi::message::Kind::Claim);
        write_names(&mut m, None);
        assert_eq!((m.family, m.ports), (0, [0, 0]));
        assert_eq!(names_of(-1), None);
    }
}
