//! What is asked of files and pipes, at the other end of a `sendfile` or a `splice`.

use libc::c_int;

use super::{Errno, close, eventfd, fcntl, read, ready, write};

pub(crate) fn pread(
    fd: c_int,
    buffer: *mut u8,
    length: usize,
    offset: i64,
) -> Result<usize, Errno> {
    call!(pread64, fd, buffer, length, offset)
}

/// Where a file's offset stands; `None` if it has none (a pipe).
pub(crate) fn position(fd: c_int) -> Option<i64> {
    call!(lseek, fd, 0, libc::SEEK_CUR).ok().map(|at| at as i64)
}

/// Whether a descriptor is a regular file or a block device.
pub(crate) fn is_file(fd: c_int) -> bool {
    matches!(file_type(fd), libc::S_IFREG | libc::S_IFBLK)
}

/// Whether a descriptor is an end of a pipe.
pub(crate) fn is_pipe(fd: c_int) -> bool {
    file_type(fd) == libc::S_IFIFO
}

/// Whether it was opened for this: `O_RDONLY` or `O_WRONLY`.
pub(crate) fn is_open_for(fd: c_int, access: c_int) -> bool {
    fcntl(fd, libc::F_GETFL, 0).is_ok_and(
        |flags| matches!(flags as c_int & libc::O_ACCMODE, a if a == access || a == libc::O_RDWR),
    )
}

/// `S_IFREG` and its like; 0 if the descriptor is bad.
fn file_type(fd: c_int) -> libc::mode_t {
    stat(fd).map_or(0, |stat| stat.st_mode & libc::S_IFMT)
}

const RWF_NOWAIT: c_int = 8;
/// Since Linux 6.18.
pub(crate) const RWF_NOSIGNAL: c_int = 0x100;

/// Whether the kernel knows [`RWF_NOSIGNAL`]. It takes no look at the flags of a call that moves nothing, so it is asked with a
/// counter that is zero.
pub(crate) fn knows_nosignal() -> bool {
    let Ok(counter) = eventfd() else { return false };
    let mut value = 0u64;
    let part = libc::iovec {
        iov_base: (&raw mut value).cast(),
        iov_len: size_of::<u64>(),
    };
    let all = usize::MAX;
    let read = call!(preadv2, counter, &raw const part, 1, all, all, RWF_NOSIGNAL);
    close(counter);
    read == Err(libc::EAGAIN)
}

/// Reads what a pipe has at this moment, whether it is blocking or not.
pub(crate) fn read_now(pipe: c_int, buffer: *mut u8, length: usize) -> Result<usize, Errno> {
    let part = libc::iovec {
        iov_base: buffer.cast(),
        iov_len: length,
    };
    match call!(
        preadv2,
        pipe,
        &raw const part,
        1,
        usize::MAX,
        usize::MAX,
        RWF_NOWAIT
    ) {
        // Before Linux 6.4.
        Err(libc::EOPNOTSUPP) if ready(pipe, libc::POLLIN) == 0 => Err(libc::EAGAIN),
        Err(libc::EOPNOTSUPP) => read(pipe, buffer, length),
        other => other,
    }
}

/// Writes what fits into a pipe at this moment, whether it is blocking or not.
pub(crate) fn write_now(pipe: c_int, bytes: *const u8, length: usize) -> Result<usize, Errno> {
    let part = libc::iovec {
        iov_base: bytes.cast_mut().cast(),
        iov_len: length,
    };
    match call!(
        pwritev2,
        pipe,
        &raw const part,
        1,
        usize::MAX,
        usize::MAX,
        RWF_NOWAIT
    ) {
        // Before Linux 6.4. A write of up to `PIPE_BUF` bytes does not block if poll has told of
        // room (`pipe(7)`).
        Err(libc::EOPNOTSUPP) if ready(pipe, libc::POLLOUT) & libc::POLLOUT == 0 => {
            Err(libc::EAGAIN)
        }
        Err(libc::EOPNOTSUPP) => write(pipe, bytes, length.min(libc::PIPE_BUF)),
        other => other,
    }
}

/// A pipe that does not block and is closed by an exec: its reading end, and its writing end.
pub(crate) fn pipe() -> Result<[c_int; 2], Errno> {
    let mut ends = [-1; 2];
    call!(pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK)?;
    Ok(ends)
}

/// Moves what one pipe has, and another one takes, at this moment.
pub(crate) fn splice_now(from: c_int, to: c_int, length: usize) -> Result<usize, Errno> {
    call!(splice, from, 0, to, 0, length, libc::SPLICE_F_NONBLOCK)
}

/// What tells one file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// What a descriptor names; `None` if it is bad.
pub(crate) fn file(fd: c_int) -> Option<File> {
    let stat = stat(fd)?;
    Some(File {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// Who owns a file, by its path, and who may do what with it. (A kernel address, or a path that is no
/// string, is the caller's fault.)
pub(crate) fn owner_and_mode(path: *const libc::c_char) -> Option<(u32, u32)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    call!(newfstatat, libc::AT_FDCWD, path, stat.as_mut_ptr(), 0).ok()?;
    // SAFETY: a C struct of integers, zeroed, then filled by the kernel.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_uid, stat.st_mode))
}

fn stat(fd: c_int) -> Option<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    call!(fstat, fd, stat.as_mut_ptr()).ok()?;
    // SAFETY: a C struct of integers, zeroed, then filled by the kernel.
    Some(unsafe { stat.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::fd::AsRawFd;

    #[test]
    fn files_and_pipes_are_told_apart() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let [file, reader, writer] = [file.as_raw_fd(), reader.as_raw_fd(), writer.as_raw_fd()]
            .map(|fd| fcntl(fd, libc::F_DUPFD_CLOEXEC, 0).unwrap() as c_int);
        assert!(is_file(file) && !is_file(reader) && is_pipe(reader) && !is_pipe(file));
        assert_eq!((position(file), position(reader)), (Some(0), None));
        assert!(is_open_for(reader, libc::O_RDONLY) && !is_open_for(reader, libc::O_WRONLY));
        assert!(is_open_for(writer, libc::O_WRONLY) && !is_open_for(-1, libc::O_RDONLY));
        for fd in [file, reader, writer] {
            super::super::close(fd);
        }
        assert!(!is_pipe(-1));
    }

    #[test]
    fn a_pipe_is_asked_for_what_it_has_now_only() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (from, to) = (reader.as_raw_fd(), writer.as_raw_fd());
        let mut buffer = [0u8; 8];
        assert_eq!(read_now(from, buffer.as_mut_ptr(), 8), Err(libc::EAGAIN));
        assert_eq!(write_now(to, b"ab".as_ptr(), 2), Ok(2));
        assert_eq!(read_now(from, buffer.as_mut_ptr(), 8), Ok(2));
        while write_now(to, [0u8; 4096].as_ptr(), 4096).is_ok() {}
        assert_eq!(write_now(to, b"a".as_ptr(), 1), Err(libc::EAGAIN));
    }
}
