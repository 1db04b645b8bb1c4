//! What the kernel says of a client's process beyond its user: for policy, quotas and lists. Looked up
//! once, when it is first needed.

use std::os::fd::AsFd;

use rustix::fs::fstat;

use crate::{container, process, sys};

/// It; `None`: could not be found out.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    /// The groups that its process belonged to when it connected.
    pub(crate) groups: Option<Vec<u32>>,
    /// The paths of its control groups, as the daemon sees them.
    pub(crate) cgroups: Option<Vec<String>>,
    /// The container that it is in.
    pub(crate) container: Option<String>,
    /// The path of its program, as it is called in its own mount namespace.
    pub(crate) program: Option<String>,
    /// The number of the network namespace in which it connected.
    pub(crate) namespace: Option<u64>,
}

impl Profile {
    /// Looks at the process that is at the other end of a socket.
    pub(crate) fn look(socket: impl AsFd, pidfd: impl AsFd, pid: u32) -> Self {
        let namespace = sys::namespace_of(&socket).and_then(|file| Ok(fstat(file)?));
        let mut profile = Self {
            groups: sys::peer_groups(&socket).ok(),
            namespace: namespace.ok().map(|file| file.st_ino),
            ..Self::default()
        };
        let (cgroups, program) = (process::cgroups(pid), process::program(pid));
        // Else the number may be another process's by now.
        if pid != 0 && !process::has_ended(pidfd) {
            (profile.cgroups, profile.program) = (cgroups, program);
        }
        let container = profile.cgroups.as_deref().and_then(container::of);
        profile.container = container.map(str::to_owned);
        profile
    }
}
