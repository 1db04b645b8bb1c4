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

/// All of an IPv4 or IPv6 name, flow label and scope as well; the first word is not 0.
pub(crate) fn words(name: &sockaddr_storage) -> [u64; 4] {
    let (family, port, address) = parts(name);
    let (flow, scope) = if i32::from(family) == libc::AF_INET6 {
        // SAFETY: the family says that this is what it holds.
        let v6 = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
        (v6.sin6_flowinfo, v6.sin6_scope_id)
    } else {
        (0, 0)
    };
    let address = u128::from_ne_bytes(address);
    let head = u64::from(family) << 48 | u64::from(port) << 32 | u64::from(flow);
    [head, address as u64, (address >> 64) as u64, scope.into()]
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

/// [`port_of`] for an address that can be read.
///
/// # Safety
/// The address can be read, if it is long enough for one of TCP/IP.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(address: [u8; 4], port: u16) -> sockaddr_storage {
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut name: sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: the storage is larger, and aligned for it.
        let to = unsafe { &mut *(&raw mut name).cast::<libc::sockaddr_in>() };
        to.sin_family = libc::AF_INET as u16;
        to.sin_port = port.to_be();
        to.sin_addr.s_addr = u32::from_ne_bytes(address);
        name
    }

    fn v6(address: [u8; 16], port: u16) -> sockaddr_storage {
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut name: sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: the storage is larger, and aligned for it.
        let to = unsafe { &mut *(&raw mut name).cast::<libc::sockaddr_in6>() };
        to.sin6_family = libc::AF_INET6 as u16;
        to.sin6_port = port.to_be();
        to.sin6_addr.s6_addr = address;
        name
    }

    const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    #[test]
    fn a_name_is_told_in_parts() {
        let (family, port, address) = parts(&v4([10, 1, 2, 3], 8080));
        assert_eq!((i32::from(family), port), (libc::AF_INET, 8080));
        assert_eq!(
            (&address[..4], &address[4..]),
            (&[10, 1, 2, 3][..], &[0; 12][..])
        );
        let (family, port, address) = parts(&v6(LOOPBACK, 443));
        assert_eq!(
            (i32::from(family), port, address),
            (libc::AF_INET6, 443, LOOPBACK)
        );
    }

    #[test]
    fn both_ends_are_here_if_they_have_one_address_or_one_is_loopback() {
        let here = v4([10, 0, 0, 1], 1);
        assert!(is_local(&here, &v4([10, 0, 0, 1], 2)));
        assert!(!is_local(&here, &v4([10, 0, 0, 2], 1)));
        assert!(is_local(&here, &v4([127, 9, 9, 9], 1)));
        let other = v6([0x20; 16], 1);
        assert!(is_local(&other, &v6(LOOPBACK, 1)));
        assert!(!is_local(&other, &v6([0x21; 16], 1)));
    }

    #[test]
    fn a_mapped_loopback_address_is_loopback() {
        let mut mapped = [0; 16];
        mapped[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
        assert!(is_local(&v6([0x20; 16], 1), &v6(mapped, 1)));
        mapped[12] = 128;
        assert!(!is_local(&v6([0x20; 16], 1), &v6(mapped, 1)));
    }

    #[test]
    fn the_port_that_a_program_names_is_read_if_it_can_be() {
        let length = size_of::<libc::sockaddr_in>() as u32;
        let port = |name: &sockaddr_storage, length| {
            // SAFETY: the name is this test's.
            unsafe { port_of(std::ptr::from_ref(name).cast(), length) }
        };
        assert_eq!(port(&v4([1; 4], 77), length), Some(77));
        assert_eq!(port(&v4([1; 4], 77), length - 1), None);
        let mut other = v4([1; 4], 77);
        other.ss_family = libc::AF_UNIX as u16;
        assert_eq!(port(&other, length), None);
        // SAFETY: refused before it is read.
        assert_eq!(unsafe { port_of(std::ptr::null(), length) }, None);
    }

    #[test]
    fn the_address_that_means_none_is_told_by_its_family() {
        let is = |family: i32, length| {
            let mut name = v4([0; 4], 0);
            name.ss_family = family as u16;
            // SAFETY: the name is this test's.
            unsafe { is_none((&raw const name).cast(), length) }
        };
        assert!(is(libc::AF_UNSPEC, 16) && is(libc::AF_UNSPEC, 2));
        assert!(!is(libc::AF_UNSPEC, 1) && !is(libc::AF_INET, 16));
    }
}
