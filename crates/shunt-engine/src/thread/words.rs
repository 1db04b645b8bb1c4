//! What each thread keeps for itself, in memory that a signal handler may read, too.

use libc::c_int;

/// What each thread keeps for itself.
#[repr(C)]
pub(super) struct Words {
    /// Handlers that have run ([`super::signals`]).
    pub(super) seen: u64,
    /// How many operations are under way for which handlers wait ([`super::undisturbed`]).
    pub(super) depth: i32,
    /// Whether some handler waits.
    pub(super) put_off: bool,
    /// This thread does not share its descriptors with the others.
    apart: bool,
    /// The signal mask to restore when handlers need not wait any more.
    pub(super) mask: u64,
    /// The thread's name at tokens ([`super::token`]); 0: not known yet.
    pub(super) name: u64,
    /// The call that a handler would interrupt ([`super::under_way`]).
    pub(super) call: Call,
    /// How many such calls there have been.
    pub(super) calls: u32,
    /// 1 + the number of the place where this thread sleeps; 0: none.
    pub(super) place: c_int,
    /// Whom this thread calls ([`super::partner`]).
    pub(super) partner: Partner,
}

const _: () = assert!(size_of::<Words>() == 96);

std::arch::global_asm!(
    ".section .tbss.shunt_signals,\"awT\",@nobits",
    ".p2align 3",
    ".type shunt_signals_seen, @object",
    ".size shunt_signals_seen, 96",
    ".hidden shunt_signals_seen",
    ".globl shunt_signals_seen",
    "shunt_signals_seen:",
    ".zero 96",
    ".text",
);

/// Where this thread's words are. Initial-exec, so that reading them calls
/// nothing and is safe in a signal handler.
#[inline(always)]
pub(super) fn here() -> *mut Words {
    let at: *mut Words;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the standard initial-exec sequence for the variable above.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr [rip + shunt_signals_seen@GOTTPOFF]",
            "add {at}, qword ptr fs:[0]",
            at = out(reg) at,
            options(nostack, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "adrp {at}, :gottprel:shunt_signals_seen",
            "ldr {at}, [{at}, #:gottprel_lo12:shunt_signals_seen]",
            "mrs {thread}, tpidr_el0",
            "add {at}, {at}, {thread}",
            at = out(reg) at,
            thread = out(reg) _,
            options(nostack, readonly),
        );
    }
    at
}

/// This thread's words: no other thread is ever given them.
#[derive(Clone, Copy)]
pub(super) struct Own(*mut Words);

impl Own {
    #[inline(always)]
    pub(super) fn here() -> Self {
        Self(here())
    }

    /// The address of the words. A signal handler of this thread may change them at any moment.
    #[inline(always)]
    pub(super) fn get(self) -> *mut Words {
        self.0
    }
}

/// A call that a handler may interrupt. Plain values, which outlive the call's frame.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Call {
    /// What the call is counted on; null: there is no such call.
    pub(super) object: *const (),
    /// A number that tells the call from others of this thread.
    pub(super) number: u32,
}

/// Whom a thread has called last, which sleeps until it is called. All zero: nobody.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Partner {
    /// Which connection that was for; only compared.
    pub(super) connection: *const (),
    /// How many calls for this connection there were in a row.
    pub(super) calls: u64,
    /// When the turns began that are counted now (ticks).
    pub(super) since: u64,
    /// How long they took before this thread moved to its peer's core, or was to move; 0: neither lately.
    pub(super) before: u64,
    /// 1 + the core to which it is to move before it sleeps next; 0: none; more than any core has: away from its own.
    pub(super) wish: u64,
}

pub(super) fn is_apart() -> bool {
    // SAFETY: this thread's own words.
    unsafe { (*here()).apart }
}

/// This thread has descriptors of its own from now on.
pub(crate) fn set_apart() {
    // SAFETY: this thread's own words.
    unsafe { (*here()).apart = true }
}
