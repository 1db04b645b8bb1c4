//! What the host's daemon may do of all that root may (`capabilities(7)`), once it serves.

use rustix::io::Result;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// | capability | what for |
/// |---|---|
/// | `SYS_PTRACE` | copy the sockets that other users' processes claim (`pidfd_getfd`), and see which program they run |
/// | `DAC_READ_SEARCH` | list other users' `/proc/PID/fd`: who else holds a connection |
/// | `SETUID`, `SETGID` | threads that act as the user whose descriptors they close and whose statistics they write |
/// | `NET_ADMIN` | ask a client's socket which network namespace it is of, for rules that name one |
const KEPT: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::NET_ADMIN);

/// This thread, and those that it starts from now on, may do no more than a daemon that serves has to.
///
/// # Errors
/// When the kernel refuses, which it does not: everybody may give up what is his.
pub fn give_up() -> Result<()> {
    keep(KEPT)
}

/// This thread may do nothing that needs a capability.
pub(crate) fn give_up_all() -> Result<()> {
    keep(CapabilitySet::empty())
}

fn keep(kept: CapabilitySet) -> Result<()> {
    for capability in kept.complement().iter() {
        // Not allowed to who has no CAP_SETPCAP. It matters for programs only that this one would start.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let _ = clear_ambient_capability_set(); // Empty as a rule.
    set_no_new_privs(true)?;
    let has = capabilities(None)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: has.effective & kept,
            permitted: has.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_given_up_keeps_what_it_needs_and_no_more() {
        let within = |give_up: fn() -> Result<()>| {
            let thread = std::thread::spawn(move || {
                let before = capabilities(None).unwrap();
                give_up().unwrap();
                (before, capabilities(None).unwrap())
            });
            thread.join().unwrap()
        };
        let (before, after) = within(give_up);
        assert_eq!(after.effective, before.effective & KEPT);
        assert_eq!(after.permitted, before.permitted & KEPT);
        assert!(after.inheritable.is_empty());
        assert!(!KEPT.intersects(CapabilitySet::SYS_ADMIN | CapabilitySet::BPF));
        let (_, after) = within(give_up_all);
        assert!(after.permitted.is_empty() && after.effective.is_empty());
    }
}
