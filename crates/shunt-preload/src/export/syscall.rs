//! `syscall`: the calls that concern us, by number (libuv and others do this).
//!
//! A call that the engine leaves to the kernel is made as a system call here,
//! not by the libc function of that name: libc's would be a cancellation point
//! and treats some arguments differently. `syscall` is none, so the engine's part is not either. Numbers that mean nothing to us, and
//! those that return twice on one stack, go to libc's `syscall` untouched.

use std::ffi::{c_int, c_long, c_uint};
use std::mem;
use std::ptr;

use libc::sigset_t;
use shunt_engine::io::{aio, uring};
use shunt_engine::{Outcome, cancel, io, is_readable, life, not_alone, ready};

use super::identity::is_this;
use super::{fd, process, ready as set, socket};
use crate::call::{answer, outcome, quietly, quietly_with};
use crate::next::raw::{self, SIGSET_SIZE};
use crate::next::{self, Function};
use crate::trampoline::forward;

type Call =
    unsafe extern "C-unwind" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

forward! {
    syscall through choose;
}

/// Operations of `seccomp(2)` that give system calls up.
const STRICT: c_uint = libc::SECCOMP_SET_MODE_STRICT;
const FILTER: c_uint = libc::SECCOMP_SET_MODE_FILTER;

/// Which of the two answers call `number`.
extern "C-unwind" fn choose(number: c_long, first: c_long, second: c_long) -> Function {
    let forks = forks(number, first, second);
    if concerns_us(number) || forks == Forks::Copy {
        // SAFETY: both are function pointers; callers give it the arguments of a `Call`.
        return unsafe { mem::transmute::<Call, Function>(dispatch) };
    }
    if forks == Forks::Lend {
        life::before_lending();
    }
    next::address::syscall()
}

fn concerns_us(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(
        number,
        libc::SYS_poll
            | libc::SYS_select
            | libc::SYS_epoll_create
            | libc::SYS_epoll_wait
            | libc::SYS_dup2
            | libc::SYS_fork
    ) {
        return true;
    }
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_recvfrom
            | libc::SYS_sendto
            | libc::SYS_recvmsg
            | libc::SYS_sendmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendfile
            | libc::SYS_splice
            | libc::SYS_ppoll
            | libc::SYS_pselect6
            | libc::SYS_epoll_create1
            | libc::SYS_epoll_ctl
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_socket
            | libc::SYS_connect
            | libc::SYS_listen
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_shutdown
            | libc::SYS_setsockopt
            | libc::SYS_getsockopt
            | libc::SYS_close
            | libc::SYS_close_range
            | libc::SYS_dup
            | libc::SYS_dup3
            | libc::SYS_pidfd_getfd
            | libc::SYS_fstat
            | libc::SYS_fcntl
            | libc::SYS_ioctl
            | libc::SYS_execve
            | libc::SYS_execveat
            | libc::SYS_exit_group
            | libc::SYS_io_uring_setup
            | libc::SYS_io_uring_enter
            | libc::SYS_io_uring_register
            | libc::SYS_io_submit
            | libc::SYS_seccomp
            | libc::SYS_prctl
            | libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
            | libc::SYS_setfsuid
            | libc::SYS_setfsgid
            | libc::SYS_setrlimit
            | libc::SYS_sched_setaffinity
            | libc::SYS_prlimit64
            | libc::SYS_unshare
            | libc::SYS_setns
    )
}

/// What becomes of this memory in a child that a call makes.
#[derive(PartialEq, Eq)]
enum Forks {
    /// It gets a copy, and returns here.
    Copy,
    /// It runs on it, which is a `vfork`.
    Lend,
    /// There is no child, it is a thread, or it returns elsewhere: on a stack of its own.
    No,
}

