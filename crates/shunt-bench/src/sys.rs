//! Calls without a safe wrapper.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Lets [`go_on`] know of Ctrl-C, a request to end, or a closed terminal, so that what was
/// started is ended and removed in good order; the second time they do what they always do.
pub(crate) fn hear_interruption() {
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: zeroed is an empty mask; the handler only stores a word.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// An error once the run is to end.
pub(crate) fn go_on() -> Result<()> {
    anyhow::ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// Ends this process after this number of seconds, whatever it does then.
pub(crate) fn end_after(seconds: u32) {
    // SAFETY: takes a number; SIGALRM's action is the default one.
    unsafe { libc::alarm(seconds) };
}

/// Lets a child die with us, and with all that it has started in its group.
pub(crate) fn bind(command: &mut Command) {
    command.process_group(0);
    // SAFETY: prctl is async-signal-safe and takes no memory.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Keeps a child on a core.
pub(crate) fn pin(command: &mut Command, core: usize) {
    // SAFETY: zeroed is an empty set; the child makes one system call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        command.pre_exec(move || {
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
            Ok(())
        });
    }
}

/// A descriptor that the driver has left to this process.
pub(crate) fn inherited(number: i32) -> File {
    // SAFETY: the driver's word; nobody else here knows of it.
    unsafe { File::from_raw_fd(number) }
}

/// Maps a file that two processes share.
pub(crate) fn map(file: &File, bytes: usize) -> Result<*mut u8> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping wherever the kernel likes.
    let at = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, file, 0)? };
    Ok(at.cast())
}

/// An epoll set, by libc's own calls: what stands between those and the kernel is measured.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: a new descriptor, which nobody else has.
        unsafe {
            Ok(Self(OwnedFd::from_raw_fd(check(libc::epoll_create1(
                libc::EPOLL_CLOEXEC,
            ))?)))
        }
    }

    /// Watches a descriptor for input; events name it by `number`.
    pub(crate) fn add(&self, fd: i32, number: usize) -> Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: number as u64,
        };
        let set = self.0.as_raw_fd();
        // SAFETY: the event outlives the call.
        unsafe {
            check(libc::epoll_ctl(
                set,
                libc::EPOLL_CTL_ADD,
                fd,
                &raw mut event,
            ))?
        };
        Ok(())
    }

    pub(crate) fn forget(&self, fd: i32) -> Result<()> {
        let none = std::ptr::null_mut();
        // SAFETY: takes no memory.
        unsafe {
            check(libc::epoll_ctl(
                self.0.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                fd,
                none,
            ))?
        };
        Ok(())
    }

    /// Waits for events, some at a time: the numbers of who has any.
    pub(crate) fn wait(&self) -> Result<impl Iterator<Item = usize> + use<>> {
        const SOME: usize = 64;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; SOME];
        // SAFETY: the array has as many places.
        let count = unsafe {
            let set = self.0.as_raw_fd();
            check(libc::epoll_wait(set, events.as_mut_ptr(), SOME as i32, -1))?
        };
        Ok(events
            .into_iter()
            .take(count as usize)
            .map(|event| event.u64 as usize))
    }
}

fn check(result: i32) -> Result<i32> {
    if result < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(result)
}

/// Lets this process have `count` descriptors.
pub(crate) fn allow_descriptors(count: usize) -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = count as u64;
    if limit.current.is_some_and(|now| now < wanted) {
        limit.current = Some(wanted);
        setrlimit(Resource::Nofile, limit)
            .with_context(|| format!("{wanted} descriptors are not allowed (ulimit -Hn)"))?;
    }
    Ok(())
}

/// Memory that forked children share, zeroed.
pub(crate) fn shared(bytes: usize) -> Result<*mut u8> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping wherever the kernel likes.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags)? };
    Ok(at.cast())
}

/// Forks; the child does `work` and ends.
pub(crate) fn fork(work: impl FnOnce()) -> Result<libc::pid_t> {
    // SAFETY: the callers' processes have one thread when they fork.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            work();
            // SAFETY: takes a number.
            unsafe { libc::_exit(0) }
        }
        child => Ok(child),
    }
}

/// Becomes another program, if it can.
pub(crate) fn become_program(words: &[&CStr]) {
    let words: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    // SAFETY: strings, and a null pointer at the end.
    unsafe {
        libc::execv(
            words[0],
            [&words[..], &[std::ptr::null()]].concat().as_ptr(),
        )
    };
}

/// Starts another program.
pub(crate) fn spawn(words: &[&CStr]) -> Result<libc::pid_t> {
    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }
    let words: Vec<_> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    let words = [&words[..], &[std::ptr::null_mut()]].concat();
    let (mut child, none) = (0, std::ptr::null());
    // SAFETY: strings, and null pointers at the ends; no actions, no attributes.
    let error = unsafe {
        libc::posix_spawn(
            &raw mut child,
            words[0],
            none,
            none.cast(),
            words.as_ptr(),
            environ,
        )
    };
    anyhow::ensure!(error == 0, std::io::Error::from_raw_os_error(error));
    Ok(child)
}

/// Waits for a child, which must end well.
pub(crate) fn reap(child: libc::pid_t) -> Result<()> {
    let mut status = 0;
    // SAFETY: room for an `int`.
    let reaped = unsafe { libc::waitpid(child, &raw mut status, 0) };
    anyhow::ensure!(
        reaped == child && status == 0,
        "a child ended with {status}"
    );
    Ok(())
}

/// Ends a child that would not end by itself.
pub(crate) fn end(child: libc::pid_t) {
    // SAFETY: takes numbers; the child has not been waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

/// Processor time of this process so far.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor seconds of the children that have been waited for, all in all and outside
/// the kernel.
pub(crate) fn cpu_of_children() -> [f64; 2] {
    // SAFETY: zeroed is a valid rusage, and getrusage fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let time = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    let user = time(usage.ru_utime);
    [user + time(usage.ru_stime), user]
}
