//! Whether this thread is its process's only one, as far as libc knows: then nobody else
//! in the process can be at a token, and taking it needs no locked instruction.
//!
//! Libc says so itself, in a variable that it clears before it makes a thread
//! (`__libc_single_threaded`, glibc 2.32). It is libc's alone to write: what it sets up for
//! the first thread hangs on it. Threads that are made past it, by `clone`, are noted by
//! [`not_alone`].

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::identity::PROCESS;

/// Libc's variable, if it has it.
#[inline(always)]
fn flag() -> Option<&'static AtomicU8> {
    let at: *const AtomicU8;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads an entry of the global offset table.
    unsafe {
        std::arch::asm!(
            ".weak __libc_single_threaded",
            "mov {at}, qword ptr [rip + __libc_single_threaded@GOTPCREL]",
            at = out(reg) at,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            ".weak __libc_single_threaded",
            "adrp {at}, :got:__libc_single_threaded",
            "ldr {at}, [{at}, #:got_lo12:__libc_single_threaded]",
            at = out(reg) at,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    // SAFETY: null, or a `char` that lives as long as libc.
    unsafe { at.as_ref() }
}

/// Whether no other thread of this process can run before this one makes it.
#[inline(always)]
#[must_use]
pub fn is_alone() -> bool {
    flag().is_some_and(|flag| flag.load(Ordering::Relaxed) != 0)
        && !PROCESS.joined.load(Ordering::Relaxed)
}

/// Before a thread, or a process that runs on this memory at the same time, is made
/// past libc.
pub fn not_alone() {
    PROCESS.joined.store(true, Ordering::Relaxed);
}

/// Adds to a word of this process's own memory, wrapping, and returns what it was:
/// sequentially consistent, and without a locked instruction where nobody else looks at it.
#[inline(always)]
pub(crate) fn add(word: &AtomicU64, by: u64) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_alone() {
        let before;
        // SAFETY: the word is there. A signal handler comes before or after the one
        // instruction, and nobody else comes.
        unsafe {
            std::arch::asm!(
                "xadd qword ptr [{word}], {by}",
                word = in(reg) word.as_ptr(),
                by = inlateout(reg) by => before,
                options(nostack),
            );
        }
        return before;
    }
    word.fetch_add(by, Ordering::SeqCst)
}
