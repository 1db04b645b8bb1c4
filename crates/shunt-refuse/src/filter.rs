//! The filter that has the kernel ask us, and its answers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_long, c_uint, c_ulong, seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};

/// What the kernel calls the architecture (`linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

fn code(calls: &[u32]) -> Vec<sock_filter> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let mut code = vec![
        step(LOAD, 0, 0, ARCH),
        step(IF_EQUAL, 1, 0, ARCHITECTURE),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(LOAD, 0, 0, NUMBER),
    ];
    for &call in calls {
        code.push(step(IF_EQUAL, 0, 1, call));
        code.push(step(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    }
    code.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    code
}

/// From now on the kernel asks about these calls of the calling thread and of what comes of it.
pub(crate) fn install(calls: &[u32]) -> io::Result<OwnedFd> {
    let mut code = code(calls);
    let program = sock_fprog {
        len: code.len() as u16,
        filter: code.as_mut_ptr(),
    };
    // A call that we have been asked about is interrupted by deadly signals only (Linux 5.19).
    let flags: c_ulong =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: numbers; then a program that lives as long as the call, which copies it.
    let listener = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let operation: c_uint = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program)
    };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
}

/// The next question; `None` if who asked is gone.
pub(crate) fn question(listener: &OwnedFd) -> Option<seccomp_notif> {
    // SAFETY: a C struct of integers, which must be zero at first.
    let mut question: seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills in one such struct.
    let asked = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut question,
        )
    };
    (asked == 0).then_some(question)
}

/// Whether who asked still waits for the answer, so that what we have seen of it is its own.
pub(crate) fn is_open(listener: &OwnedFd, id: u64) -> bool {
    // SAFETY: the kernel reads the number.
    let open = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &raw const id,
        )
    };
    open == 0
}

/// Lets the call be made, or fail with this errno. Who asked may be gone by now.
pub(crate) fn answer(listener: &OwnedFd, id: u64, errno: Option<i32>) {
    let answer = seccomp_notif_resp {
        id,
        val: 0,
        error: errno.map_or(0, |errno| -errno),
        flags: match errno {
            Some(_) => 0,
            None => libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        },
    };
    // SAFETY: the kernel reads the struct.
    let _ = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw const answer,
        )
    };
}

/// Waits until one of two descriptors has something to read or has ended: (the first, the second).
pub(crate) fn wait(first: &impl AsRawFd, second: &impl AsRawFd) -> io::Result<(i16, i16)> {
    let one = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds = [one(first.as_raw_fd()), one(second.as_raw_fd())];
    loop {
        // SAFETY: two structs.
        if unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) } > 0 {
            return Ok((fds[0].revents, fds[1].revents));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The argument that tells what a call is for, where there is one.
pub(crate) fn argument(question: &seccomp_notif) -> u32 {
    let data = &question.data;
    let number = |n: usize| data.args[n] as u32;
    match c_long::from(data.nr) {
        libc::SYS_fcntl | libc::SYS_ioctl | libc::SYS_epoll_ctl => number(1),
        libc::SYS_getsockopt | libc::SYS_setsockopt => number(1) << 16 | number(2) & 0xffff,
        libc::SYS_madvise => number(2),
        libc::SYS_mmap => number(3) & libc::MAP_ANONYMOUS as u32,
        libc::SYS_socket | libc::SYS_prctl | libc::SYS_membarrier => number(0),
        libc::SYS_futex => number(1) & 127,
        _ => 0,
    }
}
