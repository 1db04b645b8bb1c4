//! Changes of user, root and rights. After a change of user or root the process
//! might no longer reach the daemon that serves it now, so it is reached before.
//! Servers that drop their rights before they open a socket (memcached, nginx's
//! workers) would otherwise never be shunted.

use std::ffi::{c_char, c_int, c_ulong};

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

/// Variadic in C; arguments that the option does not ask for are garbage.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    // Without a filter it only asks whether there are filters.
    let asks = second == libc::SECCOMP_MODE_FILTER.into() && third == 0;
    if option == libc::PR_SET_SECCOMP && !asks {
        quietly(life::before_confinement);
    }
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::prctl(option, second, third, fourth, fifth) }
}
