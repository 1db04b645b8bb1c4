//! Network namespaces, and clients that connect from them.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::net::SocketAddrUnix;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use shunt_abi::message::{FLAG_CROSSES, Message};

use super::{Client, Fixture, skip};

/// A network namespace, in which threads do what is to be done there.
pub struct Namespace(File);

impl Namespace {
    pub fn new() -> std::io::Result<Self> {
        let make = || {
            // SAFETY: only this thread's network namespace changes, and the thread ends.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net")
        };
        let namespace = Self(std::thread::spawn(make).join().unwrap()?);
        namespace.run("ip link set lo up");
        Ok(namespace)
    }

    /// Where a socket was made (`SIOCGSKNS`, for who has `CAP_NET_ADMIN` there).
    pub fn of(socket: impl AsFd) -> std::io::Result<Self> {
        // SAFETY: the request takes no argument.
        match unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGSKNS) } {
            -1 => Err(std::io::Error::last_os_error()),
            // SAFETY: the kernel has just made it for us.
            fd => Ok(Self(unsafe { File::from_raw_fd(fd) })),
        }
    }

    pub fn within<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let enter = self.enter();
            let inside = || {
                enter();
                f()
            };
            scope.spawn(inside).join().unwrap()
        })
    }

    /// What moves a thread there for good.
    pub fn enter(&self) -> impl FnOnce() + Send + use<> {
        let place = self.0.try_clone().unwrap();
        move || {
            let kind = Some(LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(place.as_fd(), kind).unwrap();
        }
    }

    pub fn run(&self, script: &str) {
        let status = self.within(|| Command::new("sh").args(["-e", "-c", script]).status());
        assert!(status.unwrap().success(), "{script}");
    }
}

/// A daemon for the host that listens at a file; `None` where the kernel lets it see no mirrors.
pub fn crossing(test: &str, config: &str) -> Option<(Fixture, PathBuf)> {
    let file = file(test);
    let daemon = Fixture::crossing(config, &file);
    if Client::welcome_at(&file).flags & FLAG_CROSSES == 0 {
        skip(&format!("{test}: no eBPF, or no unified cgroup hierarchy"));
        return None;
    }
    Some((daemon, file))
}

/// Two namespaces that reach each other: 10.77.0.1 and 10.77.0.2.
pub fn two(test: &str) -> Option<[Namespace; 2]> {
    let (Ok(one), Ok(other)) = (Namespace::new(), Namespace::new()) else {
        skip(&format!("{test}: no network namespaces"));
        return None;
    };
    // By the process of a thread that is there: the namespace has no other name.
    let mut holder = one.within(|| Command::new("sleep").arg("60").spawn().unwrap());
    let near = holder.id();
    other.run(&format!(
        "ip link add far type veth peer name near netns {near}
         ip addr add 10.77.0.2/24 dev far
         ip link set far up"
    ));
    one.run("ip addr add 10.77.0.1/24 dev near; ip link set near up");
    holder.kill().unwrap();
    holder.wait().unwrap();
    Some([one, other])
}

/// Where a test's daemon listens.
pub fn file(test: &str) -> PathBuf {
    let directory =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    directory.join("socket")
}

impl Client {
    /// Connects at a file, and is welcome.
    pub fn at(file: &Path) -> Self {
        Self::introduced(Self::knock(file), "test").0
    }

    pub fn welcome_at(file: &Path) -> Message {
        Self::introduced(Self::knock(file), "test").1
    }

    pub fn knock(file: &Path) -> Self {
        Self::dial(&SocketAddrUnix::new(file).unwrap())
    }
}
