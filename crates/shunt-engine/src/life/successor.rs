//! A process that has given up system calls may execute another program, which gets the filter with it and
//! can ask nobody whether that lets libshunt live. So it goes without.

use std::ffi::{CStr, c_char};

use crate::sys;

const PRELOAD: &[u8] = b"LD_PRELOAD=";

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Takes libshunt out of the environment that programs get from this process. The string may be the
/// program's own (`putenv`), and not to be written: another one takes its place.
pub(super) fn send_without() {
    let Some(own) = own_path() else { return };
    // SAFETY: libc's own array of strings, which a program must not change while another thread makes such
    // a call (`environ(7)`).
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let string = CStr::from_ptr(*at).to_bytes();
            if let Some(list) = string.strip_prefix(PRELOAD)
                && parts(list).any(|part| is_own(part, own))
            {
                replace(at, string, own);
            }
            at = at.add(1);
        }
    }
}

/// Puts a copy without libshunt in the place of a string. If there is no memory the string stays, and the
/// filter may kill the programs that are executed.
///
/// # Safety
/// `at` is that string's place, which may be written.
unsafe fn replace(at: *mut *mut c_char, string: &[u8], own: &[u8]) {
    let copy = sys::map(string.len() + 1);
    if copy.is_null() {
        return;
    }
    // SAFETY: as large, and zeros until now.
    let text = unsafe { std::slice::from_raw_parts_mut(copy, string.len()) };
    text.copy_from_slice(string);
    let left = PRELOAD.len() + remove(&mut text[PRELOAD.len()..], own);
    text[left..].fill(0);
    // SAFETY: the caller's promise.
    unsafe { at.write(copy.cast()) };
}

/// The entries of a list as `LD_PRELOAD` is one (`ld.so(8)`).
fn parts(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| matches!(byte, b':' | b' '))
}

/// Whether an entry is this library: by its path, by a name that the loader looks for, or by a path
/// from the program's directory, in whose place the loader has put that (`ld.so(8)`).
fn is_own(part: &[u8], own: &[u8]) -> bool {
    let name = own.rsplit(|&byte| byte == b'/').next();
    let from_program = part.strip_prefix(b"$ORIGIN");
    part == own || Some(part) == name || from_program.is_some_and(|rest| own.ends_with(rest))
}

/// The name by which the loader knows this library.
fn own_path() -> Option<&'static [u8]> {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: room for what is found; the name is there as long as the library.
    unsafe {
        let here = send_without as fn() as *const libc::c_void;
        (libc::dladdr(here, &raw mut found) != 0 && !found.dli_fname.is_null())
            .then(|| CStr::from_ptr(found.dli_fname).to_bytes())
    }
}

/// Removes a part from a list as `LD_PRELOAD` is one; how long it is then.
fn remove(list: &mut [u8], own: &[u8]) -> usize {
    let (mut from, mut to) = (0, 0);
    while from < list.len() {
        let rest = &list[from..];
        let ends = rest.iter().position(|byte| matches!(byte, b':' | b' '));
        let (length, step) = ends.map_or((rest.len(), rest.len()), |end| (end, end + 1));
        if !is_own(&rest[..length], own) {
            list.copy_within(from..from + step, to);
            to += step;
        }
        from += step;
    }
    to
}

#[cfg(test)]
mod tests {
    #[test]
    fn other_libraries_stay_in_the_list() {
        for (before, after) in [
            ("/x/libshunt.so", ""),
            ("/a.so:/x/libshunt.so:/b.so", "/a.so:/b.so"),
            ("/a.so /x/libshunt.so", "/a.so "),
            ("/a.so:/y/libshunt.so", "/a.so:/y/libshunt.so"),
            ("libshunt.so:/a.so", "/a.so"),
            ("/a.so:$ORIGIN/x/libshunt.so", "/a.so:"),
            ("$ORIGIN/y/libshunt.so:/a.so", "$ORIGIN/y/libshunt.so:/a.so"),
            ("", ""),
        ] {
            let mut list = before.as_bytes().to_vec();
            let left = super::remove(&mut list, b"/x/libshunt.so");
            assert_eq!(&list[..left], after.as_bytes());
        }
    }
}
