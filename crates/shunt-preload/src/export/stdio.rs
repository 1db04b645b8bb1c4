//! Streams on descriptors. Libc's streams call the kernel directly, so a
//! descriptor that gets one goes back to it first.

use std::ffi::{c_char, c_int, c_void};

use libc::FILE;
use shunt_engine::life;

use crate::call::quietly;
use crate::next::{self, Function};
use crate::trampoline::forward;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller passes a string.
    let writes = unsafe {
        matches!(*mode as u8, b'w' | b'a') && libc::strchr(mode, i32::from(b'+')).is_null()
    };
    if writes {
        quietly(|| life::before_stdio_write(fd));
    } else {
        quietly(|| life::before_stdio(fd));
    }
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::fdopen(fd, mode) }
}

/// The stream's descriptor is about to be closed without our `close`.
///
/// # Safety
/// `stream` is open.
unsafe fn closing(stream: *mut FILE) {
    quietly(|| {
        // SAFETY: the caller keeps the function's contract.
        let fd = unsafe { libc::fileno(stream) };
        if fd >= 0 {
            let _ = life::close(fd);
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    unsafe {
        closing(stream);
        next::fclose(stream)
    }
}

/// Also closes the descriptor if it fails.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller keeps the function's contract.
    unsafe {
        closing(stream);
        next::freopen(path, mode, stream)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller keeps the function's contract.
    unsafe {
        closing(stream);
        next::freopen64(path, mode, stream)
    }
}

/// A `va_list` is passed by address on x86-64 and AArch64.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vdprintf(
    fd: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    quietly(|| life::before_stdio_write(fd));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::vdprintf(fd, format, arguments) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    quietly(|| life::before_stdio_write(fd));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::__vdprintf_chk(fd, flag, format, arguments) }
}

forward! {
    dprintf through to_dprintf;
    __dprintf_chk through to_dprintf_chk;
}

extern "C-unwind" fn to_dprintf(fd: c_int) -> Function {
    quietly(|| life::before_stdio_write(fd));
    next::address::dprintf()
}

extern "C-unwind" fn to_dprintf_chk(fd: c_int) -> Function {
    quietly(|| life::before_stdio_write(fd));
    next::address::__dprintf_chk()
}
