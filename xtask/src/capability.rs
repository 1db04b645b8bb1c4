//! What this machine lets tests do; a default container lacks some of it.

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Resource, getrlimit};
use std::net::{Ipv6Addr, TcpListener};
use std::process::{Command, Stdio};

/// What was found.
pub(crate) struct Capabilities {
    /// IPv6's loopback address, `::1`.
    pub(crate) ipv6: bool,
    /// Copies of descriptors of other processes of the same user.
    pub(crate) pidfd_getfd: bool,
    /// Threads with descriptors of their own.
    pub(crate) unshare: bool,
    /// Memory whose faults a program answers by itself.
    pub(crate) userfaultfd: bool,
    /// Network and process namespaces of our own.
    pub(crate) namespaces: bool,
    /// Programs in the kernel that see connections being established.
    pub(crate) ebpf: bool,
    /// Processes that confine themselves to their own abstract addresses (Landlock's scopes, Linux 6.12).
    pub(crate) landlock: bool,
    /// Processes that trace others, as gdb and strace do.
    pub(crate) ptrace: bool,
    /// How many descriptors a process may open.
    descriptors: Option<u64>,
}

/// With `UFFD_USER_MODE_ONLY`, as the differential programs ask for it.
const USERFAULTFD: &str = "
import ctypes, os
number = {'x86_64': 323, 'aarch64': 282}[os.uname().machine]
raise SystemExit(ctypes.CDLL(None).syscall(number, 1) < 0)
";

/// Makes a map (`BPF_MAP_CREATE`) of a kind that takes the rights which shunt-identity needs (an LRU map), and looks for the
/// unified cgroup hierarchy.
const EBPF: &str = "
import ctypes, os, struct
number = {'x86_64': 321, 'aarch64': 280}[os.uname().machine]
attributes = struct.pack('7I16s', 9, 4, 4, 1, 0, 0, 0, b'')
refused = ctypes.CDLL(None).syscall(number, 0, attributes, len(attributes)) < 0
raise SystemExit(refused or ' - cgroup2 ' not in open('/proc/self/mountinfo').read())
";

/// Asks for the version of Landlock: scopes came with the sixth.
const LANDLOCK: &str = "
import ctypes
raise SystemExit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 6)
";

impl Capabilities {
    /// Tries everything once.
    pub(crate) fn probe() -> Self {
        let mut sleeper = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn();
        let pid = sleeper.as_ref().map_or(0, |child| child.id().cast_signed());
        let found = Self {
            ipv6: TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok(),
            pidfd_getfd: Pid::from_raw(pid).is_some_and(copies_from),
            unshare: succeeds(&["unshare", "true"]),
            userfaultfd: succeeds(&["python3", "-c", USERFAULTFD]),
            namespaces: succeeds(&[
                "unshare",
                "--map-root-user",
                "--net",
                "--pid",
                "--fork",
                "true",
            ]),
            ebpf: succeeds(&["python3", "-c", EBPF]),
            landlock: succeeds(&["python3", "-c", LANDLOCK]),
            ptrace: succeeds(&["strace", "-e", "trace=none", "true"]),
            descriptors: getrlimit(Resource::Nofile).current,
        };
        if let Ok(child) = &mut sleeper {
            let _ = child.kill();
            let _ = child.wait();
        }
        found
    }

    /// One line for people.
    pub(crate) fn summary(&self) -> String {
        let word = |there, name| format!("{name}: {}", if there { "yes" } else { "NO" });
        let limit = self
            .descriptors
            .map_or("no limit".into(), |n| n.to_string());
        [
            word(self.ipv6, "IPv6 loopback"),
            word(self.pidfd_getfd, "pidfd_getfd"),
            word(self.namespaces, "namespaces"),
            word(self.ebpf, "eBPF"),
            word(self.ptrace, "ptrace"),
            format!("descriptors: {limit}"),
        ]
        .join(", ")
    }
}

fn copies_from(process: Pid) -> bool {
    rustix::process::pidfd_open(process, PidfdFlags::empty())
        .and_then(|process| rustix::process::pidfd_getfd(process, 0, PidfdGetfdFlags::empty()))
        .is_ok()
}

fn succeeds(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
