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
