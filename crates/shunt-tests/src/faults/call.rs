//! The system calls that can be refused, and what the kernel may refuse them with.

use libc::{
    EACCES, EADDRINUSE, EAGAIN, ECONNABORTED, ECONNREFUSED, ECONNRESET, EFBIG, EINTR, EINVAL,
    EMFILE, ENFILE, ENOBUFS, ENOENT, ENOMEM, ENOSPC, ENOSYS, EOPNOTSUPP, EPERM, EPIPE, ESRCH,
    c_long,
};

/// One kind of call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    number: c_long,
    /// What it is for, as `shunt-refuse` says it; `None`: anything.
    argument: Option<u32>,
    /// What it may fail with for a reason that lasts.
    pub(crate) lasting: &'static [i32],
    /// What it may fail with now and then, and not for ever.
    pub(crate) passing: &'static [i32],
}

impl Call {
    /// The refusals that are tried, and whether each may last.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (i32, bool)> + use<> {
        let lasting = self.lasting.iter().map(|&errno| (errno, true));
        lasting.chain(self.passing.iter().map(|&errno| (errno, false)))
    }
}

const fn call(
    name: &'static str,
    number: c_long,
    argument: Option<u32>,
    lasting: &'static [i32],
    passing: &'static [i32],
) -> Call {
    Call {
        name,
        number,
        argument,
        lasting,
        passing,
    }
}

/// `level << 16 | name`.
const fn option(level: i32, name: i32) -> Option<u32> {
    Some((level as u32) << 16 | name as u32)
}

const SOL: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const SIOCINQ: u32 = libc::FIONREAD as u32;
const SIOCOUTQ: u32 = libc::TIOCOUTQ as u32;

