//! What the kernel calls. It leaves no frame behind: the program's handler
//! finds the arguments, the stack and the return address that the kernel made,
//! so backtraces, `longjmp`, cancellation and exceptions pass as if we were not
//! there.

use std::sync::atomic::Ordering;

use libc::{c_int, c_void, siginfo_t};

use super::handlers::{ADDRESS, HANDLERS, INFO, ONCE, RESTARTS};
use super::note::note;
use super::once;
use crate::thread::undisturbed;

/// The trampoline's address, as the kernel knows it.
pub(super) fn counting() -> usize {
    count_and_jump as *const () as usize
}

/// Goes where `$choose`, given the kernel's arguments, says, with the same
/// arguments.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($choose:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "call {choose}",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "mov r11, rax",
            // As the kernel leaves it: no vector arguments.
            "xor eax, eax",
            "jmp r11",
            ".cfi_endproc",
            choose = sym $choose,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($choose:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x0, x1, [sp, #-32]!",
            ".cfi_adjust_cfa_offset 32",
            "stp x2, x30, [sp, #16]",
            ".cfi_offset x30, -8",
            "bl {choose}",
            "mov x16, x0",
            "ldp x2, x30, [sp, #16]",
            ".cfi_restore x30",
            "ldp x0, x1, [sp], #32",
            ".cfi_adjust_cfa_offset -32",
            "br x16",
            ".cfi_endproc",
            choose = sym $choose,
        )
    };
}

pub(super) use jump;

#[unsafe(naked)]
extern "C" fn count_and_jump() {
    jump!(chosen)
}

/// Counts, and names the program's handler; puts it off if the thread is in the
/// middle of an operation. Takes nothing.
///
/// # Safety
/// Called by the kernel, in effect.
unsafe extern "C" fn chosen(signal: c_int, info: *const siginfo_t, context: *mut c_void) -> usize {
    let entry = HANDLERS[signal as usize % HANDLERS.len()].load(Ordering::Relaxed);
    if undisturbed::has_begun() {
        let info = (entry & INFO != 0).then_some(info);
        // SAFETY: the kernel's own information, if it has filled it in.
        let code = info.map(|info| unsafe { (*info).si_code });
        if undisturbed::may_wait(signal, code) {
            if entry & ONCE != 0 {
                once::remember(signal, entry, counting());
            }
            // SAFETY: the kernel's own arguments.
            unsafe { undisturbed::put_off(signal, info, context) };
            return nothing as *const () as usize;
        }
    }
    // SAFETY: the kernel's own context.
    unsafe { note(entry & RESTARTS != 0, context) };
    match entry & ADDRESS {
        0 => nothing as *const () as usize,
        handler => handler,
    }
}

/// A handler that does nothing.
pub(super) extern "C" fn nothing() {}
