//! A process that has given up system calls may execute another program, which gets the filter with it and
//! can ask nobody whether that lets libshunt live. So it goes without.

use std::ffi::{CStr, c_char};

const PRELOAD: &[u8] = b"LD_PRELOAD=";

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Takes libshunt out of the environment that programs get from this process: in place, since memory may
/// be hard to come by, and whoever has a copy of the pointers is to see it, too.
pub(super) fn send_without() {
    let Some(own) = own_path() else { return };
    // SAFETY: libc's own array of strings, which a program must not change while another thread makes such
    // a call (`environ(7)`).
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let string = CStr::from_ptr(*at).to_bytes();
            if string.starts_with(PRELOAD) {
                let value = (*at).add(PRELOAD.len()).cast::<u8>();
                let length = string.len() - PRELOAD.len();
                let left = remove(std::slice::from_raw_parts_mut(value, length), own);
                value.add(left).write(0);
            }
            at = at.add(1);
        }
    }
}

/// What the loader knows this library by.
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
fn remove(list: &mut [u8], part: &[u8]) -> usize {
    let (mut from, mut to) = (0, 0);
    while from < list.len() {
        let rest = &list[from..];
        let ends = rest.iter().position(|byte| matches!(byte, b':' | b' '));
        let (length, step) = ends.map_or((rest.len(), rest.len()), |end| (end, end + 1));
        if rest[..length] != *part {
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
            ("", ""),
        ] {
            let mut list = before.as_bytes().to_vec();
            let left = super::remove(&mut list, b"/x/libshunt.so");
            assert_eq!(&list[..left], after.as_bytes());
        }
    }
}
