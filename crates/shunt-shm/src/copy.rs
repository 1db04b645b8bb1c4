//! Copies between a ring and the program's memory, which may not be mapped: the kernel answers a
//! bad address with `EFAULT`, and so must we.
//!
//! Nobody can ask beforehand whether an address is good, so the copy is a
//! function of which every instruction may fault. A handler of `SIGSEGV` and
//! `SIGBUS` that finds the fault inside sends the thread to [`fix_up`], which
//! makes the function return what it had not copied yet.

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests;

/// Copies `n` bytes, or ends early at a bad address: returns how many bytes at
/// most are missing at the end, 0 if none. Only where a handler honours
/// [`fix_up`] is a bad address not the end of the process.
///
/// # Safety
/// The part of either side that is mapped may be read, or written.
#[inline(always)]
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, n: usize) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise. The registers are those that `shunt_copy` uses: it
    // leaves its callers more than a C function would.
    unsafe {
        let missing;
        std::arch::asm!(
            "call {copy}",
            copy = sym x86_64::shunt_copy,
            inlateout("rdi") target => _,
            inlateout("rsi") source => _,
            in("rdx") n,
            lateout("rax") missing,
            out("rcx") _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
        );
        missing
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's promise; without the fix-up both sides must be mapped.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, n);
        0
    }
}

/// The smallest page size: a page is mapped or not as a whole.
const PAGE: usize = 4096;

/// Whether all of `n` bytes at `at` can be read. Only where a handler honours [`fix_up`] is the
/// answer ever `false`.
#[must_use]
pub fn is_readable(at: *const u8, n: usize) -> bool {
    let mut byte = 0;
    // SAFETY: a byte of our own; a fault in reading ends the copy early.
    let mut one = |at| unsafe { copy(&raw mut byte, at, 1) == 0 };
    let first = PAGE - at.addr() % PAGE;
    // Most lie in one page.
    n == 0
        || one(at)
            && (n <= first
                || (first..n)
                    .step_by(PAGE)
                    .all(|page| one(at.wrapping_add(page))))
}

/// Whether the byte at `at` can be written: writes what is there. Only where a handler honours [`fix_up`]
/// is the answer ever `false`.
///
/// # Safety
/// Nobody else writes that byte meanwhile.
#[inline]
#[must_use]
pub unsafe fn is_writable(at: *mut u8) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise, and what the function leaves its caller.
    unsafe {
        let missing: u64;
        std::arch::asm!(
            "call {touch}",
            touch = sym x86_64::shunt_touch,
            in("rdi") at,
            lateout("rax") missing,
            out("rcx") _,
        );
        missing == 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = at;
        true
    }
}

/// Stores a word of 32 bits at `at`, and one of 64 right behind it: an event of epoll's, as it lies on
/// x86-64. `false`: not both of them can be. Only where a handler honours [`fix_up`] is a bad address not the
/// end of the process.
///
/// # Safety
/// What is mapped there may be written.
#[inline(always)]
#[must_use]
pub unsafe fn put_pair(at: *mut u8, first: u32, second: u64) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise, and what the function leaves its caller.
    unsafe {
        let missing: u64;
        std::arch::asm!(
            "call {put_pair}",
            put_pair = sym x86_64::shunt_put_pair,
            in("rdi") at,
            in("rsi") u64::from(first),
            in("rdx") second,
            lateout("rax") missing,
            out("rcx") _,
        );
        missing == 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's promise; without the fix-up it must be mapped.
    unsafe {
        at.cast::<u32>().write_unaligned(first);
        at.wrapping_add(4).cast::<u64>().write_unaligned(second);
        true
    }
}

/// Stores bytes there; `false`: not all of them can be. Only where a handler honours [`fix_up`]
/// is a bad address not the end of the process.
///
/// # Safety
/// What is mapped there may be written.
#[must_use]
pub unsafe fn put(at: *mut u8, bytes: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    unsafe { copy(at, bytes.as_ptr(), bytes.len()) == 0 }
}

