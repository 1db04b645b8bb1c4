//! The handler of `SIGSEGV` and `SIGBUS` once copies are guarded.

use std::sync::atomic::Ordering;

use libc::{SIG_DFL, c_int, c_void, siginfo_t};

use super::handlers::{ADDRESS, ONCE, RESTARTS, slot};
use super::note::note;
use super::trampoline::{jump, nothing};
use crate::sys;

/// Its address, as the kernel knows it.
pub(super) fn guarding() -> usize {
    guard_and_jump as *const () as usize
}

#[unsafe(naked)]
extern "C" fn guard_and_jump() {
    jump!(chosen)
}

/// The handler: names the function to go on with.
///
/// # Safety
/// Called by the kernel, in effect.
unsafe extern "C" fn chosen(signal: c_int, info: *mut siginfo_t, context: *mut c_void) -> usize {
    // SAFETY: the kernel passes a valid `siginfo_t`, there as long as the handler runs.
    let code = unsafe { (*info).si_code };
    // Sent signals have codes of 0 and below: where they strike says nothing.
    // SAFETY: the context and the information that the kernel passed to this handler.
    if code > 0 && unsafe { fix_up(context) } {
        return nothing as *const () as usize;
    }
    let Some(slot) = slot(signal) else {
        return nothing as *const () as usize;
    };
    let mut now = slot.load(Ordering::Relaxed);
    while now & ONCE != 0 && now & ADDRESS != 0 {
        // As the kernel does it for SA_RESETHAND: the handler goes, the flags stay.
        match slot.compare_exchange(now, now & !ADDRESS, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => break,
            Err(other) => now = other,
        }
    }
    match now & ADDRESS {
        SIG_DFL => {
            end(signal, info, code);
            nothing as *const () as usize
        }
        handler => {
            // SAFETY: the kernel's own context.
            unsafe { note(now & RESTARTS != 0, context) };
            handler
        }
    }
}

/// Lets the signal do what it does by default, as if we had never been there.
fn end(signal: c_int, info: *const siginfo_t, code: c_int) {
    if !sys::set_default(signal) {
        sys::exit(128 + signal);
    }
    // A bad address repeats itself when we return (`SEGV_MAPERR` and its like, of
    // either signal). What was sent or reported must be sent again.
    if !(1..=4).contains(&code) {
        sys::send_signal(signal, info);
    }
}

/// If a copy has faulted, lets it end early.
///
/// # Safety
/// `context` is what the kernel passed to the running handler.
#[cfg(target_arch = "x86_64")]
unsafe fn fix_up(context: *mut c_void) -> bool {
    // SAFETY: the caller's promise; it is a `ucontext_t`, there as long as the handler runs.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let pc = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    match shunt_shm::copy::fix_up(*pc as usize) {
        Some(go_on) => {
            *pc = go_on as i64;
            true
        }
        None => false,
    }
}

/// Copies fix nothing up here.
///
/// # Safety
/// Always.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn fix_up(_context: *mut c_void) -> bool {
    false
}
