//! Processes fork, become other programs and end.
//!
//! Not exported, on purpose:
//! * `fork`: handlers registered at start see it, and libc's own forks too.
//! * `exit`, `quick_exit`: handlers registered at start run after all others.

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use shunt_engine::{Outcome, life, not_alone};

use crate::call::{alias, quietly, quietly_with, set_errno};
use crate::next::Function;
use crate::trampoline::{collect, forward};
use crate::{forked, forked_child, next, prepare_fork_by, with_start};

/// Surrounds an exec, which returns only if it failed.
#[inline(always)]
pub(super) fn executing<T>(kernel: impl FnOnce() -> T) -> T {
    quietly(life::before_exec);
    let answer = kernel();
    quietly(life::after_exec);
    answer
}

/// Surrounds an exec of the file that `path` names in `directory`, with the flags of `execveat`.
///
/// # Safety
/// As for `execveat`.
#[inline(always)]
pub(super) unsafe fn executing_file<T: From<i8>>(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    kernel: impl FnOnce() -> T,
) -> T {
    if flags != 0 {
        return executing(kernel);
    }
    // SAFETY: the caller's promise.
    match quietly_with(|| unsafe { life::before_exec_of(directory, path) }) {
        Outcome::Fail(error) => {
            set_errno(error);
            return T::from(-1);
        }
        Outcome::Done(_) | Outcome::Kernel => {}
    }
    let answer = kernel();
    quietly(life::after_exec);
    answer
}

/// Before a fork that runs no handlers, with the flags of `clone`.
fn prepare_bare_fork(flags: u64) {
    quietly(next::before_bare_fork);
    prepare_fork_by(flags);
}

/// Whether a child with these flags of `clone` has its parent's table of descriptors, and is no thread of it.
fn has_same_table(flags: u64) -> bool {
    flags & (libc::CLONE_FILES | libc::CLONE_THREAD) as u64 == libc::CLONE_FILES as u64
}

/// Before any `clone`, with its flags.
pub(super) fn before_clone(flags: u64) {
    if has_same_table(flags) {
        quietly(next::before_bare_fork);
        quietly(life::before_sharing_table);
    }
}

/// Surrounds a call that returns 0 in a child with memory of its own, and has these flags of `clone`.
#[inline(always)]
pub(super) fn forking<T: PartialEq + From<i8>>(flags: u64, kernel: impl FnOnce() -> T) -> T {
    if has_same_table(flags) {
        return kernel();
    }
    prepare_bare_fork(flags);
    let child = kernel();
    if child == T::from(0) {
        forked_child();
    } else {
        forked();
    }
    child
}

