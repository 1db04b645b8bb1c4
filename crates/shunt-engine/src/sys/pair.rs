//! A TCP connection of which this process has both ends.

use libc::{c_int, sockaddr_storage, timeval};

use super::{Errno, address, close, fcntl, getsockopt, name, now, poll_ms, setsockopt, socket};

/// How long the handshake may take, in milliseconds: on one host it is over at once.
const PATIENCE_MS: i64 = 1000;

/// A socket of this process that another one of its own is about to be connected to.
pub(crate) struct Listener {
    fd: c_int,
    name: sockaddr_storage,
    /// Keeps a descriptor free for the accepted end: once one is needed it is too late to do without.
    spare: Option<c_int>,
}

impl Listener {
    /// Listens at this address, or at the other one if that is not of this network namespace. The kernel chooses
    /// the port.
    pub(crate) fn at(address: &sockaddr_storage, or: &sockaddr_storage) -> Option<Self> {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = socket(c_int::from(address.ss_family), kind).ok()?;
        let mut listener = Self {
            fd,
            name: *address,
            spare: None,
        };
        listener.begin(or).is_ok().then_some(listener)
    }

    fn begin(&mut self, or: &sockaddr_storage) -> Result<(), Errno> {
        bind(self.fd, &self.name).or_else(|_| bind(self.fd, or))?;
        call!(listen, self.fd, libc::SOMAXCONN)?;
        self.name = name(self.fd, false)?;
        self.spare = Some(fcntl(self.fd, libc::F_DUPFD_CLOEXEC, 0)? as c_int);
        Ok(())
    }

    /// Connects an unconnected socket, from that address if it may have it; the other end, which waits and is
    /// close-on-exec.
    pub(crate) fn connect(mut self, fd: c_int, from: &sockaddr_storage) -> Option<c_int> {
        let _ = bind(fd, from);
        let there = self.name;
        let connect = || call!(connect, fd, &raw const there, length(&there));
        let begun = within_patience(fd, connect);
        if !matches!(begun, Ok(_) | Err(libc::EINPROGRESS | libc::EINTR)) {
            return None;
        }
        let accepted = self.accept(&name(fd, false).ok()?)?;
        // A socket that does not wait counts as connected only after it has asked again.
        let _ = connect();
        Some(accepted)
    }

    fn accept(&mut self, from: &sockaddr_storage) -> Option<c_int> {
        self.spare.take().into_iter().for_each(close);
        let until = now() + PATIENCE_MS as u64 * 1_000_000;
        loop {
            match call!(accept4, self.fd, 0, 0, libc::SOCK_CLOEXEC) {
                Ok(accepted) => {
                    let accepted = accepted as c_int;
                    // Nobody else knows the port, but may try it.
                    if name(accepted, true).is_ok_and(|peer| is_same(&peer, from)) {
                        return Some(accepted);
                    }
                    close(accepted);
                }
                Err(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) if now() < until => {
                    poll_ms(self.fd, libc::POLLIN, PATIENCE_MS);
                }
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.spare.take().into_iter().for_each(close);
        close(self.fd);
    }
}

/// Makes a `connect` that waits for [`PATIENCE_MS`] at most.
fn within_patience(
    fd: c_int,
    connect: impl FnOnce() -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let bound = timeval {
        tv_sec: PATIENCE_MS / 1000,
        tv_usec: 0,
    };
    let set = |time: &timeval| setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, time);
    let former = getsockopt::<timeval>(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO);
    let _ = set(&bound);
    let connected = connect();
    if let Ok(former) = former {
        let _ = set(&former);
    }
    connected
}

fn bind(fd: c_int, name: &sockaddr_storage) -> Result<usize, Errno> {
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
        let connector = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        let listener = Listener::at(&any, &any).unwrap();
        let accepted = listener.connect(connector, &any).unwrap();
        let names = |fd| [false, true].map(|peer| address::parts(&name(fd, peer).unwrap()));
        let [here, there] = names(accepted);
        assert_eq!(names(connector), [there, here]);
        close(accepted);
        close(connector);
    }
}