/// All of them; the first that fits counts. Left out is what does not fail with good arguments (`close`,
/// `getpid`, `sched_yield`, `rt_sigprocmask`), and what fails for reasons that lie in the connection itself.
/// Options and questions about sockets are refused by policies (a cgroup's BPF program, a security module)
/// and, if they are new, by old kernels.
pub(crate) const CALLS: &[Call] = &[
    call(
        "memfd_create",
        libc::SYS_memfd_create,
        None,
        &[EMFILE, ENOMEM, ENOSYS, EACCES],
        &[],
    ),
    call(
        "ftruncate",
        libc::SYS_ftruncate,
        None,
        &[ENOMEM, EFBIG],
        &[EINTR],
    ),
    call(
        "fcntl F_ADD_SEALS",
        libc::SYS_fcntl,
        Some(libc::F_ADD_SEALS as u32),
        &[EINVAL, EPERM],
        &[],
    ),
    call(
        "fcntl F_GET_SEALS",
        libc::SYS_fcntl,
        Some(libc::F_GET_SEALS as u32),
        &[EINVAL],
        &[],
    ),
    call(
        "fcntl F_DUPFD",
        libc::SYS_fcntl,
        Some(libc::F_DUPFD as u32),
        &[EMFILE, EINVAL],
        &[ENOMEM],
    ),
    call(
        "fcntl F_DUPFD",
        libc::SYS_fcntl,
        Some(libc::F_DUPFD_CLOEXEC as u32),
        &[EMFILE, EINVAL],
        &[ENOMEM],
    ),
    call("mmap", libc::SYS_mmap, None, &[ENOMEM], &[EAGAIN]),
    call("munmap", libc::SYS_munmap, None, &[ENOMEM], &[]),
    call("mremap", libc::SYS_mremap, None, &[ENOMEM], &[]),
    call(
        "madvise MADV_POPULATE_WRITE",
        libc::SYS_madvise,
        Some(libc::MADV_POPULATE_WRITE as u32),
        &[EINVAL, ENOMEM],
        &[EAGAIN],
    ),
    call(
        "madvise MADV_DONTFORK",
        libc::SYS_madvise,
        Some(libc::MADV_DONTFORK as u32),
        &[EINVAL, ENOMEM],
        &[EAGAIN],
    ),
    call(
        "madvise MADV_DOFORK",
        libc::SYS_madvise,
        Some(libc::MADV_DOFORK as u32),
        &[EINVAL, ENOMEM],
        &[EAGAIN],
    ),
    call(
        "madvise MADV_WIPEONFORK",
        libc::SYS_madvise,
        Some(libc::MADV_WIPEONFORK as u32),
        &[EINVAL, ENOMEM],
        &[],
    ),
    call(
        "madvise MADV_DONTDUMP",
        libc::SYS_madvise,
        Some(libc::MADV_DONTDUMP as u32),
        &[EINVAL, ENOMEM],
        &[],
    ),
    call(
        "madvise",
        libc::SYS_madvise,
        None,
        &[EINVAL, ENOMEM],
        &[EAGAIN],
    ),
    call(
        "socket",
        libc::SYS_socket,
        None,
        &[EMFILE, ENOBUFS, EACCES],
        &[ENFILE],
    ),
    call(
        "connect",
        libc::SYS_connect,
        None,
        &[ECONNREFUSED, EACCES],
        &[EAGAIN],
    ),
    call(
        "bind",
        libc::SYS_bind,
        None,
        &[EACCES, ENOMEM],
        &[EADDRINUSE],
    ),
    call("listen", libc::SYS_listen, None, &[EADDRINUSE], &[]),
    call(
        "accept",
        libc::SYS_accept4,
        None,
        &[EMFILE, ENFILE, ENOMEM],
        &[ECONNABORTED, EINTR],
    ),
    call(
        "accept",
        libc::SYS_accept,
        None,
        &[EMFILE, ENFILE, ENOMEM],
        &[ECONNABORTED, EINTR],
    ),
    call(
        "sendto",
        libc::SYS_sendto,
        None,
        &[ECONNREFUSED, EPERM],
        &[EAGAIN, ENOBUFS],
    ),
    call(
        "sendmsg",
        libc::SYS_sendmsg,
        None,
        &[EPIPE],
        &[EAGAIN, ENOBUFS, ENOMEM, EINTR],
    ),
    call(
        "recvmsg",
        libc::SYS_recvmsg,
        None,
        &[ECONNRESET],
        &[EAGAIN, ENOMEM, EINTR],
    ),
    call(
        "recvfrom",
        libc::SYS_recvfrom,
        None,
        &[],
        &[EAGAIN, ENOMEM, EINTR],
    ),
    call(
        "epoll_create1",
        libc::SYS_epoll_create1,
        None,
        &[EMFILE, ENOMEM],
        &[],
    ),
    call(
        "epoll_ctl EPOLL_CTL_ADD",
        libc::SYS_epoll_ctl,
        Some(libc::EPOLL_CTL_ADD as u32),
        &[ENOSPC, ENOMEM],
        &[],
    ),
    call("eventfd2", libc::SYS_eventfd2, None, &[EMFILE, ENOMEM], &[]),
    call(
        "timerfd_create",
        libc::SYS_timerfd_create,
        None,
        &[EMFILE, ENOMEM],
        &[],
    ),
    call(
        "timerfd_settime",
        libc::SYS_timerfd_settime,
        None,
        &[EINVAL],
        &[],
    ),
    call(
        "signalfd4",
        libc::SYS_signalfd4,
        None,
        &[EMFILE, ENOMEM],
        &[],
    ),
    call(
        "ppoll",
        libc::SYS_ppoll,
        None,
        &[],
        &[EINVAL, EINTR, ENOMEM],
    ),
    call(
        "pidfd_open",
        libc::SYS_pidfd_open,
        None,
        &[EMFILE, ENOSYS, ENOMEM],
        &[],
    ),
    call(
        "pidfd_getfd",
        libc::SYS_pidfd_getfd,
        None,
        &[EPERM, EMFILE],
        &[],
    ),
    call("getrandom", libc::SYS_getrandom, None, &[ENOSYS], &[EINTR]),
    call(
        "openat",
        libc::SYS_openat,
        None,
        &[EMFILE, EACCES, ENOENT, ENOMEM],
        &[EINTR],
    ),
    call(
        "readlinkat",
        libc::SYS_readlinkat,
        None,
        &[EACCES, ENOENT, ENOMEM],
        &[],
    ),
    call("getdents64", libc::SYS_getdents64, None, &[ENOENT], &[]),
    call(
        "statx",
        libc::SYS_statx,
        None,
        &[EACCES, ENOENT, ENOSYS],
        &[],
    ),
    call(
        "newfstatat",
        libc::SYS_newfstatat,
        None,
        &[EACCES, ENOENT, ENOMEM],
        &[],
    ),
    call("fstat", libc::SYS_fstat, None, &[EACCES], &[]),
    call(
        "faccessat2",
        libc::SYS_faccessat2,
        None,
        &[ENOSYS, EPERM],
        &[],
    ),
    call("lseek", libc::SYS_lseek, None, &[EINVAL], &[]),
    call("read", libc::SYS_read, None, &[ESRCH], &[EINTR, EAGAIN]),
    call("pread64", libc::SYS_pread64, None, &[ESRCH], &[EINTR]),
    call("write", libc::SYS_write, None, &[ENOSPC], &[EINTR, EAGAIN]),
    call("preadv2", libc::SYS_preadv2, None, &[EOPNOTSUPP], &[EINTR]),
    call(
        "pwritev2",
        libc::SYS_pwritev2,
        None,
        &[EOPNOTSUPP],
        &[EINTR],
    ),
    call(
        "getsockopt SO_COOKIE",
        libc::SYS_getsockopt,
        option(SOL, libc::SO_COOKIE),
        &[EPERM],
        &[],
    ),
    call(
        "getsockopt SO_NETNS_COOKIE",
        libc::SYS_getsockopt,
        option(SOL, libc::SO_NETNS_COOKIE),
        &[EPERM],
        &[],
    ),
    call(
        "getsockopt SO_PEERCRED",
        libc::SYS_getsockopt,
        option(SOL, libc::SO_PEERCRED),
        &[EPERM],
        &[],
    ),
    call(
        "getsockopt SO_PEERPIDFD",
        libc::SYS_getsockopt,
        option(SOL, libc::SO_PEERPIDFD),
        &[EMFILE, ESRCH],
        &[],
    ),
    call(
        "getsockopt TCP_INFO",
        libc::SYS_getsockopt,
        option(TCP, libc::TCP_INFO),
        &[EPERM, ENOMEM],
        &[],
    ),
    call(
        "getsockopt",
        libc::SYS_getsockopt,
        None,
        &[EPERM],
        &[ENOMEM],
    ),
    call(
        "setsockopt",
        libc::SYS_setsockopt,
        None,
        &[EPERM, ENOMEM],
        &[],
    ),
    call(
        "ioctl SIOCINQ",
        libc::SYS_ioctl,
        Some(SIOCINQ),
        &[EACCES],
        &[],
    ),
    call(
        "ioctl SIOCOUTQ",
        libc::SYS_ioctl,
        Some(SIOCOUTQ),
        &[EACCES],
        &[],
    ),
    call(
        "getsockname",
        libc::SYS_getsockname,
        None,
        &[ENOBUFS, EPERM],
        &[],
    ),
    call(
        "getpeername",
        libc::SYS_getpeername,
        None,
        &[ENOBUFS, EPERM],
        &[],
    ),
    call(
        "membarrier",
        libc::SYS_membarrier,
        None,
        &[EPERM, ENOSYS],
        &[],
    ),
    call("prlimit64", libc::SYS_prlimit64, None, &[EPERM], &[]),
    call(
        "futex FUTEX_WAIT",
        libc::SYS_futex,
        Some(libc::FUTEX_WAIT as u32),
        &[],
        &[EINTR, EAGAIN],
    ),
    call("setns", libc::SYS_setns, None, &[EPERM, ENOMEM], &[]),
    call("clone3", libc::SYS_clone3, None, &[EAGAIN, ENOMEM], &[]),
];

