//! The system calls that can be refused, and what the kernel may refuse them with.

use libc::{
    EACCES, EADDRINUSE, EAGAIN, ECONNABORTED, ECONNREFUSED, ECONNRESET, EFBIG, EINTR, EINVAL,
    EMFILE, ENFILE, ENOBUFS, ENOENT, ENOMEM, ENOPROTOOPT, ENOSPC, ENOSYS, EOPNOTSUPP, EPERM, EPIPE,
    ESRCH, c_long,
};

/// One kind of call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    number: c_long,
    /// What it is for, as `shunt-refuse` says it; `None`: anything.
    argument: Option<u32>,
    refusals: &'static [Refused],
}

/// How long the kernel refuses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// Something has run out: as long as it has.
    Lasts,
    /// Now and then, and not for ever.
    Passes,
    /// An old kernel, a filter or a policy: always, and wherever such a call is made.
    Always,
}

/// An errno, and for how long.
type Refused = (i32, Span);

impl Call {
    /// The refusals that are tried at each place.
    pub(crate) fn at_a_place(&self) -> impl Iterator<Item = Refused> + use<> {
        self.refusals
            .iter()
            .copied()
            .filter(|(_, span)| *span != Span::Always)
    }

    /// Those that are tried at all places together.
    pub(crate) fn everywhere(&self) -> impl Iterator<Item = i32> + use<> {
        let always = self
            .refusals
            .iter()
            .filter(|(_, span)| *span == Span::Always);
        always.map(|&(errno, _)| errno)
    }
}

const fn call(
    name: &'static str,
    number: c_long,
    argument: Option<u32>,
    refusals: &'static [Refused],
) -> Call {
    Call {
        name,
        number,
        argument,
        refusals,
    }
}

const fn lasts(errno: i32) -> Refused {
    (errno, Span::Lasts)
}

const fn passes(errno: i32) -> Refused {
    (errno, Span::Passes)
}

const fn always(errno: i32) -> Refused {
    (errno, Span::Always)
}

/// `level << 16 | name`.
const fn option(level: i32, name: i32) -> Option<u32> {
    Some((level as u32) << 16 | name as u32)
}

const SOL: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const SIOCINQ: u32 = libc::FIONREAD as u32;
const SIOCOUTQ: u32 = libc::TIOCOUTQ as u32;

/// What `sendto` says of a connection, where the library sends what the program has sent already: told by
/// its places ([`Place::call`](super::place::Place)).
pub(crate) const BY_TCP: Call = call(
    "sendto, by TCP",
    libc::SYS_sendto,
    Some(u32::MAX),
    &[passes(EAGAIN)],
);

