//! What errors are called.

use libc::{
    EACCES, EADDRINUSE, EAGAIN, ECONNABORTED, ECONNREFUSED, ECONNRESET, EFBIG, EINTR, EINVAL,
    EMFILE, ENFILE, ENOBUFS, ENOENT, ENOMEM, ENOPROTOOPT, ENOSPC, ENOSYS, EOPNOTSUPP, EPERM, EPIPE,
    ESRCH,
};

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
        ENOPROTOOPT => "ENOPROTOOPT",
        ENOSPC => "ENOSPC",
        ENOSYS => "ENOSYS",
        EOPNOTSUPP => "EOPNOTSUPP",
        EPERM => "EPERM",
        EPIPE => "EPIPE",
        ESRCH => "ESRCH",
        _ => "?",
    }
}
