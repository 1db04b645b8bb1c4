//! `SIGSEGV` and `SIGBUS` once a connection is shunted: the fault of a copy is
//! our own affair (`EFAULT`), every other one the program's.
//!
//! The kernel has [`fault::guarding`] for these two, unless the program ignores
//! them (that a new program inherits, and a fault kills anyway). The program's
//! own disposition is kept here and answered for. A fault while the signal is
//! blocked kills, as the kernel does it: that bad buffer is no `EFAULT`.
//!
//! [`fault::guarding`]: super::fault::guarding

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::{mem, ptr};

use libc::{
    SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_DFL, SIGBUS, SIGSEGV, c_int, sigset_t,
};

use super::disposition::{handler_of, is_function};
use super::fault::guarding;
use super::handlers::{Action, Next, alone, bits, owns_table, slot};
use super::trampoline::counting;
use crate::{config, real};

/// The guard stands in for the program's dispositions, …
static ON: AtomicBool = AtomicBool::new(false);
/// … and the kernel has it.
static READY: AtomicBool = AtomicBool::new(false);

/// What the kernel would say of the program's disposition, beside its handler,
/// which is in the table like any other, 0 for `SIG_DFL`.
struct Kept {
    flags: AtomicI32,
    mask: AtomicU64,
    /// Libc sets it with the first disposition, and shows it.
    restorer: AtomicBool,
}

static KEPT: [Kept; 2] = [const {
    Kept {
        flags: AtomicI32::new(0),
        mask: AtomicU64::new(0),
        restorer: AtomicBool::new(false),
    }
}; 2];

fn kept(signal: c_int) -> &'static Kept {
    &KEPT[usize::from(signal == SIGBUS)]
}

/// Whether the guard may stand in for a signal's disposition.
pub(super) fn guards(signal: c_int) -> bool {
    matches!(signal, SIGSEGV | SIGBUS) && ON.load(Ordering::Relaxed)
}

/// Whether faults of copies are guarded. Where they cannot be, nobody can tell what is there, and
/// everything is taken to be.
#[inline]
pub(crate) fn is_guarded() -> bool {
    if !READY.load(Ordering::Acquire) {
        guard_copies();
    }
    READY.load(Ordering::Acquire)
}

/// Whether `count` structures of the program's can be read.
#[inline]
pub(crate) fn may_read<T>(at: *const T, count: usize) -> bool {
    !is_guarded() || shunt_shm::copy::is_readable(at.cast(), count.saturating_mul(size_of::<T>()))
}

/// Whether a byte of the program's can be written.
///
/// # Safety
/// Nobody else writes it meanwhile.
#[inline]
pub(crate) unsafe fn may_write(at: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    !is_guarded() || unsafe { shunt_shm::copy::is_writable(at) }
}

/// Whether there is a mask of signals that the kernel would take, or none.
#[inline]
pub(crate) fn may_mask(mask: *const sigset_t) -> bool {
    mask.is_null() || mask as usize >= 4096 && may_read(mask.cast::<u64>(), 1)
}

/// Stores these bytes for the program; `false`: they cannot be stored there.
///
/// # Safety
/// The program's, or no address of its.
pub(crate) unsafe fn put(at: *mut u8, bytes: &[u8]) -> bool {
    let is_address = at as usize >= 4096 || bytes.is_empty();
    if !READY.load(Ordering::Acquire) {
        guard_copies();
    }
    // SAFETY: the caller's promise.
    is_address && unsafe { shunt_shm::copy::put(at, bytes) }
}

/// Stores two numbers, of which times are made; likewise.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn put_time(at: *mut u8, seconds: i64, rest: i64) -> bool {
    let time = [seconds.to_ne_bytes(), rest.to_ne_bytes()];
    // SAFETY: the caller's promise.
    unsafe { put(at, time.as_flattened()) }
}

