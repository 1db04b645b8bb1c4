//! The functions that ours stand in front of.
//!
//! They are looked up on first use, not at start: most programs need a few.
//! Where libc is older than a function, or still busy with a look-up of ours,
//! the system call to the right of the `=` takes its place.

mod cell;
pub(crate) mod raw;

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};

use cell::Cell;
pub(crate) use cell::Function;
use libc::{
    FILE, aiocb, epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, rlimit, rlimit64, sigaction as Action, sigevent,
    sighandler_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, stat, stat64, timespec, timeval,
};
use raw::SIGSET_SIZE;
use syscalls::{Errno, Sysno, syscall as sys};

use crate::call::answer;

/// Defines for each symbol a function that calls its next definition, and the
/// cell that holds it. The signature must be that of the `libc` crate, unless
/// an attribute says why there is nothing to compare with.
macro_rules! next {
    ($($(#[$unchecked:ident])? $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $(= $kernel:expr)?;)*) => {
        $(
            next!(@check $(#[$unchecked])? $name($($type),*) -> $result);

            /// # Safety
            /// As the libc function of this name.
            #[inline(always)]
            // Trampolines take the address only, and the names are libc's.
            #[allow(dead_code, non_snake_case)]
            pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
                // SAFETY: the symbol has this signature.
                let next = unsafe {
                    mem::transmute::<Function, unsafe extern "C-unwind" fn($($type),*) -> $result>(address::$name())
                };
                // SAFETY: the caller keeps the function's contract.
                unsafe { next($($arg),*) }
            }
        )*

        /// Where the next definitions are.
        pub(crate) mod address {
            use super::*;
            $(
                #[inline(always)]
                // The names are libc's.
                #[allow(non_snake_case)]
                pub(crate) fn $name() -> Function {
                    static CELL: Cell = Cell::new();
                    CELL.get(|| (
                        // SAFETY: one NUL, at the end.
                        unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
                        next!(@fallback ($($arg: $type),*) -> $result $(= $kernel)?),
                    ))
                }
            )*
        }

        /// Looks everything up.
        fn prepare_all() {
            $(address::$name();)*
        }
    };
    (@check $name:ident($($type:ty),*) -> $result:ty) => {
        const _: unsafe extern "C" fn($($type),*) -> $result = libc::$name;
    };
    (@check #[$unchecked:ident] $name:ident($($type:ty),*) -> $result:ty) => {};
    (@fallback ($($arg:ident: $type:ty),*) -> $result:ty = $kernel:expr) => {{
        // What there is no call for takes them, and does nothing with them.
        #[allow(unused_variables)]
        unsafe extern "C-unwind" fn fallback($($arg: $type),*) -> $result {
            // SAFETY: the caller keeps the contract of the libc function.
            answer(unsafe { $kernel }) as $result
        }
        // SAFETY: a cell gives it back as the type that it was stored under.
        Some(unsafe { mem::transmute::<unsafe extern "C-unwind" fn($($type),*) -> $result, Function>(fallback) })
    }};
    (@fallback ($($arg:ident: $type:ty),*) -> $result:ty) => { None };
}

next! {
    // Data.
    read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t = sys!(Sysno::read, fd, buffer, length);
    write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t = sys!(Sysno::write, fd, buffer, length);
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = sys!(Sysno::readv, fd, iov, count);
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = sys!(Sysno::writev, fd, iov, count);
    preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        = sys!(Sysno::preadv2, fd, iov, count, offset, 0, flags);
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        = sys!(Sysno::pwritev2, fd, iov, count, offset, 0, flags);
    recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t
        = sys!(Sysno::recvfrom, fd, buffer, length, flags, 0, 0);
    send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t
        = sys!(Sysno::sendto, fd, buffer, length, flags, 0, 0);
    recvfrom(
        fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int,
        address: *mut sockaddr, address_length: *mut socklen_t,
    ) -> ssize_t = sys!(Sysno::recvfrom, fd, buffer, length, flags, address, address_length);
    sendto(
        fd: c_int, buffer: *const c_void, length: size_t, flags: c_int,
        address: *const sockaddr, address_length: socklen_t,
    ) -> ssize_t = sys!(Sysno::sendto, fd, buffer, length, flags, address, address_length);
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = sys!(Sysno::recvmsg, fd, message, flags);
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = sys!(Sysno::sendmsg, fd, message, flags);
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int
        = sys!(Sysno::recvmmsg, fd, messages, count, flags, timeout);
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        = sys!(Sysno::sendmmsg, fd, messages, count, flags);
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t
        = sys!(Sysno::sendfile, out, input, offset, count);
    splice(
        input: c_int, input_offset: *mut loff_t, out: c_int, out_offset: *mut loff_t, length: size_t, flags: c_uint,
    ) -> ssize_t = sys!(Sysno::splice, input, input_offset, out, out_offset, length, flags);
    #[absent] __chk_fail() -> c_int;

    // Readiness.
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = raw::poll(fds, count, timeout);
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int
        = raw::ppoll(fds, count, timeout, mask);
    select(count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set, timeout: *mut timeval) -> c_int
        = raw::select(count, reads, writes, excepts, timeout);
    pselect(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int = raw::pselect(count, reads, writes, excepts, timeout, mask);
    epoll_create(size: c_int) -> c_int
        = if size > 0 { sys!(Sysno::epoll_create1, 0) } else { Err(Errno::EINVAL) };
    epoll_create1(flags: c_int) -> c_int = sys!(Sysno::epoll_create1, flags);
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int
        = sys!(Sysno::epoll_ctl, set, operation, fd, event);
    epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int
        = sys!(Sysno::epoll_pwait, set, events, most, timeout, 0, SIGSET_SIZE);
    epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int
        = sys!(Sysno::epoll_pwait, set, events, most, timeout, mask, SIGSET_SIZE);
    epoll_pwait2(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int = sys!(Sysno::epoll_pwait2, set, events, most, timeout, mask, SIGSET_SIZE);

    // Sockets.
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = sys!(Sysno::socket, domain, kind, protocol);
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int
        = sys!(Sysno::connect, fd, address, length);
    listen(fd: c_int, backlog: c_int) -> c_int = sys!(Sysno::listen, fd, backlog);
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int
        = sys!(Sysno::accept, fd, address, length);
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int
        = sys!(Sysno::accept4, fd, address, length, flags);
    shutdown(fd: c_int, how: c_int) -> c_int = sys!(Sysno::shutdown, fd, how);
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int
        = sys!(Sysno::setsockopt, fd, level, name, value, length);
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int
        = sys!(Sysno::getsockopt, fd, level, name, value, length);

    // Descriptors.
    close(fd: c_int) -> c_int = sys!(Sysno::close, fd);
    #[absent] close_range(first: c_uint, last: c_uint, flags: c_uint) -> c_int
        = sys!(Sysno::close_range, first, last, flags);
    #[absent] closefrom(first: c_int) -> c_int = sys!(Sysno::close_range, first, c_uint::MAX, 0);
    dup(old: c_int) -> c_int = sys!(Sysno::dup, old);
    dup2(old: c_int, new: c_int) -> c_int = raw::dup2(old, new);
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int = sys!(Sysno::dup3, old, new, flags);
    #[absent] pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int
        = sys!(Sysno::pidfd_getfd, process, fd, flags);
    #[variadic] fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int
        = sys!(Sysno::fcntl, fd, command, argument);
    #[variadic] ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int
        = sys!(Sysno::ioctl, fd, request, argument);
    fstat(fd: c_int, status: *mut stat) -> c_int = sys!(Sysno::fstat, fd, status);
    fstat64(fd: c_int, status: *mut stat64) -> c_int = sys!(Sysno::fstat, fd, status);
    #[absent] __fxstat(version: c_int, fd: c_int, status: *mut stat) -> c_int = sys!(Sysno::fstat, fd, status);
    #[absent] __fxstat64(version: c_int, fd: c_int, status: *mut stat64) -> c_int = sys!(Sysno::fstat, fd, status);

    // Requests.
    #[absent] aio_read(request: *mut aiocb) -> c_int;
    #[absent] aio_read64(request: *mut aiocb) -> c_int;
    #[absent] aio_write(request: *mut aiocb) -> c_int;
    #[absent] aio_write64(request: *mut aiocb) -> c_int;
    #[absent] lio_listio(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    #[absent] lio_listio64(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;

    // Signals.
    sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int;
    signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    #[absent] bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    #[absent] ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    #[absent] sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    #[absent] __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    #[absent] sigset(signal: c_int, handler: sighandler_t) -> sighandler_t;
    #[absent] siginterrupt(signal: c_int, interrupts: c_int) -> c_int;

    // Rights. A raw call would change one thread only, so there is none.
    setuid(user: libc::uid_t) -> c_int;
    seteuid(user: libc::uid_t) -> c_int;
    setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int;
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int;
    setgid(group: libc::gid_t) -> c_int;
    setegid(group: libc::gid_t) -> c_int;
    setregid(real: libc::gid_t, effective: libc::gid_t) -> c_int;
    setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t) -> c_int;
    setgroups(count: usize, groups: *const libc::gid_t) -> c_int;
    initgroups(user: *const c_char, group: libc::gid_t) -> c_int;
    setfsuid(user: libc::uid_t) -> c_int;
    setfsgid(group: libc::gid_t) -> c_int;
    chroot(path: *const c_char) -> c_int = sys!(Sysno::chroot, path);
    unshare(flags: c_int) -> c_int = sys!(Sysno::unshare, flags);
    setns(fd: c_int, kind: c_int) -> c_int = sys!(Sysno::setns, fd, kind);
    #[variadic] prctl(option: c_int, second: c_ulong, third: c_ulong, fourth: c_ulong, fifth: c_ulong) -> c_int
        = sys!(Sysno::prctl, option, second, third, fourth, fifth);
    sched_setaffinity(process: pid_t, size: usize, cores: *const libc::cpu_set_t) -> c_int
        = sys!(Sysno::sched_setaffinity, process, size, cores);
    pthread_setaffinity_np(thread: libc::pthread_t, size: usize, cores: *const libc::cpu_set_t) -> c_int;
    setrlimit(resource: c_uint, new: *const rlimit) -> c_int = sys!(Sysno::setrlimit, resource, new);
    setrlimit64(resource: c_uint, new: *const rlimit64) -> c_int = sys!(Sysno::setrlimit, resource, new);
    prlimit(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int
        = sys!(Sysno::prlimit64, process, resource, new, old);
    prlimit64(process: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> c_int
        = sys!(Sysno::prlimit64, process, resource, new, old);

    // Threads.
    pthread_cancel(thread: libc::pthread_t) -> c_int;

    // Modules.
    dlopen(path: *const c_char, flags: c_int) -> *mut c_void;

    // Streams.
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fclose(stream: *mut FILE) -> c_int;
    #[absent] vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    #[absent] __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    #[variadic] dprintf() -> c_int;
    #[variadic] __dprintf_chk() -> c_int;

    // Processes.
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int
        = sys!(Sysno::execve, path, argv, envp);
    execv(path: *const c_char, argv: *const *const c_char) -> c_int;
    execvp(file: *const c_char, argv: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    #[absent] execveat(
        directory: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int,
    ) -> c_int = sys!(Sysno::execveat, directory, path, argv, envp, flags);
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char,
    ) -> c_int;
    posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char,
    ) -> c_int;
    #[absent] pidfd_spawn(
        pidfd: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char,
    ) -> c_int = raw::no_spawn();
    #[absent] pidfd_spawnp(
        pidfd: *mut c_int, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char,
    ) -> c_int = raw::no_spawn();
    posix_spawn_file_actions_adddup2(
        actions: *mut posix_spawn_file_actions_t, fd: c_int, new: c_int,
    ) -> c_int;
    posix_spawn_file_actions_init(actions: *mut posix_spawn_file_actions_t) -> c_int;
    posix_spawn_file_actions_destroy(actions: *mut posix_spawn_file_actions_t) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    #[absent] _Fork() -> pid_t;
    #[absent] vfork() -> pid_t;
    #[variadic] clone(
        main: Option<extern "C-unwind" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int,
        argument: *mut c_void, parent: *mut pid_t, tls: *mut c_void, child: *mut pid_t,
    ) -> c_int;
    #[diverging] _exit(status: c_int) -> c_int = sys!(Sysno::exit_group, status);
    #[variadic] syscall(
        number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long,
    ) -> c_long = raw::numbered(number, [a, b, c, d, e, f]);
}

/// Does the look-ups that most children need, once for all of them.
pub(crate) fn before_fork() {
    address::execve();
    address::execv();
    address::execvp();
    address::_exit();
}

/// Does the look-ups that a child could not do: `dlsym` takes the dynamic
/// linker's lock, which another thread may hold for ever in the child's copy.
/// Libc's `fork` resets that lock in the child; forks past it do not.
pub(crate) fn before_bare_fork() {
    static READY: AtomicBool = AtomicBool::new(false);
    if READY.load(Ordering::Relaxed) || shunt_engine::is_alone() {
        return;
    }
    prepare_all();
    // The engine's own.
    shunt_engine::real::recv();
    shunt_engine::real::ppoll();
    shunt_engine::real::pthread_setcanceltype();
    shunt_engine::real::pthread_setcancelstate();
    shunt_engine::real::pthread_testcancel();
    shunt_engine::real::_pthread_cleanup_push();
    shunt_engine::real::_pthread_cleanup_pop();
    shunt_engine::real::sendmsg();
    shunt_engine::real::recvmsg();
    shunt_engine::real::sigaction();
    READY.store(true, Ordering::Relaxed);
}
