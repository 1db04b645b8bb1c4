//! Whether the limits of a process leave room for shared memory.

use std::fs;

use rustix::process::Resource;
use shunt_abi::layout::{ADDRESSES, arena_bytes};

use super::Found;
use crate::library::Fault;

/// Soft limits; `u64::MAX` is none.
struct Limits {
    /// The length of a file.
    file: u64,
    addresses: u64,
    descriptors: u64,
}

/// Those of a process or, without one, those that the programs started from here inherit.
pub(super) fn check(pid: Option<u32>) -> Found {
    let Some(pid) = pid else {
        return own().verdict("`", " in the shell that starts the programs");
    };
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/limits")) else {
        return Ok(format!("those of process {pid} are not to be seen"));
    };
    read(&text).verdict("start it again by a shell after `", "")
}

fn own() -> Limits {
    let limit = |resource| {
        rustix::process::getrlimit(resource)
            .current
            .unwrap_or(u64::MAX)
    };
    Limits {
        file: limit(Resource::Fsize),
        addresses: limit(Resource::As),
        descriptors: limit(Resource::Nofile),
    }
}

/// As `proc_pid_limits(5)` tells them: a name, the soft limit, the hard limit.
fn read(text: &str) -> Limits {
    let limit = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name));
        let soft = rest.and_then(|rest| rest.split_whitespace().next());
        soft.and_then(|soft| soft.parse().ok()).unwrap_or(u64::MAX)
    };
    Limits {
        file: limit("Max file size"),
        addresses: limit("Max address space"),
        descriptors: limit("Max open files"),
    }
}

impl Limits {
    /// What they mean for Shunt; the words stand before and behind the command that lifts a limit.
    fn verdict(&self, before: &str, behind: &str) -> Found {
        let least = arena_bytes(1) as u64;
        let fault = |what: String, command: &str| {
            Err(Fault::new(what, format!("{before}{command}`{behind}")))
        };
        if self.file < least {
            let mib = least.div_ceil(1 << 20);
            let what = format!(
                "files may not be as long as shared memory ({mib} MiB or more, hardly any of it used)"
            );
            return fault(what, "ulimit -f unlimited");
        }
        if self.addresses / ADDRESSES < least {
            let mib = (ADDRESSES * least).div_ceil(1 << 20);
            let what = format!(
                "a process may not have the addresses for shared memory beside its own ({mib} MiB or more)"
            );
            return fault(what, "ulimit -v unlimited");
        }
        let reduced = if self.descriptors < 64 {
            "; reduced: Shunt's own are among those of the program"
        } else {
            ""
        };
        Ok(match self.descriptors {
            u64::MAX => "none that matters".into(),
            some => format!("{some} descriptors{reduced}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max file size             102400               unlimited            bytes     \n\
                    Max open files            1024                 524288               files     \n\
                    Max address space         unlimited            unlimited            bytes     \n";
        let limits = read(text);
        let found = (limits.file, limits.descriptors, limits.addresses);
        assert_eq!(found, (102_400, 1024, u64::MAX));
        let (own, seen) = (own(), fs::read_to_string("/proc/self/limits").unwrap());
        assert_eq!(own.descriptors, read(&seen).descriptors);
    }
}
