//! A TCP connection of which this process has both ends.

use libc::{c_int, sockaddr_storage};

use super::{Errno, address, close, name, poll_ms, socket};

/// How long the handshake may take, in milliseconds: on one host it is over at once.
const PATIENCE_MS: i64 = 1000;

/// A connection to one name from another; first the accepted end. Both are close-on-exec; the
/// accepted one waits.
pub(crate) fn connected(to: &sockaddr_storage, from: &sockaddr_storage) -> Option<[c_int; 2]> {
    let [listener, connector] = [(); 2].map(|()| tcp_socket(to));
    let accepted = match (&listener, &connector) {
        (Ok(listener), Ok(connector)) => handshake(*listener, *connector, to, from),
        _ => None,
    };
    if let Ok(listener) = listener {
        close(listener);
    }
    let connector = connector.ok()?;
    let Some(accepted) = accepted else {
        close(connector);
        return None;
    };
    Some([accepted, connector])
}

fn tcp_socket(family: &sockaddr_storage) -> Result<c_int, Errno> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    socket(c_int::from(family.ss_family), kind)
}

fn handshake(
    listener: c_int,
    connector: c_int,
    to: &sockaddr_storage,
    from: &sockaddr_storage,
) -> Option<c_int> {
    bind_name(listener, to).ok()?;
    call!(listen, listener, 1).ok()?;
    // The other end's address may be another network namespace's.
    let _ = bind_name(connector, from);
    let there = name(listener, false).ok()?;
    let begun = call!(connect, connector, &raw const there, length(&there));
    if !matches!(begun, Ok(_) | Err(libc::EINPROGRESS)) {
        return None;
    }
    let here = name(connector, false).ok()?;
    while poll_ms(listener, libc::POLLIN, PATIENCE_MS) != 0 {
        let accepted = call!(accept4, listener, 0, 0, libc::SOCK_CLOEXEC).ok()? as c_int;
        // Nobody else knows the port, but may try it.
        if name(accepted, true).is_ok_and(|peer| is_same(&peer, &here)) {
            return Some(accepted);
        }
        close(accepted);
    }
    None
}

fn bind_name(fd: c_int, name: &sockaddr_storage) -> Result<usize, Errno> {
    call!(bind, fd, std::ptr::from_ref(name), length(name))
}

fn length(name: &sockaddr_storage) -> usize {
    match c_int::from(name.ss_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        _ => size_of::<libc::sockaddr_in6>(),
    }
}

fn is_same(one: &sockaddr_storage, other: &sockaddr_storage) -> bool {
    address::parts(one) == address::parts(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_name_one_another() {
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut any: sockaddr_storage = unsafe { std::mem::zeroed() };
        any.ss_family = libc::AF_INET as u16;
        // SAFETY: the storage is larger, and aligned for it.
        let to = unsafe { &mut *(&raw mut any).cast::<libc::sockaddr_in>() };
        to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let [accepted, connector] = connected(&any, &any).unwrap();
        let names = |fd| [false, true].map(|peer| address::parts(&name(fd, peer).unwrap()));
        let [here, there] = names(accepted);
        assert_eq!(names(connector), [there, here]);
        close(accepted);
        close(connector);
    }
}
