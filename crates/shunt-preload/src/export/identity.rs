//! Changes of user and root: afterwards the process might no longer reach the
//! daemon that serves it now, so it is reached before. Servers that drop their
//! rights before they open a socket (memcached, nginx's workers) would otherwise
//! never be shunted.

use std::ffi::{c_char, c_int};

use libc::uid_t;
use shunt_engine::life;

use crate::call::quietly;
use crate::next;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setuid(user: uid_t) -> c_int {
    quietly(life::before_new_identity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setuid(user) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn seteuid(user: uid_t) -> c_int {
    quietly(life::before_new_identity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::seteuid(user) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    quietly(life::before_new_identity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setreuid(real, effective) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    quietly(life::before_new_identity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setresuid(real, effective, saved) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    quietly(life::before_new_identity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::chroot(path) }
}
