//! Socket addresses as the kernel gives them.

use libc::sockaddr_storage;

use super::is_readable;

/// The names of a connection's own and of its other end, as [`parts`] says them.
pub(crate) type Names = [(u16, u16, [u8; 16]); 2];

/// Family, port (host order) and address (network order) of an IPv4 or IPv6 name.
pub(crate) fn parts(name: &sockaddr_storage) -> (u16, u16, [u8; 16]) {
    let mut address = [0; 16];
    let at = std::ptr::from_ref(name);
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is what it holds.
            let v4 = unsafe { &*at.cast::<libc::sockaddr_in>() };
            address[..4].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
            (name.ss_family, u16::from_be(v4.sin_port), address)
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            (
                name.ss_family,
                u16::from_be(v6.sin6_port),
                v6.sin6_addr.s6_addr,
            )
        }
        _ => (name.ss_family, 0, address),
    }
}

/// Whether two names of one connection show that both ends are on this host:
/// the same address, or loopback.
pub(crate) fn is_local(own: &sockaddr_storage, peer: &sockaddr_storage) -> bool {
    let (_, _, a) = parts(own);
    let (family, _, b) = parts(peer);
    let loopback = match i32::from(family) {
        libc::AF_INET => b[0] == 127,
        _ => {
            b[..15] == [0; 15] && b[15] == 1
                || b[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] && b[12] == 127
        }
    };
    a == b || loopback
}

/// Whether the program gave `connect` the address that means none (`AF_UNSPEC`).
///
/// # Safety
/// As for [`port_of`].
pub(crate) unsafe fn is_none(address: *const libc::sockaddr, length: u32) -> bool {
    if (length as usize) < size_of::<libc::sa_family_t>() || !is_readable(address) {
        return false;
    }
    // SAFETY: `is_readable` has just read it, and the family comes first in every address.
    let family = unsafe { address.cast::<u16>().read_unaligned() };
    family == libc::AF_UNSPEC as u16
}

/// The port of an address that the program gave to `connect`, if it is TCP/IP.
///
/// # Safety
/// Nobody unmaps `address` meanwhile. A bad one is the kernel's to refuse.
pub(crate) unsafe fn port_of(address: *const libc::sockaddr, length: u32) -> Option<u16> {
    if !is_readable(address) {
        return None;
    }
    // SAFETY: it is readable.
    unsafe { port_in(address, length) }
}

/// The same of an address that can be read.
///
/// # Safety
/// It can, if it is long enough for one of TCP/IP.
pub(crate) unsafe fn port_in(address: *const libc::sockaddr, length: u32) -> Option<u16> {
    if (length as usize) < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: readable as far as the family and the port, which both families
    // have at the same place.
    let (family, port) = unsafe {
        let [family, port] = address.cast::<[u16; 2]>().read_unaligned();
        (i32::from(family), u16::from_be(port))
    };
    matches!(family, libc::AF_INET | libc::AF_INET6).then_some(port)
}
