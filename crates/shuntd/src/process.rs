//! What `/proc` says of a process (`proc(5)`).

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

use rustix::event::{PollFd, PollFlags, Timespec};

/// All processes that can be seen.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| process.file_name().to_str()?.parse().ok())
}

/// Calls `visit` with each of its descriptors and what that names; `None`: they cannot be
/// seen.
pub(crate) fn descriptors(pid: u32, mut visit: impl FnMut(i32, &[u8])) -> Option<()> {
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        let number = descriptor.file_name().to_str().and_then(|n| n.parse().ok());
        if let (Some(number), Ok(target)) = (number, fs::read_link(descriptor.path())) {
            visit(number, target.as_os_str().as_bytes());
        }
    }
    Some(())
}

/// Of its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// The effective user.
    pub(crate) user: u32,
    /// The user whom its new files and sockets belong to.
    pub(crate) owner: u32,
    /// Its group; `None`: it acts with rights of another user or group than its own, perhaps
    /// by an exec that gave them to it.
    pub(crate) group: Option<u32>,
    /// What it may do in its user namespace (`capabilities(7)`), a bit for each.
    capabilities: u64,
    /// Its number in its own PID namespace.
    pub(crate) inner_pid: u32,
}

/// The status of a process.
pub(crate) fn status(pid: u32) -> Option<Status> {
    parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse(text: &str) -> Option<Status> {
    let numbers = |name: &str| -> Option<Vec<u32>> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().map(|n| n.parse().ok()).collect()
    };
    let capabilities = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    // Real, effective, saved, file system.
    let (users, groups) = (numbers("Uid:")?, numbers("Gid:")?);
    let is_one = |ids: &[u32]| ids.iter().all(|id| Some(id) == ids.first());
    Some(Status {
        user: *users.get(1)?,
        owner: *users.get(3)?,
        group: groups
            .first()
            .copied()
            .filter(|_| is_one(&users) && is_one(&groups)),
        capabilities: u64::from_str_radix(capabilities.trim(), 16).ok()?,
        inner_pid: *numbers("NSpid:")?.last()?,
    })
}

