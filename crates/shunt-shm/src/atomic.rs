//! Atomics and barriers, switched to a model checker's: loom's tries every order of the steps
//! of a small scene, shuttle's random orders of a long one.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(model))]
pub use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

/// The cheap half of an asymmetric barrier, on the side that never sleeps: it
/// only keeps the compiler from reordering. Pairs with [`heavy`].
#[inline(always)]
pub fn light() {
    #[cfg(model)]
    fence(Ordering::SeqCst);
    #[cfg(not(model))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The dear half, on the side about to sleep: when it returns, every running
/// thread of every registered process has passed a full barrier
/// (`membarrier(2)`, `MEMBARRIER_CMD_GLOBAL_EXPEDITED`). Pairs with [`light`].
#[inline]
pub fn heavy() {
    #[cfg(model)]
    fence(Ordering::SeqCst);
    #[cfg(not(model))]
    {
        fence(Ordering::SeqCst);
        const GLOBAL_EXPEDITED: usize = 1 << 1;
        // SAFETY: membarrier takes no pointers. Where it is not there, `register`
        // has failed and nothing is ever shunted.
        let _ = unsafe { syscalls::syscall!(syscalls::Sysno::membarrier, GLOBAL_EXPEDITED, 0, 0) };
    }
}

/// A full barrier on both sides: where each of them pays its part, nobody needs
/// [`heavy`], which interrupts other processors.
#[inline(always)]
pub fn full() {
    #[cfg(any(model, miri, not(target_arch = "x86_64")))]
    fence(Ordering::SeqCst);
    #[cfg(not(any(model, miri, not(target_arch = "x86_64"))))]
    // SAFETY: changes nothing. A locked instruction is a full barrier (Intel SDM 3A,
    // 9.2.3.9), and takes half the time of the `mfence` that the compiler would use.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
    }
}

/// Registers this process as one that [`heavy`] reaches. `false` if the kernel
/// cannot: then this process must not share memory.
#[cfg(not(model))]
#[must_use]
pub fn register() -> bool {
    const REGISTER_GLOBAL_EXPEDITED: usize = 1 << 2;
    // SAFETY: membarrier takes no pointers.
    unsafe { syscalls::syscall!(syscalls::Sysno::membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) }
        .is_ok()
}

/// One turn of a spin loop.
#[inline(always)]
pub fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    #[cfg(not(model))]
    std::hint::spin_loop();
}