/// Their numbers, for `shunt-refuse`.
pub(crate) fn numbers() -> String {
    let mut numbers: Vec<String> = CALLS.iter().map(|call| call.number.to_string()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.join(",")
}

/// The call of this number for this purpose.
pub(crate) fn find(number: c_long, argument: u32) -> Option<&'static Call> {
    CALLS
        .iter()
        .find(|call| call.number == number && call.argument.is_none_or(|one| one == argument))
}

/// What it is called.
pub(crate) fn name(errno: i32) -> &'static str {
    match errno {
        EACCES => "EACCES",
        EADDRINUSE => "EADDRINUSE",
        EAGAIN => "EAGAIN",
        ECONNABORTED => "ECONNABORTED",
        ECONNREFUSED => "ECONNREFUSED",
        ECONNRESET => "ECONNRESET",
        EFBIG => "EFBIG",
        EINTR => "EINTR",
        EINVAL => "EINVAL",
        EMFILE => "EMFILE",
        ENFILE => "ENFILE",
        ENOBUFS => "ENOBUFS",
        ENOENT => "ENOENT",
        ENOMEM => "ENOMEM",
        ENOSPC => "ENOSPC",
        ENOSYS => "ENOSYS",
        EOPNOTSUPP => "EOPNOTSUPP",
        EPERM => "EPERM",
        EPIPE => "EPIPE",
        ESRCH => "ESRCH",
        _ => "?",
    }
}

#[cfg(test)]
mod tests {
    use super::{CALLS, find, name};

    #[test]
    fn each_refusal_has_a_name() {
        for call in CALLS {
            assert!(call.refusals().count() > 0, "{}", call.name);
            assert!(
                call.refusals().all(|(errno, _)| name(errno) != "?"),
                "{}",
                call.name
            );
        }
    }

    #[test]
    fn a_call_is_found_by_what_it_is_for() {
        let seals = find(libc::SYS_fcntl, libc::F_ADD_SEALS as u32);
        assert_eq!(seals.map(|call| call.name), Some("fcntl F_ADD_SEALS"));
        assert!(find(libc::SYS_fcntl, libc::F_GETFD as u32).is_none());
        assert!(find(libc::SYS_madvise, 99).is_some_and(|call| call.name == "madvise"));
    }
}
