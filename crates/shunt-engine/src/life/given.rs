//! Numbers that the actions of `posix_spawn(3)` give to the program that is spawned, each by a copy. Libc makes the copies in a
//! child that calls none of our functions. A connection that has such a number when the program notes it goes to the kernel at
//! once. But the program may note it long before, and a connection may have it only when it spawns: so these numbers are kept,
//! beside the address of the actions. (A program that moves its actions to another address in between is not followed.)

use std::cell::UnsafeCell;
use std::ptr;

use libc::c_int;

use super::inherit;
use crate::thread::Lock;

/// What was noted: for which actions, and which number.
struct Notes(UnsafeCell<Vec<(usize, c_int)>>);

// SAFETY: `with` alone looks inside, with the lock.
unsafe impl Sync for Notes {}

static NOTES: Notes = Notes(UnsafeCell::new(Vec::new()));
static LOCK: Lock = Lock::new();

/// `None`: this is a signal handler that has interrupted another use. (Libc's own functions forbid that.)
fn with<R>(work: impl FnOnce(&mut Vec<(usize, c_int)>) -> R) -> Option<R> {
    LOCK.take().then(|| {
        // SAFETY: this thread has the lock, and `work` does not come back here.
        let result = work(unsafe { &mut *NOTES.0.get() });
        LOCK.give();
        result
    })
}

/// Before the actions at this address note that they give what is `fd` when they are used.
pub fn before_giving(actions: usize, fd: c_int) {
    inherit::give_to_program(fd);
    with(|notes| {
        if !notes.contains(&(actions, fd)) {
            notes.push((actions, fd));
        }
    });
}

/// The actions at this address begin, or end.
pub fn forget_given(actions: usize) {
    with(|notes| {
        notes.retain(|note| note.0 != actions);
        if notes.is_empty() {
            // So that a program which has made its last actions has this memory back.
            *notes = Vec::new();
        }
    });
}

/// Before libc starts another program (`posix_spawn`, `system`, `popen`) by the actions at this address; 0: without any.
pub fn before_spawn(actions: usize) {
    inherit::before_spawn();
    let of_these = |notes: &mut Vec<(usize, c_int)>| {
        let mut given = notes.clone();
        given.retain(|note| note.0 == actions);
        given
    };
    for (_, fd) in with(of_these).unwrap_or_default() {
        inherit::give_to_program(fd);
    }
}

/// In a forked child: the parent's threads are gone. What one of them was just changing may be whatever, so it is left as it is,
/// and its memory is lost.
pub(super) fn after_fork_child() {
    if LOCK.is_taken() {
        // SAFETY: the lock's holder does not exist here, and nobody else looks at it.
        unsafe { ptr::write(NOTES.0.get(), Vec::new()) };
        LOCK.reset();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_until_its_actions_end() {
        /// No test has a socket at a number as high.
        const NONE: c_int = 1 << 30;
        let numbers = |actions| {
            with(|notes| {
                let of_these = notes.iter().filter(|note| note.0 == actions);
                of_these.map(|note| note.1).collect::<Vec<_>>()
            })
            .unwrap()
        };
        before_giving(16, NONE + 5);
        before_giving(32, NONE + 6);
        before_giving(16, NONE + 5);
        before_giving(16, NONE + 7);
        assert_eq!(
            (numbers(16), numbers(32)),
            (vec![NONE + 5, NONE + 7], vec![NONE + 6])
        );
        forget_given(16);
        assert_eq!((numbers(16), numbers(32)), (vec![], vec![NONE + 6]));
        forget_given(32);
        assert_eq!(numbers(32), []);
        // A thread that does not exist in the child has the notes.
        before_giving(16, NONE + 5);
        assert!(LOCK.take());
        after_fork_child();
        assert_eq!(numbers(16), []);
    }
}
