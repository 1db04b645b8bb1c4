//! Changes of user, root, rights, limits and cores. After a change of user or root the process
//! might no longer reach the daemon that serves it now, so it is reached before.
//! Servers that drop their rights before they open a socket (memcached, nginx's
//! workers) would otherwise never be shunted.

use std::ffi::{c_char, c_int, c_uint, c_ulong};

use libc::{cpu_set_t, gid_t, pid_t, pthread_t, rlimit, rlimit64, uid_t};
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
unsafe extern "C-unwind" fn setgid(group: gid_t) -> c_int {
    quietly(life::before_new_group);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setgid(group) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setegid(group: gid_t) -> c_int {
    quietly(life::before_new_group);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setegid(group) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setregid(real: gid_t, effective: gid_t) -> c_int {
    quietly(life::before_new_group);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setregid(real, effective) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int {
    quietly(life::before_new_group);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setresgid(real, effective, saved) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setgroups(count: usize, groups: *const gid_t) -> c_int {
    quietly(life::before_new_group);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setgroups(count, groups) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn initgroups(user: *const c_char, group: gid_t) -> c_int {
    quietly(life::before_new_group);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::initgroups(user, group) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setfsuid(user: uid_t) -> c_int {
    quietly(life::before_own_identity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setfsuid(user) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setfsgid(group: gid_t) -> c_int {
    quietly(life::before_own_identity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::setfsgid(group) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    quietly(life::before_new_identity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::chroot(path) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sched_setaffinity(
    process: pid_t,
    size: usize,
    cores: *const cpu_set_t,
) -> c_int {
    quietly(life::before_affinity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::sched_setaffinity(process, size, cores) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_setaffinity_np(
    thread: pthread_t,
    size: usize,
    cores: *const cpu_set_t,
) -> c_int {
    quietly(life::before_affinity);
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::pthread_setaffinity_np(thread, size, cores) }
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

/// Whether a call that takes a process is about this one.
pub(super) fn is_this(process: pid_t) -> bool {
    // SAFETY: it takes nothing.
    process == 0 || process == unsafe { libc::getpid() }
}

/// Before a limit of this process is changed.
unsafe fn limiting(process: pid_t, resource: c_uint, new: *const rlimit) {
    if resource == libc::RLIMIT_NOFILE && is_this(process) {
        // SAFETY: the caller keeps the contract of `setrlimit`.
        quietly(|| unsafe { life::before_descriptor_limit(new) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    unsafe {
        limiting(0, resource, new);
        next::setrlimit(resource, new)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setrlimit64(resource: c_uint, new: *const rlimit64) -> c_int {
    // SAFETY: the caller keeps the function's contract; the two structures are the same.
    unsafe {
        limiting(0, resource, new.cast());
        next::setrlimit64(resource, new)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prlimit(
    process: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    unsafe {
        limiting(process, resource, new);
        next::prlimit(process, resource, new, old)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prlimit64(
    process: pid_t,
    resource: c_uint,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    // SAFETY: the caller keeps the function's contract; the two structures are the same.
    unsafe {
        limiting(process, resource, new.cast());
        next::prlimit64(process, resource, new, old)
    }
}
