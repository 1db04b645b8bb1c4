//! What is asked of a descriptor, whatever it names.

use libc::c_int;

use super::Errno;

pub(crate) fn read(fd: c_int, buffer: *mut u8, length: usize) -> Result<usize, Errno> {
    call!(read, fd, buffer, length)
}

pub(crate) fn write(fd: c_int, buffer: *const u8, length: usize) -> Result<usize, Errno> {
    call!(write, fd, buffer, length)
}

pub(crate) fn close(fd: c_int) {
    let _ = call!(close, fd);
}

pub(crate) fn dup3(old: c_int, new: c_int, flags: c_int) -> Result<usize, Errno> {
    call!(dup3, old, new, flags)
}

pub(crate) fn fcntl(fd: c_int, command: c_int, argument: usize) -> Result<usize, Errno> {
    call!(fcntl, fd, command, argument)
}

pub(crate) fn ioctl(fd: c_int, request: usize, argument: usize) -> Result<usize, Errno> {
    call!(ioctl, fd, request, argument)
}

/// A number that nobody can guess, and not 0.
pub(crate) fn random() -> Result<u64, Errno> {
    let mut number = 0u64;
    call!(getrandom, &raw mut number, size_of::<u64>(), 0)?;
    Ok(number | 1)
}

/// `FIONREAD`, `SIOCOUTQ` and the like.
pub(crate) fn ioctl_int(fd: c_int, request: u64) -> Result<i32, Errno> {
    let mut value = 0i32;
    call!(ioctl, fd, request, &raw mut value)?;
    Ok(value)
}

/// How many descriptors this process may have (`RLIMIT_NOFILE`).
pub(crate) fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let _ = call!(prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit);
    limit.rlim_cur
}

/// The lowest number for a descriptor of ours: high, out of the program's way, and below 1024 if
/// the limit is low, so that no `select` is hurt.
pub(crate) fn first_of_ours() -> c_int {
    (descriptor_limit().clamp(64, 1024) - 64) as c_int
}

/// Moves a descriptor of ours to a high number, close-on-exec.
pub(crate) fn move_high(fd: c_int) -> c_int {
    match fcntl(fd, libc::F_DUPFD_CLOEXEC, first_of_ours() as usize) {
        Ok(high) => {
            close(fd);
            high as c_int
        }
        Err(_) => fd,
    }
}

/// A copy of a descriptor at a high number, or at any other than `fd` if all of those are taken.
pub(crate) fn copy_high(fd: c_int) -> Result<c_int, Errno> {
    let copy = |from| fcntl(fd, libc::F_DUPFD_CLOEXEC, from).map(|copy| copy as c_int);
    copy(first_of_ours() as usize).or_else(|_| copy(0))
}
