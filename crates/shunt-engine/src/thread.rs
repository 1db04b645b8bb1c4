//! Who we are: names of threads for tokens, the process id, and signals seen.

use std::sync::atomic::{AtomicU32, Ordering};

use shunt_shm::token::Holder;

use crate::sys;

static PID: AtomicU32 = AtomicU32::new(0);

/// Remembers the process id; at start and after a fork in the child.
pub(crate) fn learn_pid() {
    PID.store(sys::getpid(), Ordering::Relaxed);
}

/// The process id as last learned.
pub(crate) fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Whether this is the process that the state in memory belongs to. A `vfork`
/// child runs in its parent's memory with descriptors of its own: what it does
/// to them must leave no trace.
pub(crate) fn owns_memory() -> bool {
    sys::getpid() == pid()
}

/// This thread's name: its thread pointer and the process id. Unique among the
/// threads that can meet at a token, and free to read.
#[inline(always)]
pub(crate) fn me() -> Holder {
    let pointer: u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of the thread control block is its own address (psABI).
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the thread pointer.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    Holder((pointer >> 4) & ((1 << 42) - 1) | u64::from(PID.load(Ordering::Relaxed)) << 42)
}

/// A lock for rare operations, held for short and never asleep. Taking it in a
/// signal handler that interrupted its holder fails instead of deadlocking.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Lock(shunt_shm::token::Token);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(shunt_shm::token::Token::FREE)
    }

    /// Takes it, waiting for another thread; `false` if this thread has it.
    pub(crate) fn take(&self) -> bool {
        wait_for(&self.0)
    }

    /// Takes it if nobody has it.
    pub(crate) fn try_take(&self) -> bool {
        self.0.try_take(me()).is_ok()
    }

    pub(crate) fn give(&self) {
        self.0.give();
    }

    /// Frees it in a forked child, whose other threads do not exist.
    pub(crate) fn reset(&self) {
        self.0.reset();
    }
}

/// Takes a token, waiting for another holder; `false` if this thread has it.
#[inline]
pub(crate) fn wait_for(token: &shunt_shm::token::Token) -> bool {
    use shunt_shm::token::Taken;
    match token.try_take(me()) {
        Ok(()) => true,
        Err(Taken::ByUs) => false,
        Err(Taken::ByOther(_)) => wait_longer(token),
    }
}

#[cold]
fn wait_longer(token: &shunt_shm::token::Token) -> bool {
    let me = me();
    loop {
        for _ in 0..100 {
            if !token.is_taken() && token.try_take(me).is_ok() {
                return true;
            }
            std::hint::spin_loop();
        }
        sys::sched_yield();
    }
}

/// Signal handlers that have run on this thread since it started: all in the
/// low half, those without `SA_RESTART` in the high half.
pub mod signals {
    /// A count of handlers run; compare two to know whether one ran between.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Seen(u64);

    impl Seen {
        /// Whether any handler has run since.
        #[inline]
        #[must_use]
        pub fn any_since(self) -> bool {
            self != now()
        }

        /// Whether a handler without `SA_RESTART` has run since.
        #[inline]
        #[must_use]
        pub fn interrupting_since(self) -> bool {
            self.0 >> 32 != now().0 >> 32
        }
    }

    std::arch::global_asm!(
        ".section .tbss.shunt_signals,\"awT\",@nobits",
        ".p2align 3",
        ".type shunt_signals_seen, @object",
        ".size shunt_signals_seen, 8",
        ".hidden shunt_signals_seen",
        ".globl shunt_signals_seen",
        "shunt_signals_seen:",
        ".zero 8",
        ".text",
    );

    /// Where this thread's count is. Initial-exec, so that reading it calls
    /// nothing and is safe in a signal handler.
    #[inline(always)]
    fn count() -> *mut u64 {
        let at: *mut u64;
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

    /// What has been seen up to now.
    #[inline]
    #[must_use]
    pub fn now() -> Seen {
        // SAFETY: this thread's own word; a handler may change it between two reads.
        Seen(unsafe { count().read_volatile() })
    }

    /// A handler is about to run on this thread.
    pub fn note(restarting: bool) {
        let step = if restarting { 1 } else { 1 | 1 << 32 };
        let count = count();
        // SAFETY: this thread's own word; a nested handler can at worst hide one
        // of two counts, and either tells.
        unsafe { count.write_volatile(count.read_volatile().wrapping_add(step)) };
    }
}
