//! What the kernel calls. It leaves no frame behind: the program's handler
//! finds the arguments, the stack and the return address that the kernel made,
//! so backtraces, `longjmp`, cancellation and exceptions pass as if we were not
//! there.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::{ADDRESS, HANDLERS, RESTARTS};
use crate::thread::signals;

/// The trampoline's address, as the kernel knows it.
pub(super) fn trampoline() -> usize {
    count_and_jump as *const () as usize
}

/// The same for `SIGSEGV` and `SIGBUS` while copies are guarded.
pub(super) fn guard() -> usize {
    guard_and_jump as *const () as usize
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

#[unsafe(naked)]
extern "C" fn count_and_jump() {
    jump!(chosen)
}

#[unsafe(naked)]
extern "C" fn guard_and_jump() {
    jump!(super::guard::chosen)
}

/// Counts, and names the program's handler. Calls nothing, takes nothing.
extern "C" fn chosen(signal: c_int) -> usize {
    let entry = HANDLERS[signal as usize % HANDLERS.len()].load(Ordering::Relaxed);
    signals::note(entry & RESTARTS != 0);
    match entry & ADDRESS {
        0 => nothing as *const () as usize,
        handler => handler,
    }
}

/// A handler that does nothing.
pub(super) extern "C" fn nothing() {}
