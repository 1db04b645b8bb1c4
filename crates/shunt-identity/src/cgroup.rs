//! Where the unified cgroup hierarchy is mounted.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;

use rustix::fs::{Mode, OFlags};

use crate::Unavailable;

/// The root of the hierarchy. In a cgroup namespace (most containers) it is the namespace's own: then only connections
/// of the container are seen.
pub(crate) fn root() -> Result<OwnedFd, Unavailable> {
    let step = "find the root of the cgroup hierarchy";
    let path = mount_point().map_err(|error| Unavailable::Failed(step, error))?;
    let path = path.ok_or(Unavailable::NoCgroup)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Unavailable::Failed(step, error.into()))
}

fn mount_point() -> io::Result<Option<OsString>> {
    let mounts = match File::open("/proc/self/mountinfo") {
        Ok(mounts) => mounts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for line in BufReader::new(mounts).split(b'\n') {
        if let Some(path) = unified_root(&line?) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// The mount point that a line of `mountinfo` tells (proc_pid_mountinfo(5)), if it is of the whole unified hierarchy.
fn unified_root(line: &[u8]) -> Option<OsString> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (root, mount_point) = (fields.nth(3)?, fields.next()?);
    let _separator = fields.find(|field| *field == b"-")?;
    let kind = fields.next()?;
    (kind == b"cgroup2" && root == b"/").then(|| OsString::from_vec(unescaped(mount_point)))
}

/// Blanks and backslashes in a path are written as a backslash and three octal digits.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        let (byte, left) = match text {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                rest @ ..,
            ] => ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), rest),
            _ => (*first, rest),
        };
        bytes.push(byte);
        text = left;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn root_of(line: &str) -> Option<String> {
        unified_root(line.as_bytes()).map(|path| path.into_string().unwrap())
    }

    #[test]
    fn the_unified_hierarchy_is_found_alone_and_beside_others() {
        let alone =
            "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(root_of(alone).as_deref(), Some("/sys/fs/cgroup"));
        let hybrid = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
        assert_eq!(root_of(hybrid).as_deref(), Some("/sys/fs/cgroup/unified"));
        let tags = "41 31 0:38 / /cg\\040two rw shared:1 master:2 - cgroup2 none rw";
        assert_eq!(root_of(tags).as_deref(), Some("/cg two"));
    }

    proptest! {
        /// Whatever a mount point is called.
        #[test]
        fn any_line_is_a_path_or_none(name: Vec<u8>, rest: Vec<u8>) {
            let line = [b"41 31 0:38 / ", &*name, b" rw - cgroup2 cgroup2 rw", &*rest].concat();
            let path = unified_root(&line);
            if name.iter().all(|byte| !b"\\ ".contains(byte)) {
                prop_assert_eq!(path, Some(OsString::from_vec(name)));
            }
            let _ = unified_root(&rest);
        }
    }

    #[test]
    fn other_mounts_are_none() {
        for line in [
            "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755",
            "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory",
            "41 31 0:38 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            "41 31 0:38 / /cgroup2 rw",
            "41 31 0:38 / /mnt rw - ext4 cgroup2 rw",
            "",
        ] {
            assert_eq!(root_of(line), None, "{line}");
        }
    }
}