/// Makes bad buffers harmless, from now on: at the first connection in shared memory, or
/// the first structure that is read in front of the kernel. A process that has confined
/// itself makes no call for that.
#[cold]
pub(crate) fn guard_copies() {
    let able = cfg!(target_arch = "x86_64") && owns_table() && !config::is_confined();
    if !able || READY.load(Ordering::Acquire) {
        return;
    }
    /// # Safety
    /// As for `sigaction`: each action is null or valid.
    unsafe fn next(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { real::sigaction()(signal, new, old) }
    }
    alone(|| {
        if ON.swap(true, Ordering::Relaxed) {
            return;
        }
        for signal in [SIGSEGV, SIGBUS] {
            let Some(now) = ask(signal, next) else {
                continue;
            };
            // A handler that was set past us stays; it knows why.
            if now.sa_sigaction == SIG_DFL || now.sa_sigaction == counting() {
                stand_in(signal, now, next);
            }
        }
        READY.store(true, Ordering::Release);
    });
}

fn ask(signal: c_int, next: Next) -> Option<Action> {
    // SAFETY: a C struct of integers and pointers, for which zero is a value.
    let mut now: Action = unsafe { mem::zeroed() };
    // SAFETY: no new action, and room for the old one.
    (unsafe { next(signal, ptr::null(), &raw mut now) } == 0).then_some(now)
}

/// Lets `change` set the disposition with the real function, then keeps what
/// the kernel made of it and stands in for it.
pub(super) fn change<R>(signal: c_int, next: Next, change: impl FnOnce() -> R) -> R {
    alone(|| {
        let result = change();
        match ask(signal, next) {
            Some(now) if now.sa_sigaction == SIG_DFL || is_function(now.sa_sigaction) => {
                stand_in(signal, now, next)
            }
            _ => {}
        }
        result
    })
}

/// With the lock: puts the guard in the place of the program's disposition.
fn stand_in(signal: c_int, mut action: Action, next: Next) {
    let Some(slot) = slot(signal) else { return };
    let handler = handler_of(slot.load(Ordering::Relaxed), action.sa_sigaction);
    let flags = action.sa_flags;
    let kept = kept(signal);
    kept.flags.store(flags, Ordering::Relaxed);
    kept.mask.store(*mask(&mut action), Ordering::Relaxed);
    kept.restorer
        .store(action.sa_restorer.is_some(), Ordering::Relaxed);
    slot.store(handler | bits(flags), Ordering::Relaxed);

    action.sa_sigaction = guarding();
    if handler == SIG_DFL {
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
        *mask(&mut action) = 0;
    } else {
        // The kernel must not forget us after one signal.
        action.sa_flags = flags & !SA_RESETHAND | SA_SIGINFO;
    }
    // SAFETY: a complete action, whose handler is a function of ours that is never unloaded.
    unsafe { next(signal, &raw const action, ptr::null_mut()) };
}

/// The kernel's part of an action's mask.
fn mask(action: &mut Action) -> &mut u64 {
    // SAFETY: libc's sets begin with the kernel's 64 bits, aligned.
    unsafe { &mut *(&raw mut action.sa_mask).cast() }
}

/// Puts the program's flags and mask where the kernel named the guard.
pub(super) fn translate(signal: c_int, old: &mut Action) {
    if old.sa_sigaction != guarding() {
        return;
    }
    let kept = kept(signal);
    old.sa_flags = kept.flags.load(Ordering::Relaxed);
    *mask(old) = kept.mask.load(Ordering::Relaxed);
    if !kept.restorer.load(Ordering::Relaxed) {
        old.sa_restorer = None;
    }
}

/// `siginterrupt` has changed the flags in the kernel.
pub(super) fn changed_restart(signal: c_int, flags: c_int) {
    let kept = &kept(signal).flags;
    kept.store(
        kept.load(Ordering::Relaxed) & !SA_RESTART | flags & SA_RESTART,
        Ordering::Relaxed,
    );
}
