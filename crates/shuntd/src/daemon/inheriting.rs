//! A daemon that takes the place of one that was killed finds that one's clients, so that
//! none of them dies without a line, even if it never makes another call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use super::Daemon;
use super::accounting::Orphan;
use crate::account::{Account, Lines, Region, takes_lines};
use crate::foreign::Foreign;
use crate::process;
use crate::scan::Scan;
use crate::survivors::{self, Survivor};

/// The one look for survivors, and what it finds.
pub(super) type Inheriting = Scan<(), Vec<Survivor>>;

impl Daemon {
    /// Begins to look for the clients of the last daemon at our address.
    pub(super) fn look_for_survivors(&mut self) {
        if self.inheriting.begin(Vec::new(), survivors::find).is_err() {
            self.log
                .error("no thread to look for processes that another shuntd served");
        }
    }

    /// The look may be done.
    pub(super) fn inherit(&mut self) {
        for survivor in self.inheriting.finish().unwrap_or_default().1 {
            if let Some(orphan) = self.orphan(survivor) {
                self.add_orphan(orphan);
            }
        }
    }

    /// The process, if that one served it and it has not come to us by itself.
    fn orphan(&mut self, survivor: Survivor) -> Option<Orphan> {
        let Survivor { pid, region } = survivor;
        let number = Pid::from_raw(pid.cast_signed())?;
        let pidfd = rustix::process::pidfd_open(number, PidfdFlags::empty()).ok()?;
        let status = process::status(pid)?;
        let lane = self.lanes.of(status.user);
        let copy = |fd, access| {
            let file = copy(pidfd.as_fd(), pid, fd, access)?;
            Some(Foreign::new(file, &lane))
        };
        let region = Region::new(copy(region, OFlags::RDONLY)?)?;
        let owner = region.owner()?;
        // Others may hold it, too: a child that is just forked, a daemon of another user.
        if owner.pid != status.inner_pid || !self.is_served(&owner.served) {
            return None;
        }
        let known = self.clients.values().filter_map(|c| c.account.as_ref());
        let known = known.chain(self.orphans.values().map(|orphan| &orphan.account));
        if known.into_iter().any(|account| account.region.is(&region)) {
            return None;
        }
        let lines = status.group.and_then(|group| {
            let file = copy(owner.lines, OFlags::WRONLY | OFlags::APPEND)?;
            takes_lines(&file).then_some(Lines { file, group })
        });
        Some(Orphan {
            pidfd,
            pid,
            uid: status.user,
            netns: if process::has_our_network(pid) {
                self.address.0
            } else {
                0
            },
            lane,
            account: Account::new(region, lines),
            lost: Vec::new(),
            afar: Vec::new(),
        })
    }
}

/// A copy of a descriptor of a process. Where ptrace rules refuse it to a user's own
/// daemon, what it names is opened anew: the user could do that himself. (Root's rights
/// may be more than those of a process of root's.)
fn copy(pidfd: BorrowedFd<'_>, pid: u32, fd: i32, access: OFlags) -> Option<OwnedFd> {
    if fd < 0 {
        return None;
    }
    match rustix::process::pidfd_getfd(pidfd, fd, PidfdGetfdFlags::empty()) {
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS)
            if !rustix::process::geteuid().is_root() =>
        {
            let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
            rustix::fs::open(format!("/proc/{pid}/fd/{fd}"), flags, Mode::empty()).ok()
        }
        copied => copied.ok(),
    }
}
