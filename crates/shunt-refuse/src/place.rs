//! Where in a file's code a system call is made.

use std::fs;
use std::os::unix::fs::FileExt as _;

/// Words of the stack that are looked at for who called.
const WORDS: usize = 96;

/// Part of a process's memory that is one file's code.
struct Code {
    /// Where the file's first byte is.
    base: u64,
    start: u64,
    end: u64,
}

impl Code {
    fn has(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// (address, caller) in the file whose name ends so, of a thread that makes a system call at
/// `instruction`; the address is 0 if that is elsewhere, called from there. `None`: it has
/// nothing to do with that file.
pub(crate) fn find(thread: u32, instruction: u64, within: &str) -> Option<(u64, u64)> {
    let code = code(thread, within)?;
    let caller = caller(thread, &code);
    if code.has(instruction) {
        return Some((instruction - code.base, caller));
    }
    (caller != 0).then_some((0, caller))
}

/// Where the file lies in the memory of a process (`proc_pid_maps(5)`).
fn code(thread: u32, within: &str) -> Option<Code> {
    let maps = fs::read_to_string(format!("/proc/{thread}/maps")).ok()?;
    let mut base = None;
    for line in maps.lines().filter(|line| line.ends_with(within)) {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let access = words.next()?;
        let offset = words.next()?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        if number(offset)? == 0 {
            base.get_or_insert(start);
        }
        if access.contains('x') {
            return Some(Code {
                base: base?,
                start,
                end,
            });
        }
    }
    None
}

/// The first address on the stack that lies in the code: where a function that has no frame of
/// its own, or a small one, returns to. 0 if there is none.
fn caller(thread: u32, code: &Code) -> u64 {
    // The number of the call, its six arguments, the stack pointer, the instruction.
    let syscall = fs::read_to_string(format!("/proc/{thread}/syscall")).unwrap_or_default();
    let Some(stack) = syscall
        .split_whitespace()
        .nth(7)
        .and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok())
    else {
        return 0;
    };
    let mut bytes = [0u8; 8 * WORDS];
    let read = fs::File::open(format!("/proc/{thread}/mem"))
        .and_then(|memory| memory.read_at(&mut bytes, stack))
        .unwrap_or(0);
    let word = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().unwrap_or_default());
    bytes[..read]
        .chunks_exact(8)
        .map(word)
        .find(|&address| code.has(address))
        .map_or(0, |address| address - code.base)
}
