//! What the tests of identities share: sockets, network namespaces, and when a test is skipped.
#![allow(dead_code, unreachable_pub)] // Each test program uses its own part.

pub mod socket;

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use shunt_identity::{Identities, Identity, Side, Unavailable};
use socket::cookie;

/// More sockets than all tests that run at once make.
pub const PLENTY: u32 = 16 * 1024;

/// Says so also where the harness captures what tests print.
pub fn skip(test: &str, why: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "skipped: {test}: {why}");
}

/// Says that a test is skipped where the kernel lets it attach nothing.
pub fn attach_or_skip(test: &str, capacity: u32) -> Option<Identities> {
    match Identities::attach(capacity) {
        Ok(identities) => Some(identities),
        Err(why @ (Unavailable::NoCgroup | Unavailable::NotPermitted)) => {
            skip(test, why);
            None
        }
        Err(why) => panic!("{why}"),
    }
}

pub fn identity(identities: &Identities, socket: impl AsFd) -> Identity {
    identities.of(cookie(socket)).expect("recorded")
}

/// The cookie of the socket at the other end.
pub fn mirror(identities: &Identities, socket: impl AsFd) -> Option<u64> {
    let identity = identity(identities, socket);
    let (cookie, _) = identities.mirror(&identity)?;
    Some(cookie)
}

/// Asserts that two sockets are each other's only mirror, and that their records tell the truth.
pub fn assert_ends(identities: &Identities, connector: &TcpStream, acceptor: &TcpStream) {
    assert_eq!(mirror(identities, connector), Some(cookie(acceptor)));
    assert_eq!(mirror(identities, acceptor), Some(cookie(connector)));
    for (socket, side) in [(connector, Side::Connector), (acceptor, Side::Acceptor)] {
        let identity = identity(identities, socket);
        assert_eq!(identity.side, side);
        assert_eq!(identity.remote_port, socket.peer_addr().unwrap().port());
        assert_eq!(identity.netns, netns(socket));
    }
}

/// `SO_NETNS_COOKIE`.
pub fn netns(socket: impl AsFd) -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut value = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the value has room for as many bytes as the length says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    value
}

/// A network namespace without a name, which goes with its last socket. Its loopback device is up.
pub struct Namespace {
    file: File,
}

impl Namespace {
    pub fn new() -> io::Result<Self> {
        let make = || {
            // SAFETY: a network namespace has no memory and no descriptors; only this thread is moved, and it ends.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net")
        };
        let file = std::thread::spawn(make).join().unwrap()?;
        let namespace = Self { file };
        namespace.run("ip link set lo up");
        Ok(namespace)
    }

    /// As many as fit the pattern; says that the test is skipped if there can be none.
    pub fn several<const N: usize>(test: &str) -> Option<[Self; N]> {
        let made: io::Result<Vec<Self>> = (0..N).map(|_| Self::new()).collect();
        match made {
            Ok(made) => made.try_into().ok(),
            Err(why) => {
                skip(test, format!("no network namespaces: {why}"));
                None
            }
        }
    }

    /// Calls `f` in a thread that is in the namespace.
    pub fn within<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let inside = || {
                let kind = Some(LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(self.file.as_fd(), kind).unwrap();
                f()
            };
            scope.spawn(inside).join().unwrap()
        })
    }

    /// Runs a shell script in it; tells what it says if it fails.
    pub fn try_run(&self, script: &str) -> Result<(), String> {
        let command = || Command::new("sh").args(["-e", "-c", script]).output();
        let output = self.within(command).map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub fn run(&self, script: &str) {
        if let Err(why) = self.try_run(script) {
            panic!("{script}\n{why}");
        }
    }

    /// A pair of devices between this namespace and another, with an address on each side.
    pub fn join(&self, device: (&str, &[&str]), other: &Self, their: (&str, &[&str])) {
        let path = format!("/proc/{}/fd/{}", std::process::id(), other.file.as_raw_fd());
        let (name, their_name) = (device.0, their.0);
        self.run(&format!(
            "ip link add {name} type veth peer name {their_name} netns {path}"
        ));
        for (namespace, (name, addresses)) in [(self, device), (other, their)] {
            for address in addresses {
                let option = if address.contains(':') { "nodad" } else { "" };
                namespace.run(&format!("ip addr add {address} dev {name} {option}"));
            }
            namespace.run(&format!("ip link set {name} up"));
        }
    }

    pub fn listen(&self, address: &str) -> TcpListener {
        self.within(|| TcpListener::bind(address)).unwrap()
    }

    pub fn connect(&self, address: &str) -> TcpStream {
        self.within(|| TcpStream::connect(address)).unwrap()
    }
}
