//! System V calling convention: integers in rdi, rsi, rdx, rcx, r8, r9, floating
//! point in xmm0–xmm7, whose number is in al, the rest on the stack.

/// `$name` calls `$choose` with its own first three arguments and jumps to the
/// function that this returns, with all arguments as they came.
macro_rules! forward {
    ($($name:ident through $choose:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 184",
                ".cfi_adjust_cfa_offset 184",
                "mov [rsp + 128], rdi",
                "mov [rsp + 136], rsi",
                "mov [rsp + 144], rdx",
                "mov [rsp + 152], rcx",
                "mov [rsp + 160], r8",
                "mov [rsp + 168], r9",
                "mov [rsp + 176], rax",
                "test al, al",
                "jz 2f",
                "movaps [rsp], xmm0",
                "movaps [rsp + 16], xmm1",
                "movaps [rsp + 32], xmm2",
                "movaps [rsp + 48], xmm3",
                "movaps [rsp + 64], xmm4",
                "movaps [rsp + 80], xmm5",
                "movaps [rsp + 96], xmm6",
                "movaps [rsp + 112], xmm7",
                "2:",
                "call {choose}",
                "mov r11, rax",
                "mov rax, [rsp + 176]",
                "test al, al",
                "jz 3f",
                "movaps xmm0, [rsp]",
                "movaps xmm1, [rsp + 16]",
                "movaps xmm2, [rsp + 32]",
                "movaps xmm3, [rsp + 48]",
                "movaps xmm4, [rsp + 64]",
                "movaps xmm5, [rsp + 80]",
                "movaps xmm6, [rsp + 96]",
                "movaps xmm7, [rsp + 112]",
                "3:",
                "mov rdi, [rsp + 128]",
                "mov rsi, [rsp + 136]",
                "mov rdx, [rsp + 144]",
                "mov rcx, [rsp + 152]",
                "mov r8, [rsp + 160]",
                "mov r9, [rsp + 168]",
                "add rsp, 184",
                ".cfi_adjust_cfa_offset -184",
                "jmp r11",
                ".cfi_endproc",
                choose = sym $choose,
            )
        }
    )*};
}
pub(crate) use forward;

/// `$name(first, a, b, …)` calls `$collected(first, [a, b, …])`.
///
/// The arguments in registers are pushed where the return address was, right
/// below those that came on the stack, which makes one array of them.
macro_rules! collect {
    ($($name:ident through $collected:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "pop r11",
                ".cfi_def_cfa_offset 0",
                ".cfi_register rip, r11",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "mov rsi, rsp",
                "push r11",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rip, -48",
                "call {collected}",
                "pop r11",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_register rip, r11",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "push r11",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rip, -8",
                "ret",
                ".cfi_endproc",
                collected = sym $collected,
            )
        }
    )*};
}
pub(crate) use collect;
