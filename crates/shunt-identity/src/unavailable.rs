//! Why connections cannot be identified here.

use std::{error, fmt, io};

/// Why [`Identities::attach`](crate::Identities::attach) has failed. `Display` says it in a sentence.
#[derive(Debug)]
pub enum Unavailable {
    /// There is no unified cgroup hierarchy in this mount namespace.
    NoCgroup,
    /// The kernel does not let this process load or attach the program.
    NotPermitted,
    /// This kernel has no system call `bpf`.
    NotSupported,
    /// The kernel has refused the program for what it does, and says why.
    Refused(String),
    /// A step has failed for another reason.
    Failed(&'static str, io::Error),
}

impl Unavailable {
    /// What the kernel's answer to a step means.
    pub(crate) fn at(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| match error.raw_os_error() {
            Some(libc::EPERM) => Self::NotPermitted,
            Some(libc::ENOSYS) => Self::NotSupported,
            _ => Self::Failed(step, error),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCgroup => {
                f.write_str("there is no unified cgroup hierarchy (a mount of type cgroup2) here")
            }
            Self::NotPermitted => f.write_str(
                "the kernel lets this process load no eBPF program \
                 (it takes CAP_BPF and CAP_NET_ADMIN outside of any user namespace or container's seccomp filter)",
            ),
            Self::NotSupported => {
                f.write_str("this kernel was built without the bpf system call")
            }
            Self::Refused(why) => write!(
                f,
                "this kernel refuses the eBPF program (it takes Linux 5.15 or later): {why}"
            ),
            Self::Failed(step, error) => write!(f, "the kernel could not {step}: {error}"),
        }
    }
}

impl error::Error for Unavailable {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Failed(_, error) => Some(error),
            _ => None,
        }
    }
}
