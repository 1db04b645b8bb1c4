//! Calls without a safe wrapper, and the state in which this process started:
//! all unsafe code of the command is here.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// SIGPIPE was ignored when we were started.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
/// Bit n: standard stream n was closed when we were started.
static CLOSED_STREAMS: AtomicU8 = AtomicU8::new(0);

/// Runs before Rust's runtime, which ignores SIGPIPE and opens closed standard
/// streams. The program that we become must find both as we did.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_ENTRY: extern "C" fn() = note_entry;

extern "C" fn note_entry() {
    // SAFETY: both calls only read our own state; zeroed is a valid sigaction.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, null(), &raw mut action) == 0 {
            PIPE_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
        }
        for fd in 0..3 {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                CLOSED_STREAMS.fetch_or(1 << fd, Ordering::Relaxed);
            }
        }
    }
}

/// Becomes another program, found as `execvp(3)` finds it. Returns only if that
/// failed.
pub(crate) fn become_program(
    arguments: &[CString],
    environment: &[CString],
) -> io::Result<Infallible> {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both lists end with a null pointer and their strings live until
    // the call returns; no other thread exists that could use a closed stream.
    unsafe {
        let ignored = PIPE_IGNORED.load(Ordering::Relaxed);
        libc::signal(
            libc::SIGPIPE,
            if ignored {
                libc::SIG_IGN
            } else {
                libc::SIG_DFL
            },
        );
        let closed = CLOSED_STREAMS.load(Ordering::Relaxed);
        for fd in (0..3).filter(|fd| closed >> fd & 1 == 1) {
            libc::close(fd);
        }
        libc::execvpe(arguments[0], arguments.as_ptr(), environment.as_ptr());
        let error = io::Error::last_os_error();
        // The caller is going to print it.
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        Err(error)
    }
}

/// Makes a command start as a daemon: in a session of its own, as nobody's
/// child, on any core, and with none of our descriptors but `kept`. The process that `spawn`
/// returns ends at once.
pub(crate) fn detach(command: &mut Command, kept: c_int) {
    let prepare = move || {
        // SAFETY: between fork and exec, only async-signal-safe calls. The
        // intermediate process ends without running anything of ours.
        unsafe {
            libc::setsid();
            match libc::fork() {
                -1 => return Err(io::Error::last_os_error()),
                0 => {}
                _ => libc::_exit(0),
            }
            // Also what we inherited: a pipe held open by a daemon would keep
            // its reader waiting for ever.
            libc::syscall(
                libc::SYS_close_range,
                3,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            );
            if libc::fcntl(kept, libc::F_SETFD, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, null_mut());
            // A program that is kept on a core has that one for itself. The kernel leaves out what a cpuset forbids.
            let mut all: libc::cpu_set_t = std::mem::zeroed();
            (&raw mut all).write_bytes(0xff, 1);
            libc::sched_setaffinity(0, size_of_val(&all), &raw const all);
        }
        Ok(())
    };
    // SAFETY: see above; the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
}

/// The user that stands for all whom a user namespace does not map
/// (`user_namespaces(7)`; the kernel's default).
pub(crate) const OVERFLOW_UID: u32 = 65534;

/// `SO_PEERCRED`: process and user of the other end. No process: it lives in a PID
/// namespace that we cannot see, for which rustix's type has no value.
pub(crate) fn peer_credentials(socket: impl AsFd) -> io::Result<(Option<NonZeroU32>, u32)> {
    let mut found = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: there is room for `length` bytes and the kernel writes no more; a C struct
    // of integers, zeroed before.
    let found = unsafe {
        let done = libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            found.as_mut_ptr().cast(),
            &raw mut length,
        );
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        found.assume_init()
    };
    Ok((NonZeroU32::new(found.pid.cast_unsigned()), found.uid))
}

/// Asks something in a child of this process: what it may do to its parent is what an
/// unrelated process of the same user may.
pub(crate) fn in_child(
    mut question: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<()> {
    /// Says yes, so that nothing is executed; no question of ours ends in it.
    const YES: c_int = libc::ECANCELED;
    let mut command = Command::new("/proc/self/exe");
    // SAFETY: the questions are system calls; nothing is allocated, no lock taken.
    unsafe {
        command.pre_exec(move || {
            question()?;
            Err(io::Error::from_raw_os_error(YES))
        });
    }
    match command.spawn() {
        Err(error) if error.raw_os_error() == Some(YES) => Ok(()),
        Err(error) => Err(error),
        Ok(mut child) => child.wait().map(drop),
    }
}

/// A system call to be tried.
pub(crate) struct Call {
    name: &'static str,
    number: libc::c_long,
    arguments: [c_int; 2],
}

impl Call {
    /// With arguments that are bad, whatever the call.
    pub(crate) const fn new(name: &'static str, number: libc::c_long) -> Self {
        Self {
            name,
            number,
            arguments: [-1; 2],
        }
    }

    /// With these first arguments.
    pub(crate) const fn with(mut self, first: c_int, second: c_int) -> Self {
        self.arguments = [first, second];
        self
    }
}

/// Makes each call in a child of this process. The name of the one by which a signal has ended that.
pub(crate) fn deadly(calls: &'static [Call]) -> Option<&'static str> {
    let (progress, writer) = io::pipe().ok()?;
    // SAFETY: the child makes system calls only, all of which fail or change nothing but itself, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // It leaves no core file.
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: a valid limit.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
        for call in calls {
            // SAFETY: see above; the byte is there, and -1 is no address that could be written to.
            unsafe {
                libc::write(writer.as_raw_fd(), [0u8].as_ptr().cast(), 1);
                let [first, second] = call.arguments.map(libc::c_long::from);
                libc::syscall(call.number, first, second, -1, -1, -1, -1);
            }
        }
        // SAFETY: runs nothing of this process's.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let made = io::Read::bytes(progress).map_while(Result::ok).count();
    let mut status = 0;
    // SAFETY: there is room for the status.
    let waited = child > 0 && unsafe { libc::waitpid(child, &raw mut status, 0) } == child;
    let ended = waited && libc::WIFSIGNALED(status);
    ended.then(|| made.checked_sub(1).map_or("write", |last| calls[last].name))
}

/// Makes a file size limit an error like others.
pub(crate) fn ignore_file_size_signal() {
    // SAFETY: no handler is involved.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