/// How much memory it may lock, in bytes (`RLIMIT_MEMLOCK`).
pub(crate) fn lockable(pid: u32) -> Option<u64> {
    lockable_in(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

fn lockable_in(text: &str) -> Option<u64> {
    let limit = text
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    match limit.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// The paths of its control groups, one for each hierarchy (`cgroups(7)`).
pub(crate) fn cgroups(pid: u32) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // hierarchy:controllers:path
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    Some(paths.map(str::to_owned).collect())
}

/// The path of its program.
pub(crate) fn program(pid: u32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let path = path.to_string_lossy();
    // So the kernel shows one whose file is another by now, as after an upgrade of its package.
    Some(path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
}

/// What a process may do in its user namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights(u64);

impl Rights {
    /// What this process may do now.
    pub(crate) fn own() -> Option<Self> {
        status(std::process::id()).map(|status| Self(status.capabilities))
    }

    /// Whether a process has all of these, in the user namespace of this one.
    pub(crate) fn has(self, pid: u32) -> bool {
        let own = namespace(std::process::id(), "user");
        own.is_some()
            && namespace(pid, "user") == own
            && status(pid).is_some_and(|status| status.capabilities & self.0 == self.0)
    }
}

/// Whether a process lives in the network namespace of this one.
pub(crate) fn has_our_network(pid: u32) -> bool {
    let own = namespace(std::process::id(), "net");
    own.is_some() && namespace(pid, "net") == own
}

/// Which namespace of this kind a process lives in (`namespaces(7)`): device and inode number.
fn namespace(pid: u32, kind: &str) -> Option<(u64, u64)> {
    let file = fs::metadata(format!("/proc/{pid}/ns/{kind}")).ok()?;
    Some((file.dev(), file.ino()))
}

/// Whether the process of a pidfd has ended.
pub(crate) fn has_ended(pidfd: impl AsFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|n| n > 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::thread::CapabilitySet;

    use super::*;

    #[test]
    fn what_a_process_may_lock_is_its_soft_limit() {
        let line =
            "Max locked memory         65536                8388608              bytes     \n";
        assert_eq!(lockable_in(line), Some(65536));
        let line =
            "Max locked memory         unlimited            unlimited            bytes     \n";
        assert_eq!(lockable_in(line), Some(u64::MAX));
        assert_eq!(lockable_in("Max open files 7 7 files\n"), None);
        let own = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        let own = own.current.unwrap_or(u64::MAX);
        assert_eq!(lockable(std::process::id()), Some(own));
    }

    #[test]
    fn this_process_is_seen_with_its_descriptors() {
        let pid = std::process::id();
        assert!(all().any(|seen| seen == pid));
        let user = rustix::process::geteuid().as_raw();
        let seen = status(pid).unwrap();
        assert_eq!((seen.user, seen.owner, seen.inner_pid), (user, user, pid));
        assert_eq!(seen.group, Some(rustix::process::getegid().as_raw()));
        let file = rustix::fs::memfd_create("seen", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let mut found = Vec::new();
        descriptors(pid, |n, target| {
            if target == b"/memfd:seen (deleted)" {
                found.push(n);
            }
        })
        .unwrap();
        assert_eq!(found, [number]);
        assert_eq!(descriptors(u32::MAX, |_, _| ()), None);
        assert!(
            cgroups(pid)
                .unwrap()
                .iter()
                .all(|path| path.starts_with('/'))
        );
        let program = std::env::current_exe().unwrap();
        assert_eq!(super::program(pid).unwrap(), program.to_str().unwrap());
        assert_eq!((cgroups(u32::MAX), super::program(u32::MAX)), (None, None));
        assert_eq!(status(u32::MAX), None);
    }

    #[test]
    fn a_program_whose_file_was_replaced_goes_by_its_path_still() {
        let path = std::env::temp_dir().join(format!("shuntd-replaced-{}", std::process::id()));
        fs::copy("/bin/sleep", &path).unwrap();
        let mut child = Command::new(&path).arg("60").spawn().unwrap();
        fs::remove_file(&path).unwrap();
        let seen = program(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen.as_deref(), path.to_str());
    }

    #[test]
    fn root_without_capabilities_has_not_our_rights() {
        let own = std::process::id();
        let rights = Rights::own().unwrap();
        assert!(rights.has(own) && has_our_network(own));
        assert!(!rights.has(u32::MAX) && !has_our_network(u32::MAX));
        if status(own).unwrap().capabilities == 0 {
            return; // There is less than that only in another user namespace.
        }
        let begin = || {
            // What this thread starts has none after its exec.
            for capability in CapabilitySet::all().iter() {
                let _ = rustix::thread::remove_capability_from_bounding_set(capability);
            }
            Command::new("sleep").arg("60").spawn().unwrap()
        };
        let mut child = std::thread::scope(|scope| scope.spawn(begin).join().unwrap());
        let seen = (rights.has(child.id()), has_our_network(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen, (false, true));
    }

    #[test]
    fn who_acts_with_rights_of_others_has_no_group() {
        let group = |users: &str, groups: &str| {
            let text =
                format!("Name:\tit\nUid:\t{users}\nGid:\t{groups}\nCapEff:\t0\nNSpid:\t9\t1\n");
            parse(&text).unwrap().group
        };
        assert_eq!(group("1 1 1 1", "2 2 2 2"), Some(2));
        assert_eq!(group("1 0 0 0", "2 2 2 2"), None); // A set-user-ID program.
        assert_eq!(group("1 1 1 1", "2 3 3 3"), None); // A set-group-ID program.
        assert_eq!(group("0 1 0 1", "2 2 2 2"), None);
    }
}
