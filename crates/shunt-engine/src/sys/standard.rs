//! Whether the program can reach libc's standard streams, which call the kernel
//! directly: then what is connected to descriptors 0 and 1 must stay with that.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

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

/// libc's own objects, which use the streams only for others.
const LIBC: &[&[u8]] = &[
    b"libc.so",
    b"ld-linux",
    b"libm.so",
    b"libpthread.so",
    b"libdl.so",
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
    // SAFETY: the callback keeps to what the loader hands it.
    let found = unsafe { libc::dl_iterate_phdr(Some(look), std::ptr::null_mut()) } != 0;
    ANSWER.store(1 + u8::from(found), Ordering::Relaxed);
    found
}

/// The tables of an object that name what it refers to (ELF gABI, "Dynamic Section").
struct Tables {
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    soname: Option<usize>,
    /// Relocations and how many bytes of them there are, twice.
    relocations: [(*const Relocation, usize); 2],
}

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// # Safety
/// Called by `dl_iterate_phdr`.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader's own tables of a mapped object.
    unsafe { c_int::from(tables(&*info).is_some_and(|tables| refers(&tables))) }
}

/// # Safety
/// Of a mapped object, as the loader describes it.
unsafe fn tables(info: &libc::dl_phdr_info) -> Option<Tables> {
    const SYMBOLS: u64 = 6;
    const NAMES: u64 = 5;
    const SONAME: u64 = 14;
    const RELOCATIONS: u64 = 7;
    const RELOCATIONS_SIZE: u64 = 8;
    const JUMPS: u64 = 23;
    const JUMPS_SIZE: u64 = 2;
    let base = info.dlpi_addr;
    // Relocated in place, except of the vDSO.
    let at = |value: u64| if value < base { base + value } else { value };
    let mut tables = Tables {
        symbols: std::ptr::null(),
        names: std::ptr::null(),
        soname: None,
        relocations: [(std::ptr::null(), 0); 2],
    };
    // SAFETY: the caller's promise.
    unsafe {
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        let dynamic = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC)?;
        let mut entry = (base + dynamic.p_vaddr) as *const (u64, u64);
        while let (tag @ 1.., value) = *entry {
            match tag {
                SYMBOLS => tables.symbols = at(value) as *const _,
                NAMES => tables.names = at(value) as *const _,
                SONAME => tables.soname = Some(value as usize),
                RELOCATIONS => tables.relocations[0].0 = at(value) as *const _,
                RELOCATIONS_SIZE => tables.relocations[0].1 = value as usize,
                JUMPS => tables.relocations[1].0 = at(value) as *const _,
                JUMPS_SIZE => tables.relocations[1].1 = value as usize,
                _ => {}
            }
            entry = entry.add(1);
        }
    }
    (!tables.symbols.is_null() && !tables.names.is_null()).then_some(tables)
}

/// # Safety
/// Of a mapped object.
unsafe fn refers(tables: &Tables) -> bool {
    // SAFETY: the caller's promise; names in the table end with a zero.
    unsafe {
        let name = |at: usize| CStr::from_ptr(tables.names.add(at)).to_bytes();
        if let Some(soname) = tables.soname
            && LIBC.iter().any(|own| name(soname).starts_with(own))
        {
            return false;
        }
        tables
            .relocations
            .iter()
            .filter(|(first, _)| !first.is_null())
            .flat_map(|&(first, bytes)| {
                std::slice::from_raw_parts(first, bytes / size_of::<Relocation>())
            })
            .map(|relocation| (relocation.info >> 32) as usize)
            .filter(|&symbol| symbol != 0)
            .any(|symbol| {
                let symbol = &*tables.symbols.add(symbol);
                NAMES.contains(&name(symbol.st_name as usize))
            })
    }
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
        unsafe extern "C" fn is_libc(
            info: *mut libc::dl_phdr_info,
            _: usize,
            _: *mut c_void,
        ) -> c_int {
            // SAFETY: the loader's own tables of a mapped object.
            unsafe {
                let Some(tables) = tables(&*info) else {
                    return 0;
                };
                let name = |at: usize| CStr::from_ptr(tables.names.add(at)).to_bytes();
                let libc = tables
                    .soname
                    .is_some_and(|at| name(at).starts_with(b"libc.so"));
                c_int::from(libc && !refers(&tables))
            }
        }
        // SAFETY: the callback keeps to what the loader hands it.
        let found = unsafe { libc::dl_iterate_phdr(Some(is_libc), std::ptr::null_mut()) };
        assert_eq!(found, 1);
    }
}