/// The instruction at which a thread continues after a fault at `pc`, if `pc` is in one of these copies.
#[must_use]
pub fn fix_up(pc: usize) -> Option<usize> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let address = |label: unsafe extern "C" fn()| label as *const () as usize;
        let copy = address(x86_64::shunt_copy_begin)..address(x86_64::shunt_copy_end);
        copy.contains(&pc)
            .then(|| address(x86_64::shunt_copy_fix_up))
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = pc;
        None
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    unsafe extern "C" {
        pub(super) fn shunt_copy(target: *mut u8, source: *const u8, n: usize) -> usize;
        pub(super) fn shunt_touch(at: *mut u8) -> usize;
        pub(super) fn shunt_put_pair(at: *mut u8, first: u64, second: u64) -> usize;
        pub(super) fn shunt_copy_begin();
        pub(super) fn shunt_copy_end();
        pub(super) fn shunt_copy_fix_up();
    }

    // At each instruction that may fault rcx says how many bytes are missing. Of a copy up to 64 bytes
    // are all loaded before any is stored, in pieces that may overlap.
    std::arch::global_asm!(
        ".section .text.shunt_copy,\"ax\",@progbits",
        ".p2align 6",
        ".hidden shunt_copy",
        ".hidden shunt_touch",
        ".hidden shunt_put_pair",
        ".hidden shunt_copy_begin",
        ".hidden shunt_copy_end",
        ".hidden shunt_copy_fix_up",
        ".globl shunt_copy",
        ".globl shunt_touch",
        ".globl shunt_put_pair",
        ".globl shunt_copy_begin",
        ".globl shunt_copy_end",
        ".globl shunt_copy_fix_up",
        "shunt_copy_begin:",
        ".type shunt_touch, @function",
        "shunt_touch:",
        ".cfi_startproc",
        "mov ecx, 1",
        "or byte ptr [rdi], 0",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        ".size shunt_touch, . - shunt_touch",
        ".type shunt_put_pair, @function",
        "shunt_put_pair:",
        ".cfi_startproc",
        "mov ecx, 12",
        "mov dword ptr [rdi], esi",
        "mov qword ptr [rdi + 4], rdx",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        ".size shunt_put_pair, . - shunt_put_pair",
        ".p2align 6",
        ".type shunt_copy, @function",
        "shunt_copy:",
        ".cfi_startproc",
        "mov rcx, rdx",
        "cmp rdx, 16",
        "ja 14f",
        "cmp edx, 8",
        "jae 13f",
        "cmp edx, 4",
        "jae 12f",
        "test edx, edx",
        "jz 11f",
        // 2 and 3, or 1.
        "cmp edx, 1",
        "je 10f",
        "movzx eax, word ptr [rsi]",
        "movzx esi, word ptr [rsi + rdx - 2]",
        "mov word ptr [rdi], ax",
        "mov word ptr [rdi + rdx - 2], si",
        "xor eax, eax",
        "ret",
        "10:",
        "movzx eax, byte ptr [rsi]",
        "mov byte ptr [rdi], al",
        "11:",
        "xor eax, eax",
        "ret",
        // 4 to 7.
        "12:",
        "movd xmm0, dword ptr [rsi]",
        "movd xmm1, dword ptr [rsi + rdx - 4]",
        "movd dword ptr [rdi], xmm0",
        "movd dword ptr [rdi + rdx - 4], xmm1",
        "xor eax, eax",
        "ret",
        // 8 to 16.
        "13:",
        "movq xmm0, qword ptr [rsi]",
        "movq xmm1, qword ptr [rsi + rdx - 8]",
        "movq qword ptr [rdi], xmm0",
        "movq qword ptr [rdi + rdx - 8], xmm1",
        "xor eax, eax",
        "ret",
        "14:",
        "cmp rdx, 32",
        "ja 15f",
        // 17 to 32.
        "movups xmm0, xmmword ptr [rsi]",
        "movups xmm1, xmmword ptr [rsi + rdx - 16]",
        "movups xmmword ptr [rdi], xmm0",
        "movups xmmword ptr [rdi + rdx - 16], xmm1",
        "xor eax, eax",
        "ret",
        "15:",
        "cmp rdx, 64",
        "ja 16f",
        // 33 to 64.
        "movups xmm0, xmmword ptr [rsi]",
        "movups xmm1, xmmword ptr [rsi + 16]",
        "movups xmm2, xmmword ptr [rsi + rdx - 32]",
        "movups xmm3, xmmword ptr [rsi + rdx - 16]",
        "movups xmmword ptr [rdi], xmm0",
        "movups xmmword ptr [rdi + 16], xmm1",
        "movups xmmword ptr [rdi + rdx - 32], xmm2",
        "movups xmmword ptr [rdi + rdx - 16], xmm3",
        "xor eax, eax",
        "ret",
        "16:",
        "cmp rdx, {STRING}",
        "jae 18f",
        // Lines of 64 as long as more than one is missing, then the last one,
        // which may overlap what is copied.
        ".p2align 5",
        "17:",
        "movups xmm0, xmmword ptr [rsi]",
        "movups xmm1, xmmword ptr [rsi + 16]",
        "movups xmm2, xmmword ptr [rsi + 32]",
        "movups xmm3, xmmword ptr [rsi + 48]",
        "movups xmmword ptr [rdi], xmm0",
        "movups xmmword ptr [rdi + 16], xmm1",
        "movups xmmword ptr [rdi + 32], xmm2",
        "movups xmmword ptr [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rcx, 64",
        "cmp rcx, 64",
        "ja 17b",
        "movups xmm0, xmmword ptr [rsi + rcx - 64]",
        "movups xmm1, xmmword ptr [rsi + rcx - 48]",
        "movups xmm2, xmmword ptr [rsi + rcx - 32]",
        "movups xmm3, xmmword ptr [rsi + rcx - 16]",
        "movups xmmword ptr [rdi + rcx - 64], xmm0",
        "movups xmmword ptr [rdi + rcx - 48], xmm1",
        "movups xmmword ptr [rdi + rcx - 32], xmm2",
        "movups xmmword ptr [rdi + rcx - 16], xmm3",
        "xor eax, eax",
        "ret",
        "18:",
        "rep movsb",
        "xor eax, eax",
        "ret",
        "shunt_copy_end:",
        "shunt_copy_fix_up:",
        "mov rax, rcx",
        "ret",
        ".cfi_endproc",
        ".size shunt_copy, . - shunt_copy",
        ".text",
        STRING = const STRING,
    );

    /// From this many bytes on the processor's own string copy is as fast as any.
    const STRING: usize = 3072;
}