/// Of children with the same stack those with a copy can return through us. A `vfork`
/// cannot, so libc's `syscall` makes it.
fn forks(number: c_long, first: c_long, second: c_long) -> Forks {
    let (flags, stack) = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => return Forks::Lend,
        libc::SYS_clone => (first as u64, second as u64),
        libc::SYS_clone3 => {
            let arguments = pointer::<libc::clone_args>(first);
            // SAFETY: two of the caller's words, read with care.
            let words = unsafe {
                (
                    word(&raw const (*arguments).flags),
                    word(&raw const (*arguments).stack),
                )
            };
            match words {
                (Some(flags), Some(stack)) => (flags, stack),
                _ => return Forks::No,
            }
        }
        _ => return Forks::No,
    };
    process::before_clone(flags);
    let has = |flag: c_int| flags & flag as u64 != 0;
    if has(libc::CLONE_VM) && !has(libc::CLONE_VFORK) {
        not_alone();
    }
    match stack {
        _ if has(libc::CLONE_VM) && !has(libc::CLONE_THREAD) => Forks::Lend,
        0 if !has(libc::CLONE_VM) => Forks::Copy,
        _ => Forks::No,
    }
}

/// An argument that is a pointer.
fn pointer<T>(argument: c_long) -> *mut T {
    ptr::with_exposed_provenance_mut(argument as usize)
}

/// What a program has at `at`, unless the kernel will say that nothing can be read there.
///
/// # Safety
/// Nobody writes there or unmaps it meanwhile.
unsafe fn word(at: *const u64) -> Option<u64> {
    // SAFETY: it has just been read; alignment is the program's choice.
    is_readable(at).then(|| unsafe { at.read_unaligned() })
}

/// The mask that `pselect6` takes with its size. `None`: one that the kernel will refuse.
///
/// # Safety
/// Like [`word`].
unsafe fn sized_mask(at: *mut u64) -> Option<*const sigset_t> {
    if at.is_null() {
        return Some(ptr::null());
    }
    // SAFETY: the caller's.
    let (mask, size) = unsafe { (word(at)?, word(at.wrapping_add(1))?) };
    mask_fits(mask as c_long, size as c_long)
        .then(|| pointer::<sigset_t>(mask as c_long).cast_const())
}

unsafe extern "C-unwind" fn dispatch(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let arguments = [a, b, c, d, e, f];
    // SAFETY: the caller's. For calls that return twice see `choose`.
    let kernel = || answer(unsafe { raw::numbered(number, arguments) }) as c_long;
    // SAFETY: the caller's.
    unsafe {
        if let Some(result) = made_by_kernel(number, arguments, &kernel) {
            return result;
        }
        let outcome = cancel::put_off(|| {
            bytes(number, arguments)
                .or_else(|| readiness(number, arguments))
                .or_else(|| descriptors(number, arguments))
                .unwrap_or_else(|| process_wide(number, arguments))
        });
        outcome!(outcome, kernel())
    }
}

/// Calls that the kernel makes, with what surrounds them; their results.
///
/// # Safety
/// The arguments are those of the call.
unsafe fn made_by_kernel(
    number: c_long,
    [a, b, c, d, e, f]: [c_long; 6],
    kernel: &impl Fn() -> c_long,
) -> Option<c_long> {
    let kernel_fd = || kernel() as c_int;
    // The kernel reads the lower half of an `int` argument.
    let fd = a as c_int;
    // SAFETY: the caller's: the engine's functions have the contracts of the
    // system calls of their names.
    unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => Some(set::creating(kernel_fd).into()),
            libc::SYS_epoll_create1 => Some(set::creating(kernel_fd).into()),

            libc::SYS_socket => Some(socket::opening(fd, b as c_int, c as c_int, kernel_fd).into()),
            libc::SYS_connect => {
                let connect = || socket::connecting(fd, pointer(b), c as c_uint, kernel_fd);
                Some(cancel::put_off(connect).into())
            }
            libc::SYS_listen => Some(socket::listening(fd, kernel_fd).into()),
            libc::SYS_accept => {
                let accept = || socket::accepting(fd, pointer(b), pointer(c), 0, kernel_fd);
                Some(cancel::put_off(accept).into())
            }
            libc::SYS_accept4 => {
                let accept =
                    || socket::accepting(fd, pointer(b), pointer(c), d as c_int, kernel_fd);
                Some(cancel::put_off(accept).into())
            }
            libc::SYS_dup => Some(fd::copying(fd, kernel_fd).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => Some(fd::replacing(fd, b as c_int, 0, kernel_fd).into()),
            libc::SYS_dup3 => Some(fd::replacing(fd, b as c_int, c as c_int, kernel_fd).into()),
            libc::SYS_pidfd_getfd => Some(fd::fetching(kernel_fd).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => Some(process::forking(0, kernel)),
            libc::SYS_clone => Some(process::forking(a as u64, kernel)),
            libc::SYS_clone3 => {
                let flags = word(&raw const (*pointer::<libc::clone_args>(a)).flags);
                Some(process::forking(flags.unwrap_or(0), kernel))
            }
            libc::SYS_unshare => Some(process::unsharing(fd, kernel)),
            libc::SYS_setns => Some(process::joining(b as c_int, kernel)),
            libc::SYS_execve => Some(process::executing_file(
                libc::AT_FDCWD,
                pointer(a),
                0,
                kernel,
            )),
            libc::SYS_execveat => Some(process::executing_file(fd, pointer(b), e as c_int, kernel)),
            libc::SYS_io_uring_setup => Some(uring_setup(b, kernel)),
            libc::SYS_io_uring_enter => {
                let most = quietly_with(|| uring::before_enter(fd, b as c_uint, d as c_uint));
                Some(answer(raw::numbered(number, [a, most.into(), c, d, e, f])) as c_long)
            }
            _ => None,
        }
    }
}