/// All of them; the first that fits counts. Left out is what does not fail with good arguments (`close`,
/// `getpid`, `sched_yield`, `rt_sigprocmask`), and what fails for reasons that lie in the connection itself.
pub(crate) const CALLS: &[Call] = &[
    call(
        "memfd_create",
        libc::SYS_memfd_create,
        None,
        &[lasts(EMFILE), lasts(ENOMEM), always(ENOSYS), always(EACCES)],
    ),
    call(
        "ftruncate",
        libc::SYS_ftruncate,
        None,
        &[lasts(ENOMEM), lasts(EFBIG), passes(EINTR)],
    ),
    call(
        "fcntl F_ADD_SEALS",
        libc::SYS_fcntl,
        Some(libc::F_ADD_SEALS as u32),
        &[always(EINVAL), always(EPERM)],
    ),
    call(
        "fcntl F_GET_SEALS",
        libc::SYS_fcntl,
        Some(libc::F_GET_SEALS as u32),
        &[always(EINVAL)],
    ),
    call(
        "fcntl F_DUPFD",
        libc::SYS_fcntl,
        Some(libc::F_DUPFD as u32),
        &[lasts(EMFILE), lasts(EINVAL), passes(ENOMEM)],
    ),
    call(
        "fcntl F_DUPFD",
        libc::SYS_fcntl,
        Some(libc::F_DUPFD_CLOEXEC as u32),
        &[lasts(EMFILE), lasts(EINVAL), passes(ENOMEM)],
    ),
    call(
        "mmap",
        libc::SYS_mmap,
        None,
        &[lasts(ENOMEM), passes(EAGAIN)],
    ),
    call("munmap", libc::SYS_munmap, None, &[lasts(ENOMEM)]),
    call("mremap", libc::SYS_mremap, None, &[lasts(ENOMEM)]),
    call(
        "madvise MADV_POPULATE_WRITE",
        libc::SYS_madvise,
        Some(libc::MADV_POPULATE_WRITE as u32),
        &[lasts(ENOMEM), passes(EAGAIN), always(EINVAL)],
    ),
    call(
        "madvise MADV_DONTFORK",
        libc::SYS_madvise,
        Some(libc::MADV_DONTFORK as u32),
        &[lasts(ENOMEM), passes(EAGAIN), always(EINVAL)],
    ),
    call(
        "madvise MADV_DOFORK",
        libc::SYS_madvise,
        Some(libc::MADV_DOFORK as u32),
        &[lasts(ENOMEM), passes(EAGAIN), always(EINVAL)],
    ),
    call(
        "madvise MADV_WIPEONFORK",
        libc::SYS_madvise,
        Some(libc::MADV_WIPEONFORK as u32),
        &[lasts(ENOMEM), always(EINVAL)],
    ),
    call(
        "madvise MADV_DONTDUMP",
        libc::SYS_madvise,
        Some(libc::MADV_DONTDUMP as u32),
        &[lasts(ENOMEM), always(EINVAL)],
    ),
    call(
        "madvise",
        libc::SYS_madvise,
        None,
        &[lasts(ENOMEM), passes(EAGAIN), always(EINVAL)],
    ),
    call(
        "socket",
        libc::SYS_socket,
        None,
        &[
            lasts(EMFILE),
            lasts(ENOBUFS),
            passes(ENFILE),
            always(EACCES),
        ],
    ),
    call(
        "connect",
        libc::SYS_connect,
        None,
        &[lasts(ECONNREFUSED), passes(EAGAIN), always(EACCES)],
    ),
    call(
        "bind",
        libc::SYS_bind,
        None,
        &[lasts(ENOMEM), passes(EADDRINUSE), always(EACCES)],
    ),
    call("listen", libc::SYS_listen, None, &[lasts(EADDRINUSE)]),
    call(
        "accept",
        libc::SYS_accept4,
        None,
        &[
            lasts(EMFILE),
            lasts(ENFILE),
            lasts(ENOMEM),
            passes(ECONNABORTED),
            passes(EINTR),
        ],
    ),
    call(
        "accept",
        libc::SYS_accept,
        None,
        &[
            lasts(EMFILE),
            lasts(ENFILE),
            lasts(ENOMEM),
            passes(ECONNABORTED),
            passes(EINTR),
        ],
    ),
    call(
        "sendto",
        libc::SYS_sendto,
        None,
        &[lasts(ECONNREFUSED), passes(ENOBUFS), always(EPERM)],
    ),
    BY_TCP,
    call(
        "sendmsg",
        libc::SYS_sendmsg,
        None,
        &[
            lasts(EPIPE),
            passes(EAGAIN),
            passes(ENOBUFS),
            passes(ENOMEM),
            passes(EINTR),
        ],
    ),
    call("recvmsg", libc::SYS_recvmsg, None, &[lasts(ECONNRESET)]),
    call("recvfrom", libc::SYS_recvfrom, None, &[passes(ENOMEM)]),
    call(
        "epoll_create1",
        libc::SYS_epoll_create1,
        None,
        &[lasts(EMFILE), lasts(ENOMEM)],
    ),
    call(
        "epoll_ctl EPOLL_CTL_ADD",
        libc::SYS_epoll_ctl,
        Some(libc::EPOLL_CTL_ADD as u32),
        &[lasts(ENOSPC), lasts(ENOMEM)],
    ),
    call(
        "eventfd2",
        libc::SYS_eventfd2,
        None,
        &[lasts(EMFILE), lasts(ENOMEM)],
    ),
    call(
        "timerfd_create",
        libc::SYS_timerfd_create,
        None,
        &[lasts(EMFILE), lasts(ENOMEM)],
    ),
    call(
        "signalfd4",
        libc::SYS_signalfd4,
        None,
        &[lasts(EMFILE), lasts(ENOMEM)],
    ),
    call("ppoll", libc::SYS_ppoll, None, &[always(EINVAL)]),
    call(
        "pidfd_open",
        libc::SYS_pidfd_open,
        None,
        &[lasts(EMFILE), lasts(ENOMEM), always(ENOSYS)],
    ),
    call(
        "pidfd_getfd",
        libc::SYS_pidfd_getfd,
        None,
        &[lasts(EMFILE), lasts(EPERM), always(EPERM), always(ENOSYS)],
    ),
    call(
        "getrandom",
        libc::SYS_getrandom,
        None,
        &[passes(EINTR), always(ENOSYS)],
    ),
    call(
        "openat",
        libc::SYS_openat,
        None,
        &[
            lasts(EMFILE),
            lasts(EACCES),
            lasts(ENOENT),
            lasts(ENOMEM),
            passes(EINTR),
        ],
    ),
    call(
        "readlinkat",
        libc::SYS_readlinkat,
        None,
        &[lasts(EACCES), lasts(ENOENT), lasts(ENOMEM)],
    ),
    call("getdents64", libc::SYS_getdents64, None, &[lasts(ENOENT)]),
    call(
        "statx",
        libc::SYS_statx,
        None,
        &[lasts(EACCES), lasts(ENOENT), always(ENOSYS)],
    ),
    call(
        "newfstatat",
        libc::SYS_newfstatat,
        None,
        &[lasts(EACCES), lasts(ENOENT), lasts(ENOMEM)],
    ),
    call("fstat", libc::SYS_fstat, None, &[always(EACCES)]),
    call(
        "faccessat2",
        libc::SYS_faccessat2,
        None,
        &[always(ENOSYS), always(EPERM)],
    ),
    call("read", libc::SYS_read, None, &[lasts(ESRCH), passes(EINTR)]),
    call(
        "pread64",
        libc::SYS_pread64,
        None,
        &[lasts(ESRCH), passes(EINTR)],
    ),
    call(
        "write",
        libc::SYS_write,
        None,
        &[lasts(ENOSPC), passes(EINTR)],
    ),
    call("preadv2", libc::SYS_preadv2, None, &[always(EOPNOTSUPP)]),
    call("pwritev2", libc::SYS_pwritev2, None, &[always(EOPNOTSUPP)]),
    call(
        "getsockopt SO_COOKIE",
        libc::SYS_getsockopt,
        option(SOL, libc::SO_COOKIE),
        &[always(EPERM)],
    ),
    call(
        "getsockopt SO_NETNS_COOKIE",
        libc::SYS_getsockopt,
        option(SOL, libc::SO_NETNS_COOKIE),
        &[always(EPERM), always(ENOPROTOOPT)],
    ),
    call(
        "getsockopt SO_PEERCRED",
        libc::SYS_getsockopt,
        option(SOL, libc::SO_PEERCRED),
        &[always(EPERM)],
    ),
    call(
        "getsockopt SO_PEERPIDFD",
        libc::SYS_getsockopt,
        option(SOL, libc::SO_PEERPIDFD),
        &[lasts(EMFILE), passes(ESRCH), always(ENOPROTOOPT)],
    ),
    call(
        "getsockopt TCP_INFO",
        libc::SYS_getsockopt,
        option(TCP, libc::TCP_INFO),
        &[always(EPERM)],
    ),
    call("getsockopt", libc::SYS_getsockopt, None, &[always(EPERM)]),
    call(
        "setsockopt SO_ATTACH_FILTER",
        libc::SYS_setsockopt,
        option(SOL, libc::SO_ATTACH_FILTER),
        &[lasts(ENOMEM), always(EPERM)],
    ),
    call("setsockopt", libc::SYS_setsockopt, None, &[always(EPERM)]),
    call(
        "ioctl SIOCINQ",
        libc::SYS_ioctl,
        Some(SIOCINQ),
        &[always(EACCES)],
    ),
    call(
        "ioctl SIOCOUTQ",
        libc::SYS_ioctl,
        Some(SIOCOUTQ),
        &[always(EACCES)],
    ),
    call(
        "getsockname",
        libc::SYS_getsockname,
        None,
        &[lasts(ENOBUFS), always(EPERM)],
    ),
    call(
        "getpeername",
        libc::SYS_getpeername,
        None,
        &[lasts(ENOBUFS), always(EPERM)],
    ),
    call(
        "membarrier",
        libc::SYS_membarrier,
        None,
        &[always(EPERM), always(ENOSYS)],
    ),
    call("prlimit64", libc::SYS_prlimit64, None, &[always(EPERM)]),
    call(
        "futex FUTEX_WAIT",
        libc::SYS_futex,
        Some(libc::FUTEX_WAIT as u32),
        &[passes(EINTR), passes(EAGAIN)],
    ),
    call(
        "setns",
        libc::SYS_setns,
        None,
        &[always(EPERM), lasts(ENOMEM)],
    ),
    call(
        "clone3",
        libc::SYS_clone3,
        None,
        &[lasts(EAGAIN), lasts(ENOMEM)],
    ),
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

#[cfg(test)]
mod tests {
    use super::super::errno;
    use super::{CALLS, find};

    #[test]
    fn each_refusal_has_a_name() {
        for call in CALLS {
            assert!(!call.refusals.is_empty(), "{}", call.name);
            for (number, _) in call.refusals {
                assert_ne!(errno::name(*number), "?", "{}", call.name);
            }
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
