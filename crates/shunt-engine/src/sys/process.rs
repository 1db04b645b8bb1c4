//! This process, and whether another is there.

use libc::c_int;

use super::{close, ready};

pub(crate) fn getpid() -> u32 {
    call!(getpid).unwrap_or(0) as u32
}

/// Whether the process has other threads (`/proc/self/task` has a link for each,
/// and two more); if in doubt, it has.
pub(crate) fn has_threads() -> bool {
    // SAFETY: a C struct of integers, for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let path = c"/proc/self/task".as_ptr();
    let found = call!(newfstatat, libc::AT_FDCWD, path, &raw mut status, 0).is_ok();
    !found || status.st_nlink > 3
}

/// Whether a process has ended, also if nobody has waited for it yet.
pub(crate) fn is_dead(process: u32) -> bool {
    match call!(pidfd_open, process, 0) {
        Ok(fd) => {
            let fd = fd as c_int;
            let ended = ready(fd, libc::POLLIN) & libc::POLLIN != 0;
            close(fd);
            ended
        }
        Err(errno) => errno == libc::ESRCH,
    }
}

/// Ends the process.
pub(crate) fn exit(status: c_int) {
    let _ = call!(exit_group, status);
}

/// 1 + the number of the core on which this thread runs; 0 where nobody knows. Where libc has
/// registered restartable sequences it is a load from the thread's own memory.
#[inline]
pub(crate) fn core() -> u32 {
    // SAFETY: no arguments.
    let core = crate::real::quietly(|| unsafe { libc::sched_getcpu() as isize });
    core.map_or(0, |core| core as u32 + 1)
}

/// What the kernel calls this process (or thread).
pub(crate) fn comm() -> [u8; 16] {
    let mut comm = [0u8; 16];
    let _ = call!(prctl, libc::PR_GET_NAME, comm.as_mut_ptr());
    comm
}