type Strings = *const *const c_char;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    unsafe { executing_file(libc::AT_FDCWD, path, 0, || next::execve(path, argv, envp)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    unsafe { executing_file(libc::AT_FDCWD, path, 0, || next::execv(path, argv)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    executing(|| unsafe { next::execvp(file, argv) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    executing(|| unsafe { next::execvpe(file, argv, envp) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    executing(|| unsafe { next::fexecve(fd, argv, envp) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    unsafe {
        executing_file(directory, path, flags, || {
            next::execveat(directory, path, argv, envp, flags)
        })
    }
}

collect! {
    execl through collected_execl;
    execlp through collected_execlp;
    execle through collected_execle;
}

unsafe extern "C-unwind" fn collected_execl(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller ended its arguments with a null pointer.
    unsafe { execv(path, argv) }
}

unsafe extern "C-unwind" fn collected_execlp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: as above.
    unsafe { execvp(file, argv) }
}

/// The environment follows the null pointer that ends the arguments.
unsafe extern "C-unwind" fn collected_execle(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: as above.
    unsafe {
        let mut end = argv;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, argv, *end.add(1).cast::<Strings>())
    }
}

/// Runs no fork handlers, unlike `fork`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Fork() -> pid_t {
    // SAFETY: takes nothing; what holds in the child is `forking`'s matter.
    forking(0, || unsafe { next::_Fork() })
}

forward! {
    vfork through to_vfork;
    __vfork through to_vfork;
}

/// The child runs on its parent's memory, and returns through whoever called, first.
extern "C-unwind" fn to_vfork() -> Function {
    life::before_lending();
    next::address::vfork()
}

type Main = extern "C-unwind" fn(*mut c_void) -> c_int;

/// What a cloned child is to do once it knows that it is a child.
struct Child {
    main: Main,
    argument: *mut c_void,
}

extern "C-unwind" fn cloned_child(child: *mut c_void) -> c_int {
    forked_child();
    // SAFETY: the child's copy of what `clone` below passed.
    let child = unsafe { &*child.cast::<Child>() };
    (child.main)(child.argument)
}

/// Variadic in C; arguments that the flags do not ask for are garbage.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clone(
    main: Option<Main>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut pid_t,
    tls: *mut c_void,
    child: *mut pid_t,
) -> c_int {
    before_clone(flags as u64);
    let has = |flag| flags & flag != 0;
    let Some(function) = main.filter(|_| !has(libc::CLONE_VM) && !has_same_table(flags as u64))
    else {
        // A thread or a `vfork`, on a stack of its own, or a child that owns no descriptor.
        if has(libc::CLONE_VM) && !has(libc::CLONE_VFORK) {
            not_alone();
        }
        if has(libc::CLONE_VM) && !has(libc::CLONE_THREAD) {
            life::before_lending();
        }
        // SAFETY: the caller keeps the function's contract.
        return unsafe { next::clone(main, stack, flags, argument, parent, tls, child) };
    };
    let mut work = Child {
        main: function,
        argument,
    };
    let work = (&raw mut work).cast();
    prepare_bare_fork(flags as u64);
    // SAFETY: the caller's; `work` is in the memory that the child gets a copy of.
    let made = unsafe { next::clone(Some(cloned_child), stack, flags, work, parent, tls, child) };
    forked();
    made
}

with_start! {
/// Skips all handlers.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _exit(status: c_int) -> c_int {
    life::before_exit();
    // SAFETY: no memory is involved.
    unsafe { next::_exit(status) }
}
}

alias! {
    _Exit = _exit(status: c_int) -> c_int;
    __clone = clone(
        main: Option<Main>, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent: *mut pid_t, tls: *mut c_void, child: *mut pid_t,
    ) -> c_int;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    unsharing(flags, || unsafe { next::unshare(flags) })
}

pub(super) fn unsharing<T: PartialEq + From<i8>>(flags: c_int, kernel: impl FnOnce() -> T) -> T {
    quietly(|| life::before_unshare(flags));
    let result = kernel();
    if result == T::from(0) {
        quietly(|| life::after_unshare(flags));
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setns(fd: c_int, kind: c_int) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    joining(kind, || unsafe { next::setns(fd, kind) })
}

pub(super) fn joining<T: PartialEq + From<i8>>(kind: c_int, kernel: impl FnOnce() -> T) -> T {
    let result = kernel();
    if result == T::from(0) {
        quietly(|| life::after_setns(kind));
    }
    result
}

/// Libc copies and closes descriptors in a child that calls none of our functions.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    quietly(|| life::before_spawn(actions.addr()));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::posix_spawn(pid, path, actions, attributes, argv, envp) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    quietly(|| life::before_spawn(actions.addr()));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::posix_spawnp(pid, file, actions, attributes, argv, envp) }
}

/// Since glibc 2.39; `ENOSYS` from an older one, as from an older kernel.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pidfd_spawn(
    pidfd: *mut c_int,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    quietly(|| life::before_spawn(actions.addr()));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::pidfd_spawn(pidfd, path, actions, attributes, argv, envp) }
}

/// [`pidfd_spawn`] of a file that is looked for in `PATH`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pidfd_spawnp(
    pidfd: *mut c_int,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    quietly(|| life::before_spawn(actions.addr()));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::pidfd_spawnp(pidfd, file, actions, attributes, argv, envp) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    quietly(|| life::before_giving(actions.addr(), fd));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::posix_spawn_file_actions_adddup2(actions, fd, new) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_init(
    actions: *mut posix_spawn_file_actions_t,
) -> c_int {
    quietly(|| life::forget_given(actions.addr()));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::posix_spawn_file_actions_init(actions) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_destroy(
    actions: *mut posix_spawn_file_actions_t,
) -> c_int {
    quietly(|| life::forget_given(actions.addr()));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::posix_spawn_file_actions_destroy(actions) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    if !command.is_null() {
        quietly(|| life::before_spawn(0));
    }
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::system(command) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    quietly(|| life::before_spawn(0));
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::popen(command, mode) }
}