/// `io_uring_setup`.
///
/// # Safety
/// As for the call.
unsafe fn uring_setup(parameters: c_long, kernel: &impl Fn() -> c_long) -> c_long {
    // SAFETY: the caller's, here and below.
    match quietly_with(|| unsafe { uring::before_setup(pointer(parameters)) }) {
        Outcome::Kernel => {
            let ring = kernel() as c_int;
            if ring >= 0 {
                // SAFETY: as above.
                quietly(|| unsafe { uring::after_setup(ring, pointer(parameters)) });
            }
            ring.into()
        }
        refused => outcome!(refused, kernel()),
    }
}

/// Bytes in and out. `None`: it is another call.
///
/// # Safety
/// The arguments are those of the call.
unsafe fn bytes(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<Outcome> {
    let fd = a as c_int;
    // SAFETY: as in `made_by_kernel`.
    let outcome = unsafe {
        match number {
            libc::SYS_read => io::read(fd, pointer(b), c as usize),
            libc::SYS_write => io::write(fd, pointer(b), c as usize),
            libc::SYS_readv => io::readv(fd, pointer(b), c as c_int),
            libc::SYS_writev => io::writev(fd, pointer(b), c as c_int),
            // The offset comes in two halves, of which the first has all bits.
            libc::SYS_preadv2 => io::preadv2(fd, pointer(b), c as c_int, d, f as c_int),
            libc::SYS_pwritev2 => io::pwritev2(fd, pointer(b), c as c_int, d, f as c_int),
            libc::SYS_recvfrom => io::recvfrom(
                fd,
                pointer(b),
                c as usize,
                d as c_int,
                pointer(e),
                pointer(f),
            ),
            libc::SYS_sendto => io::sendto(
                fd,
                pointer(b),
                c as usize,
                d as c_int,
                pointer(e),
                f as c_uint,
            ),
            libc::SYS_recvmsg => io::recvmsg(fd, pointer(b), c as c_int),
            libc::SYS_sendmsg => io::sendmsg(fd, pointer(b), c as c_int),
            libc::SYS_recvmmsg => io::recvmmsg(fd, pointer(b), c as c_uint, d as c_int, pointer(e)),
            libc::SYS_sendmmsg => io::sendmmsg(fd, pointer(b), c as c_uint, d as c_int),
            libc::SYS_sendfile => io::sendfile(fd, b as c_int, pointer(c), d as usize),
            libc::SYS_splice => io::splice(
                fd,
                pointer(b),
                c as c_int,
                pointer(d),
                e as usize,
                f as c_uint,
            ),
            _ => return None,
        }
    };
    Some(outcome)
}

/// Waiting, and epoll sets. `None`: it is another call, or has a mask that the kernel refuses.
///
/// # Safety
/// The arguments are those of the call.
unsafe fn readiness(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<Outcome> {
    let fd = a as c_int;
    // SAFETY: as in `made_by_kernel`.
    let outcome = unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => ready::poll(pointer(a), b as _, c as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => ready::select(fd, pointer(b), pointer(c), pointer(d), pointer(e)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => {
                ready::epoll_wait(fd, pointer(b), c as c_int, d as c_int, ptr::null())
            }
            libc::SYS_ppoll if mask_fits(d, e) => {
                ready::ppoll_by_number(pointer(a), b as _, pointer(c), pointer(d))
            }
            libc::SYS_pselect6 => match sized_mask(pointer(f)) {
                Some(mask) => ready::pselect_by_number(
                    fd,
                    pointer(b),
                    pointer(c),
                    pointer(d),
                    pointer(e),
                    mask,
                ),
                None => Outcome::Kernel,
            },
            libc::SYS_epoll_pwait if mask_fits(e, f) => {
                ready::epoll_wait(fd, pointer(b), c as c_int, d as c_int, pointer(e))
            }
            libc::SYS_epoll_pwait2 if mask_fits(e, f) => {
                ready::epoll_pwait2(fd, pointer(b), c as c_int, pointer(d), pointer(e))
            }
            libc::SYS_epoll_ctl => ready::epoll_ctl(fd, b as c_int, c as c_int, pointer(d)),
            _ => return None,
        }
    };
    Some(outcome)
}

/// What is done to a descriptor, or to its socket. `None`: it is another call.
///
/// # Safety
/// The arguments are those of the call.
unsafe fn descriptors(number: c_long, [a, b, c, d, e, _]: [c_long; 6]) -> Option<Outcome> {
    let fd = a as c_int;
    // SAFETY: as in `made_by_kernel`.
    let outcome = unsafe {
        match number {
            libc::SYS_shutdown => life::shutdown(fd, b as c_int),
            libc::SYS_setsockopt => {
                life::setsockopt(fd, b as c_int, c as c_int, pointer(d), e as c_uint)
            }
            libc::SYS_getsockopt => {
                life::getsockopt(fd, b as c_int, c as c_int, pointer(d), pointer(e))
            }
            libc::SYS_fstat => life::look_at(fd),
            libc::SYS_close => life::close(fd),
            libc::SYS_close_range => life::close_range(a as c_uint, b as c_uint, c as c_uint),
            libc::SYS_fcntl => life::fcntl(fd, b as c_int, c as _),
            libc::SYS_ioctl => life::ioctl(fd, b as _, pointer(c)),
            _ => return None,
        }
    };
    Some(outcome)
}

/// What is done to the whole process, to a ring of `io_uring`, or by requests; or a call that is the kernel's alone.
///
/// # Safety
/// The arguments are those of the call.
unsafe fn process_wide(number: c_long, [a, b, c, ..]: [c_long; 6]) -> Outcome {
    let first = a as c_int;
    match number {
        libc::SYS_exit_group => {
            life::before_exit();
            Outcome::Kernel
        }
        // Without a filter they only ask whether there are filters.
        libc::SYS_seccomp if first as c_uint == STRICT || first as c_uint == FILTER && c != 0 => {
            confining()
        }
        libc::SYS_prctl
            if first == libc::PR_SET_SECCOMP
                && (b as c_uint != libc::SECCOMP_MODE_FILTER || c != 0) =>
        {
            confining()
        }
        // Other than libc's functions these concern the calling thread alone.
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid => {
            quietly(life::before_own_identity);
            Outcome::Kernel
        }
        libc::SYS_sched_setaffinity => {
            life::before_affinity();
            Outcome::Kernel
        }
        libc::SYS_setrlimit if first as c_uint == libc::RLIMIT_NOFILE => limiting(pointer(b)),
        libc::SYS_prlimit64 if is_this(first) && b as c_uint == libc::RLIMIT_NOFILE => {
            limiting(pointer(c))
        }
        libc::SYS_io_uring_register => {
            quietly(|| uring::before_register(b as c_uint));
            Outcome::Kernel
        }
        libc::SYS_io_submit => {
            // SAFETY: the caller's: the arguments are those of the call.
            quietly(|| unsafe { aio::before_submit(b, pointer(c)) });
            Outcome::Kernel
        }
        _ => Outcome::Kernel,
    }
}

fn confining() -> Outcome {
    quietly(life::before_confinement);
    Outcome::Kernel
}

fn limiting(new: *const libc::rlimit) -> Outcome {
    // SAFETY: as for `setrlimit`.
    quietly(|| unsafe { life::before_descriptor_limit(new) });
    Outcome::Kernel
}

/// No mask, or one of the kernel's size: the only one that it accepts.
fn mask_fits(mask: c_long, size: c_long) -> bool {
    mask == 0 || size as usize == SIGSET_SIZE
}
