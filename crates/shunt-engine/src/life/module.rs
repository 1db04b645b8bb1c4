//! Modules that a program opens (`dlopen(3)`).

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::sys;
pub use crate::sys::Objects;

/// How the loader is to be called for a module.
pub enum Opening {
    /// As by the program itself: by the address of the caller the loader goes where it looks for a module, and what it takes for `$ORIGIN`.
    Direct,
    /// By us, since [`after_open`] must follow; whoever calls, the loader finds the same.
    Followed,
}

/// Before a module is opened with these flags.
///
/// # Safety
/// `path` is null or a text.
#[must_use]
pub unsafe fn before_open(path: *const c_char, flags: c_int) -> Opening {
    if flags & libc::RTLD_DEEPBIND == 0 || path.is_null() {
        return Opening::Direct;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_found_by_all = match path.contains(&b'/') {
        true => !path.contains(&b'$'),
        false => !sys::has_search_path(),
    };
    if is_found_by_all {
        Opening::Followed
    } else {
        Opening::Direct
    }
}

/// A module has been opened with `RTLD_DEEPBIND`, where there were these objects `before`: what it calls of ours comes here from
/// now on.
///
/// # Safety
/// `dlopen` has just returned `module` to this thread.
pub unsafe fn after_open(module: *mut c_void, before: &Objects) {
    // SAFETY: the caller's promise.
    unsafe { sys::bind_module(module, before) };
}
