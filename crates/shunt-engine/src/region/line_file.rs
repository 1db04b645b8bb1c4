//! The file to which processes append a line of statistics each, and whether there is one.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ensure, header};
use crate::config::Environment;
use crate::kept::Kept;
use crate::{sys, thread};

/// Where the line goes: a path, copied at start because programs change their
/// environment.
static mut PATH: [u8; 4096] = [0; 4096];
// Every start and exit looks at it, as at what is in this page.
#[unsafe(link_section = ".data")]
static ENABLED: AtomicBool = AtomicBool::new(false);
/// The file, opened while the process still may.
static FILE: Kept = Kept::nothing();

/// Reads where to write.
#[unsafe(link_section = "shunt_start")]
pub(crate) fn start(environment: Environment) {
    let Some(path) = environment.get("SHUNT_STATS=").map(CStr::to_bytes_with_nul) else {
        return;
    };
    if path.len() > 1 && path.len() <= 4096 {
        // SAFETY: in the constructor, before any other thread.
        unsafe {
            (&raw mut PATH)
                .cast::<u8>()
                .copy_from_nonoverlapping(path.as_ptr(), path.len())
        };
        // The daemon is found later, and shown it then.
        let _ = ensure();
        ENABLED.store(true, Ordering::Release);
        thread::set_used();
        if open().map(sys::move_high).is_some_and(|fd| FILE.keep(fd)) {
            show_file();
        }
    }
}

/// Says in the region which descriptor the file is: for a daemon that comes later.
pub(crate) fn show_file() {
    if let Some(header) = header() {
        let fd = file().unwrap_or(-1);
        header.served.lines.store(fd, Ordering::Relaxed);
    }
}

/// The file, if the program has not closed it behind our back.
pub(crate) fn file() -> Option<i32> {
    FILE.get()
}

/// The program wants this number: ours moves.
pub(crate) fn make_way(fd: i32) {
    FILE.make_way(fd);
    show_file();
}

/// Whether anybody will read the counts that cost something.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Opens it. Whoever gets it closes it.
pub(crate) fn open() -> Option<i32> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // PATH was written in the constructor and is NUL-terminated.
    let path = (&raw const PATH) as usize;
    // SAFETY: a valid path; a new descriptor of our own.
    unsafe { syscalls::syscall!(syscalls::Sysno::openat, libc::AT_FDCWD, path, flags, 0o666) }
        .ok()
        .map(|fd| fd as i32)
}
