//! Whether the program can reach libc's standard streams, which call the kernel
//! directly: then what is connected to descriptors 0 and 1 must stay with that.

use std::sync::atomic::{AtomicU8, Ordering};

use super::objects::{Object, Relocation, each};

/// By these names a program reaches the streams, or more code that may.
const NAMES: &[&[u8]] = &[
    b"stdin",
    b"stdout",
    b"_IO_2_1_stdin_",
    b"_IO_2_1_stdout_",
    b"printf",
    b"vprintf",
    b"__printf_chk",
    b"__vprintf_chk",
    b"puts",
    b"putchar",
    b"putchar_unlocked",
    b"getchar",
    b"getchar_unlocked",
    b"gets",
    b"__gets_chk",
    b"scanf",
    b"vscanf",
    b"__isoc99_scanf",
    b"__isoc99_vscanf",
    b"__isoc23_scanf",
    b"__isoc23_vscanf",
    b"wprintf",
    b"vwprintf",
    b"__wprintf_chk",
    b"__vwprintf_chk",
    b"wscanf",
    b"vwscanf",
    b"__isoc99_wscanf",
    b"__isoc99_vwscanf",
    b"__isoc23_wscanf",
    b"__isoc23_vwscanf",
    b"getwchar",
    b"getwchar_unlocked",
    b"putwchar",
    b"putwchar_unlocked",
    b"dlopen",
    b"dlmopen",
];

/// Not asked yet; not; or so.
static ANSWER: AtomicU8 = AtomicU8::new(0);

/// Whether any object of the process but libc refers to the streams. Asked once:
/// without `dlopen` no more come.
pub(crate) fn are_streams_in_reach() -> bool {
    let known = ANSWER.load(Ordering::Relaxed);
    if known != 0 {
        return known == 2;
    }
    let mut found = false;
    each(|object| {
        found = refers(object);
        found
    });
    ANSWER.store(1 + u8::from(found), Ordering::Relaxed);
    found
}

/// Whether an object refers to the streams for itself: libc's own do so for others.
fn refers(object: &Object<'_>) -> bool {
    !object.is_libcs()
        && object
            .relocations()
            .map(Relocation::symbol)
            .filter(|&symbol| symbol != 0)
            .any(|symbol| NAMES.contains(&object.name(symbol).to_bytes()))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_rust_alone_does_not_reach_them() {
        assert!(!are_streams_in_reach());
    }

    #[test]
    fn libc_is_among_the_objects_and_left_out() {
        let mut found = false;
        each(|object| {
            found = object.is_libcs() && !refers(object);
            found
        });
        assert!(found);
    }
}
