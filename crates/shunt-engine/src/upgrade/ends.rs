//! Where a connection's ends are, as far as its addresses tell.

use libc::c_int;
use shunt_abi::Reason;

use crate::control;
use crate::sys::{
    self,
    address::{self, Names},
};

/// The two ends of a connection that may both be on this host.
pub(super) struct Ends {
    pub(super) names: Names,
    /// Their addresses say that they are.
    pub(super) is_local: bool,
}

/// Both ends of a connection, if they may be on this host, and are two.
pub(super) fn ends(fd: c_int) -> Result<Ends, Reason> {
    let (Ok(own), Ok(peer)) = (sys::name(fd, false), sys::name(fd, true)) else {
        return Err(Reason::NotEstablished);
    };
    let is_local = address::is_local(&own, &peer);
    if !is_local && !control::crosses() {
        return Err(Reason::NotLocal);
    }
    let names = [address::parts(&own), address::parts(&peer)];
    if names[0] == names[1] {
        return Err(Reason::SelfConnected);
    }
    Ok(Ends { names, is_local })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::both_ends::{BothEnds, loopback};

    #[test]
    fn a_socket_that_is_connected_to_itself_has_no_other_end() {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        let any_port = loopback();
        // SAFETY: the name is there.
        let bound = unsafe { libc::bind(fd, (&raw const any_port).cast(), length) };
        let own = sys::name(fd, false).unwrap();
        // SAFETY: as above.
        let connected = unsafe { libc::connect(fd, (&raw const own).cast(), length) };
        assert_eq!((bound, connected), (0, 0));
        assert_eq!(ends(fd).err(), Some(Reason::SelfConnected));
        sys::close(fd);
    }

    #[test]
    fn both_ends_at_the_loopback_address_are_on_this_host() {
        let both = BothEnds::paired();
        let [one, other] = both.fds.map(|fd| ends(fd).ok().unwrap());
        assert!(one.is_local && other.is_local);
        assert!(one.names[0] == other.names[1] && one.names[1] == other.names[0]);
    }

    #[test]
    fn a_socket_that_is_not_connected_has_no_ends_yet() {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        assert_eq!(ends(fd).err(), Some(Reason::NotEstablished));
        sys::close(fd);
    }
}
