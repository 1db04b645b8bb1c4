//! An array of `pollfd`, on the stack as long as it is small.

use libc::pollfd;

use crate::{Outcome, sys};

/// Entries on the stack; more need memory.
const SMALL: usize = 192;
/// Entries of a smaller array, for a poll of a few descriptors: it is filled in less time than a
/// function call takes.
const FEW: usize = 12;

/// The memory of a call with many descriptors. No destructor: a cancelled thread
/// runs none.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    at: *mut pollfd,
    bytes: usize,
}

impl Memory {
    /// For an array on the stack.
    pub(super) const NONE: Self = Self {
        at: std::ptr::null_mut(),
        bytes: 0,
    };

    pub(super) fn give_back(self) {
        if self.bytes != 0 {
            sys::unmap(self.at.cast(), self.bytes);
        }
    }
}

/// Runs `work` on an array of `count` entries; `None`: no memory.
pub(super) fn with_array(
    count: usize,
    work: impl FnOnce(&mut [pollfd], Memory) -> Outcome,
) -> Option<Outcome> {
    let unused = pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    };
    if count <= FEW {
        return Some(work(&mut [unused; FEW][..count], Memory::NONE));
    }
    if count <= SMALL {
        return Some(work(&mut [unused; SMALL][..count], Memory::NONE));
    }
    let bytes = count * size_of::<pollfd>();
    let memory = Memory {
        at: sys::map(bytes).cast(),
        bytes,
    };
    if memory.at.is_null() {
        return None;
    }
    // SAFETY: fresh zeroed memory of that size.
    let array = unsafe { std::slice::from_raw_parts_mut(memory.at, count) };
    let outcome = work(array, memory);
    memory.give_back();
    Some(outcome)
}
