//! Network namespaces, and clients that connect from them.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::net::SocketAddrUnix;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use shunt_abi::message::Message;

use super::Client;

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

    pub fn within<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let inside = || {
                let kind = Some(LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(self.0.as_fd(), kind).unwrap();
                f()
            };
            scope.spawn(inside).join().unwrap()
        })
    }

    pub fn run(&self, script: &str) {
        let status = self.within(|| Command::new("sh").args(["-e", "-c", script]).status());
        assert!(status.unwrap().success(), "{script}");
    }
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
