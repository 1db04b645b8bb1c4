//! A filter of system calls that came with this process (`seccomp(2)`), and will come with the program: one that
//! ends whoever makes a call that libshunt needs would end the program, which never makes it natively.

use std::fs;

use crate::sys::{self, Call};

/// What libshunt calls, with arguments that do no harm.
const NEEDED: &[Call] = &[
    Call::new("socket", libc::SYS_socket).with(libc::AF_UNIX, libc::SOCK_DGRAM),
    Call::new("membarrier", libc::SYS_membarrier).with(0, 0),
    Call::new("ioctl", libc::SYS_ioctl).with(-1, libc::FIONREAD as i32),
    Call::new("fcntl", libc::SYS_fcntl).with(-1, libc::F_GETFD),
    Call::new("prctl", libc::SYS_prctl).with(libc::PR_GET_NAME, 0),
    Call::new("prctl", libc::SYS_prctl).with(libc::PR_GET_SECCOMP, 0),
    Call::new("accept4", libc::SYS_accept4),
    Call::new("bind", libc::SYS_bind),
    Call::new("close", libc::SYS_close),
    Call::new("close_range", libc::SYS_close_range),
    Call::new("connect", libc::SYS_connect),
    Call::new("dup3", libc::SYS_dup3),
    Call::new("epoll_create1", libc::SYS_epoll_create1),
    Call::new("epoll_ctl", libc::SYS_epoll_ctl),
    Call::new("epoll_pwait", libc::SYS_epoll_pwait),
    Call::new("eventfd2", libc::SYS_eventfd2),
    Call::new("faccessat2", libc::SYS_faccessat2),
    Call::new("fstat", libc::SYS_fstat),
    Call::new("ftruncate", libc::SYS_ftruncate),
    Call::new("futex", libc::SYS_futex),
    Call::new("getpeername", libc::SYS_getpeername),
    Call::new("getpid", libc::SYS_getpid),
    Call::new("getrandom", libc::SYS_getrandom),
    Call::new("getsockname", libc::SYS_getsockname),
    Call::new("getsockopt", libc::SYS_getsockopt),
    Call::new("gettid", libc::SYS_gettid),
    Call::new("listen", libc::SYS_listen),
    Call::new("lseek", libc::SYS_lseek),
    Call::new("madvise", libc::SYS_madvise),
    Call::new("memfd_create", libc::SYS_memfd_create),
    Call::new("mincore", libc::SYS_mincore),
    Call::new("mmap", libc::SYS_mmap),
    Call::new("munmap", libc::SYS_munmap),
    Call::new("newfstatat", libc::SYS_newfstatat),
    Call::new("openat", libc::SYS_openat),
    Call::new("pidfd_open", libc::SYS_pidfd_open),
    Call::new("ppoll", libc::SYS_ppoll),
    Call::new("pread64", libc::SYS_pread64),
    Call::new("prlimit64", libc::SYS_prlimit64),
    Call::new("read", libc::SYS_read),
    Call::new("recvfrom", libc::SYS_recvfrom),
    Call::new("recvmsg", libc::SYS_recvmsg),
    Call::new("rt_sigaction", libc::SYS_rt_sigaction),
    Call::new("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    Call::new("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
    Call::new("sched_yield", libc::SYS_sched_yield),
    Call::new("sendmsg", libc::SYS_sendmsg),
    Call::new("sendto", libc::SYS_sendto),
    Call::new("setsockopt", libc::SYS_setsockopt),
    Call::new("shutdown", libc::SYS_shutdown),
    Call::new("tgkill", libc::SYS_tgkill),
    Call::new("write", libc::SYS_write),
];

/// The call that ends who makes it, if there is one among those that libshunt needs.
pub(crate) fn deadly_call() -> Option<&'static str> {
    if !is_filtered() {
        return None;
    }
    sys::deadly(NEEDED)
}

/// Whether there is a filter (`proc_pid_status(5)`).
fn is_filtered() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}
