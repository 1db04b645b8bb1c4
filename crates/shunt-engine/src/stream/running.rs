//! How many threads are running on this machine, or want to (`proc_loadavg(5)`).
//!
//! The file stays open once it was needed: a number that is taken and given back again and again would be seen by
//! other threads of the program, and by children that these fork. (Should the program close it past libc, and open the same file at
//! the same number, that one is taken for ours.)

use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

use crate::kept::Kept;
use crate::sys;
use crate::thread::{self, Lock};

static FILE: Kept = Kept::nothing();
/// Held while the file is used, and while it changes.
static LOCK: Lock = Lock::new();
/// Whether the file cannot be opened here. It is not tried again: refusals may be written into a log.
static CANNOT: AtomicBool = AtomicBool::new(false);

/// Whether exactly two threads are running, of which this is one. In doubt they are not alone.
pub(super) fn are_two_alone() -> bool {
    if CANNOT.load(Ordering::Relaxed) || !thread::owns_descriptors() || !LOCK.try_take() {
        return false;
    }
    let mut text = [0; 64];
    let file = FILE.get().or_else(open);
    let length = file.and_then(|fd| sys::pread(fd, text.as_mut_ptr(), text.len(), 0).ok());
    LOCK.give();
    running(&text[..length.unwrap_or(0)]) == Some(2)
}

/// With the lock.
#[cold]
fn open() -> Option<c_int> {
    FILE.take().into_iter().for_each(sys::close);
    match sys::open_in_proc(c"/proc/loadavg") {
        Ok(fd) => {
            let fd = sys::move_high(fd);
            FILE.keep(fd).then_some(fd)
        }
        Err(errno) => {
            let is_for_now = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR];
            CANNOT.store(!is_for_now.contains(&errno), Ordering::Relaxed);
            None
        }
    }
}

/// The number before the slash in the fourth field.
fn running(loadavg: &[u8]) -> Option<u32> {
    let field = loadavg.split(|&byte| byte == b' ').nth(3)?;
    let number = field.split(|&byte| byte == b'/').next()?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Closes the file, if it is open: its number is the program's. `true`: it was open.
pub(crate) fn give_up() -> bool {
    if FILE.number() < 0 || !LOCK.take() {
        return false;
    }
    let fd = FILE.take();
    fd.into_iter().for_each(sys::close);
    LOCK.give();
    fd.is_some()
}

/// Moves the file to another number, if the program wants its number `fd`.
pub(crate) fn make_way(fd: c_int) {
    if FILE.number() != fd {
        return;
    }
    // In a signal handler that has interrupted a use it does not wait.
    let is_taken = LOCK.take();
    FILE.make_way(fd);
    if is_taken {
        LOCK.give();
    }
}

/// In a forked child, which has the file, too: what one of them reads does not move the other.
pub(crate) fn after_fork_child() {
    LOCK.reset();
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::table::{self, Word};

    #[test]
    fn the_fourth_field_says_how_many_threads_are_running() {
        assert_eq!(running(b"0.20 0.18 0.12 1/80 11206\n"), Some(1));
        assert_eq!(running(b"130.20 9.18 0.12 132/4080 11206\n"), Some(132));
        for other in [&b""[..], b"0.20 0.18 0.12", b"0.20 0.18 0.12 -/80"] {
            assert_eq!(running(other), None);
        }
    }

    #[test]
    fn the_file_stays_open_and_makes_way_and_is_given_up() {
        thread::learn_pid();
        are_two_alone();
        let fd = FILE.get().expect("/proc/loadavg");
        are_two_alone();
        assert_eq!(FILE.get(), Some(fd));
        assert!(fd >= sys::first_of_ours() && table::look(fd) == Word::OURS);
        make_way(fd);
        let other = FILE.get().unwrap();
        sys::close(fd);
        assert!(other != fd && give_up() && !give_up());
        are_two_alone();
        assert!(FILE.get().is_some() && !CANNOT.load(Ordering::Relaxed));
    }
}
