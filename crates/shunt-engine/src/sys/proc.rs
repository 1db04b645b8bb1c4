//! This process, and whether another is there.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use super::{Errno, close, ready};

pub(crate) fn getpid() -> u32 {
    call!(getpid).unwrap_or(0) as u32
}

/// Whether the process has other threads (`/proc/self/task` has a link for each,
/// and two more); if in doubt, it has.
pub(crate) fn has_threads() -> bool {
    stat_path(c"/proc/self/task").is_none_or(|status| status.st_nlink > 3)
}

/// The PID namespace of this process, once `/proc` has said it; 0: not yet.
static PID_NAMESPACE: AtomicU64 = AtomicU64::new(0);

/// Names the PID namespace of this process (`pid_namespaces(7)`); 0 where `/proc` does not say. A process stays in its namespace, so
/// `/proc` is asked only until it has said so: later the process may have another root, without one.
pub(crate) fn pid_namespace() -> u64 {
    let noted = PID_NAMESPACE.load(Ordering::Relaxed);
    if noted != 0 {
        return noted;
    }
    let said = stat_path(c"/proc/self/ns/pid").map_or(0, |status| status.st_ino);
    PID_NAMESPACE.store(said, Ordering::Relaxed);
    said
}

/// In a forked child: what the parent has noted is the child's, too, if the child has a number for its parent. In another
/// namespace it has none (`getppid(2)`).
pub(crate) fn take_over_pid_namespace() {
    if PID_NAMESPACE.load(Ordering::Relaxed) != 0 && call!(getppid).unwrap_or(0) == 0 {
        PID_NAMESPACE.store(0, Ordering::Relaxed);
    }
}

fn stat_path(path: &CStr) -> Option<libc::stat> {
    // SAFETY: a C struct of integers, for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let path = path.as_ptr();
    call!(newfstatat, libc::AT_FDCWD, path, &raw mut status, 0).ok()?;
    Some(status)
}

/// Whether the kernel would refuse to execute the file that a path in a directory names, and
/// why (`faccessat(2)`). What more it may find wrong with the file is not looked at.
pub(crate) fn refuses_to_run(directory: c_int, path: *const libc::c_char) -> Option<Errno> {
    let looked = call!(faccessat2, directory, path, libc::X_OK, libc::AT_EACCESS);
    let refused = [
        libc::ENOENT,
        libc::ENOTDIR,
        libc::EACCES,
        libc::ELOOP,
        libc::ENAMETOOLONG,
    ];
    looked.err().filter(|errno| refused.contains(errno))
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

/// Whether a process is stopped, by a signal or a debugger (`proc_pid_stat(5)`). `None`: it cannot be seen, as there is no `/proc`,
/// or it is hidden there (`hidepid`).
pub(crate) fn is_stopped(process: u32) -> Option<bool> {
    let mut path = *b"/proc/0000000000/stat\0";
    let mut rest = process;
    for digit in path[6..16].iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    // Leading zeros name nothing there.
    let zeros = path[6..15]
        .iter()
        .take_while(|&&digit| digit == b'0')
        .count();
    path.copy_within(6 + zeros.., 6);
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let fd = call!(openat, libc::AT_FDCWD, path.as_ptr(), flags).ok()?;
    let mut stat = [0u8; 128];
    let read = call!(read, fd, stat.as_mut_ptr(), stat.len()).unwrap_or(0);
    close(fd as c_int);
    // The state follows the name, which may have parentheses of its own.
    let name_ends = stat[..read].iter().rposition(|&byte| byte == b')')?;
    Some(matches!(stat.get(name_ends + 2), Some(b'T' | b't')))
}

/// Opens a file of the kernel's for reading. `ENOTSUP`: another file system has one of that name in its place.
pub(crate) fn open_in_proc(path: &CStr) -> Result<c_int, Errno> {
    // Whatever has that name, to open it neither waits nor makes it a terminal of the program's.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let fd = call!(openat, libc::AT_FDCWD, path.as_ptr(), flags)? as c_int;
    // SAFETY: a C struct of integers, for which zero is a value.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    let asked = call!(fstatfs, fd, &raw mut about);
    if asked.is_err() || about.f_type != libc::PROC_SUPER_MAGIC {
        close(fd);
        return Err(libc::ENOTSUP);
    }
    Ok(fd)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_stopped_process_is_told_from_one_that_sleeps() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = child.id();
        assert_eq!([process, getpid()].map(is_stopped), [Some(false); 2]);
        let signal = |signal| {
            // SAFETY: to this test's own child.
            assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
        };
        signal(libc::SIGSTOP);
        while is_stopped(process) != Some(true) {
            std::thread::yield_now();
        }
        signal(libc::SIGCONT);
        while is_stopped(process) != Some(false) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(is_stopped(process), None);
    }

    /// In a child with the rights of root, as far as it may have these: whether `look` says yes there. A child that may not
    /// have them has nothing to look at.
    #[cfg(not(miri))]
    fn as_root(flags: c_int, look: impl FnOnce() -> bool) -> bool {
        crate::both_ends::in_child(|| {
            // SAFETY: the child has one thread, and only its own namespaces change.
            let may = unsafe { libc::unshare(libc::CLONE_NEWUSER | flags) } == 0;
            !may || look()
        })
    }

    #[test]
    #[cfg(not(miri))]
    fn a_process_knows_its_pid_namespace_where_there_is_no_proc_any_more() {
        let noted = pid_namespace();
        assert_ne!(noted, 0);
        assert!(as_root(0, || {
            // SAFETY: a string, and the child's own root.
            let has_left = unsafe { libc::chroot(c"/dev".as_ptr()) } == 0;
            take_over_pid_namespace();
            has_left && stat_path(c"/proc/self").is_none() && pid_namespace() == noted
        }));
    }

    #[test]
    #[cfg(not(miri))]
    fn a_child_in_another_pid_namespace_does_not_take_its_parents_for_its_own() {
        let noted = pid_namespace();
        assert!(as_root(libc::CLONE_NEWPID, || {
            crate::both_ends::in_child(|| {
                take_over_pid_namespace();
                getpid() == 1 && pid_namespace() != noted
            })
        }));
    }
}
