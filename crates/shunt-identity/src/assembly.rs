//! As much of an assembler as one small eBPF program needs (kernel documentation, `bpf/standardization/instruction-set.rst`).

use std::os::fd::{AsRawFd as _, BorrowedFd};

use zerocopy::{Immutable, IntoBytes};

/// A register. A call takes its arguments in 1 to 5, leaves its result in 0 and the others,
/// 6 to 9, as they are.
pub(crate) type Register = u8;

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Instruction {
    code: u8,
    /// The destination in the lower half, the source in the upper one (on a little-endian machine).
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(cfg!(target_endian = "little"));

const LOAD_WORD: u8 = 0x61;
const LOAD_IMMEDIATE: u8 = 0x18;
const STORE_WORD: u8 = 0x63;
const STORE_DOUBLE: u8 = 0x7b;
const ATOMIC_DOUBLE: u8 = 0xdb;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x0f;
const MOVE_IMMEDIATE: u8 = 0xb7;
const ADD_IMMEDIATE: u8 = 0x07;
const MULTIPLY_IMMEDIATE: u8 = 0x27;
const AND_IMMEDIATE: u8 = 0x57;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// In the place of the source register: the immediate value is the descriptor of a map of one entry, whose address is meant.
const MAP_VALUE: Register = 2;

/// In the place of the immediate value of [`ATOMIC_DOUBLE`].
const FETCH_ADD: i32 = 0x01;
const EXCHANGE: i32 = 0xe1;

/// A jump whose target is not there yet.
#[must_use]
pub(crate) struct Jump(usize);

/// A program in the making.
#[derive(Default)]
pub(crate) struct Assembly {
    instructions: Vec<Instruction>,
}

impl Assembly {
    pub(crate) fn finish(self) -> Vec<Instruction> {
        self.instructions
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.instructions.push(Instruction {
            code,
            registers: from << 4 | to,
            offset,
            immediate,
        });
    }

    /// `to = *(u32 *)(from + offset)`
    pub(crate) fn load_word(&mut self, to: Register, from: Register, offset: i16) {
        self.push(LOAD_WORD, to, from, offset, 0);
    }

    /// `*(u32 *)(to + offset) = from`
    pub(crate) fn store_word(&mut self, to: Register, offset: i16, from: Register) {
        self.push(STORE_WORD, to, from, offset, 0);
    }

    /// `*(u64 *)(to + offset) = from`
    pub(crate) fn store_double(&mut self, to: Register, offset: i16, from: Register) {
        self.push(STORE_DOUBLE, to, from, offset, 0);
    }

    /// Atomically: `*(u64 *)(to + offset)` grows by `from`. `from` is what it was.
    pub(crate) fn fetch_add(&mut self, to: Register, offset: i16, from: Register) {
        self.push(ATOMIC_DOUBLE, to, from, offset, FETCH_ADD);
    }

    /// Atomically: `*(u64 *)(to + offset)` becomes `from`. `from` is what it was.
    pub(crate) fn exchange(&mut self, to: Register, offset: i16, from: Register) {
        self.push(ATOMIC_DOUBLE, to, from, offset, EXCHANGE);
    }

    /// `to = from`
    pub(crate) fn copy(&mut self, to: Register, from: Register) {
        self.push(MOVE, to, from, 0, 0);
    }

    /// `to = value`
    pub(crate) fn set(&mut self, to: Register, value: i32) {
        self.push(MOVE_IMMEDIATE, to, 0, 0, value);
    }

    /// `to += from`
    pub(crate) fn add(&mut self, to: Register, from: Register) {
        self.push(ADD, to, from, 0, 0);
    }

    /// `to += value`
    pub(crate) fn add_value(&mut self, to: Register, value: i32) {
        self.push(ADD_IMMEDIATE, to, 0, 0, value);
    }

    /// `to *= value`
    pub(crate) fn multiply(&mut self, to: Register, value: i32) {
        self.push(MULTIPLY_IMMEDIATE, to, 0, 0, value);
    }

    /// `to &= value`
    pub(crate) fn and(&mut self, to: Register, value: i32) {
        self.push(AND_IMMEDIATE, to, 0, 0, value);
    }

    /// `to` = the address of the one entry of the map with this descriptor: an instruction of twice the size.
    pub(crate) fn map_value(&mut self, to: Register, map: BorrowedFd<'_>) {
        self.push(LOAD_IMMEDIATE, to, MAP_VALUE, 0, map.as_raw_fd());
        self.push(0, 0, 0, 0, 0);
    }

    /// `r0 = helper(r1, …, r5)`
    pub(crate) fn call(&mut self, helper: i32) {
        self.push(CALL, 0, 0, 0, helper);
    }

    pub(crate) fn exit(&mut self) {
        self.push(EXIT, 0, 0, 0, 0);
    }

    pub(crate) fn jump_if_equal(&mut self, register: Register, value: i32) -> Jump {
        self.jump_by(JUMP_IF_EQUAL, register, value)
    }

    pub(crate) fn jump_unless_equal(&mut self, register: Register, value: i32) -> Jump {
        self.jump_by(JUMP_UNLESS_EQUAL, register, value)
    }

    fn jump_by(&mut self, code: u8, register: Register, value: i32) -> Jump {
        self.push(code, register, 0, 0, value);
        Jump(self.instructions.len() - 1)
    }

    /// The next instruction is the target of `jump`.
    pub(crate) fn land(&mut self, Jump(from): Jump) {
        let distance = self.instructions.len() - from - 1;
        self.instructions[from].offset = i16::try_from(distance).expect("the program is short");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `llvm-mc -triple bpfel` encodes them.
    #[test]
    fn instructions_have_the_bytes_of_the_standard() {
        let mut code = Assembly::default();
        code.load_word(7, 6, 0x28); // r7 = *(u32 *)(r6 + 40)
        code.store_word(1, 8, 2); // *(u32 *)(r1 + 8) = r2
        code.store_double(1, 16, 8); // *(u64 *)(r1 + 16) = r8
        code.and(3, 0xffff); // r3 &= 65535
        code.multiply(3, 48); // r3 *= 48
        code.add(1, 3); // r1 += r3
        code.add_value(2, 1); // r2 += 1
        code.fetch_add(1, 0, 2); // r2 = atomic_fetch_add((u64 *)(r1 + 0), r2)
        code.exchange(1, 24, 2); // r2 = xchg_64(r1 + 24, r2)
        code.call(46); // call 46
        code.exit(); // exit
        let expected: [[u8; 8]; 11] = [
            [0x61, 0x67, 0x28, 0, 0, 0, 0, 0],
            [0x63, 0x21, 8, 0, 0, 0, 0, 0],
            [0x7b, 0x81, 16, 0, 0, 0, 0, 0],
            [0x57, 0x03, 0, 0, 0xff, 0xff, 0, 0],
            [0x27, 0x03, 0, 0, 48, 0, 0, 0],
            [0x0f, 0x31, 0, 0, 0, 0, 0, 0],
            [0x07, 0x02, 0, 0, 1, 0, 0, 0],
            [0xdb, 0x21, 0, 0, 1, 0, 0, 0],
            [0xdb, 0x21, 24, 0, 0xe1, 0, 0, 0],
            [0x85, 0, 0, 0, 46, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(code.finish().as_bytes(), expected.as_flattened());
    }

    #[test]
    fn a_jump_counts_the_instructions_that_it_skips() {
        let mut code = Assembly::default();
        let over = code.jump_if_equal(7, 4);
        code.exit();
        code.exit();
        code.land(over);
        code.exit();
        let expected = [0x15, 0x07, 2, 0, 4, 0, 0, 0];
        assert_eq!(code.finish()[0].as_bytes(), expected);
    }
}
