//! The sending end of all wake channels: one socket for the process.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

use super::sending::{self, await_sent, is_heard, sending};
use crate::kept::Kept;
use crate::region::count;
use crate::thread::undisturbed;
use crate::{config, sys, thread};

/// The socket that this process sends by, …
static SENDER: Kept = Kept::nothing();
/// … made by one thread at a time.
static MAKING: AtomicBool = AtomicBool::new(false);

/// Calls the threads that sleep at the channel of that name. A full queue is a call that is pending. `false`: nobody
/// has heard it, as there is no such channel in this process's network namespace, or the kernel does not let this
/// process send there.
pub(super) fn call(name: u64, secret: u64) -> bool {
    let heard = sending(|| {
        // A number that is known to name something of the program's is not used. If the program has
        // closed it unseen, the kernel says so.
        let known = SENDER.number();
        SENDER.is_kept() && is_heard(known, name, secret)
            || sender().is_some_and(|sender| sender != known && is_heard(sender, name, secret))
            || call_anew(name, secret)
    });
    if heard {
        count::calls();
    }
    heard
}

/// Gives the socket up. The caller closes it, or makes its number name something else.
pub(super) fn give_up() -> Option<c_int> {
    let given_up = SENDER.take()?;
    if !undisturbed::has_begun() {
        await_sent(0);
    }
    Some(given_up)
}

/// Calls by a new socket, which takes the place of the one that is full.
#[cold]
fn call_anew(name: u64, secret: u64) -> bool {
    if config::is_confined() {
        return false;
    }
    let Ok(fd) = sys::datagram_socket() else {
        return false;
    };
    let sent = is_heard(fd, name, secret);
    if thread::owns_memory() && !MAKING.swap(true, Ordering::Acquire) {
        let former = SENDER.take();
        SENDER.keep(sys::move_high(fd));
        if let Some(former) = former {
            // 1: this thread is itself one that sends; and no other one waits here meanwhile (`MAKING`).
            await_sent(1);
            sys::close(former);
        }
        MAKING.store(false, Ordering::Release);
    } else {
        sys::close(fd);
    }
    sent
}

/// Whether peers can be called from here. `None`: another thread is just opening the socket.
pub(crate) fn is_able() -> Option<bool> {
    if SENDER.number() >= 0 || sender().is_some() {
        return Some(true);
    }
    // In this order: the thread that opens it keeps it before it says that it is done.
    let is_busy = MAKING.load(Ordering::Acquire);
    (!is_busy).then(|| SENDER.number() >= 0)
}

/// The socket for names of this process's network namespace; another one if the program has closed its number behind our back.
pub(super) fn sender() -> Option<c_int> {
    SENDER.get().or_else(make)
}

#[cold]
fn make() -> Option<c_int> {
    let may = thread::owns_memory() && !config::is_confined();
    if !may || MAKING.swap(true, Ordering::Acquire) {
        return None;
    }
    let fd = SENDER.get().or_else(|| {
        let made = sys::datagram_socket().map(sys::move_high).ok();
        SENDER.take();
        made.filter(|&fd| SENDER.keep(fd))
    });
    MAKING.store(false, Ordering::Release);
    fd
}

/// In a forked child, where nobody is making it.
pub(super) fn after_fork_child() {
    MAKING.store(false, Ordering::Relaxed);
    sending::after_fork_child();
}

/// Moves the sender to another number, if the program wants its number `fd`.
pub(super) fn make_way(fd: c_int) {
    if SENDER.number() == fd {
        SENDER.make_way(fd);
        // In a signal handler it does not wait: the thread would wait for itself.
        if !undisturbed::has_begun() {
            await_sent(0);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_number_goes_to_the_program_when_nobody_sends_by_it_any_more() {
        let _alone = crate::both_ends::one_at_a_time();
        thread::learn_pid();
        static STEP: AtomicU64 = AtomicU64::new(0);
        let number = sender().unwrap();
        let caller = std::thread::spawn(|| {
            sending(|| {
                STEP.store(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(20));
                STEP.store(2, Ordering::SeqCst);
            });
        });
        while STEP.load(Ordering::SeqCst) == 0 {
            sys::sched_yield();
        }
        make_way(number);
        assert_eq!(STEP.load(Ordering::SeqCst), 2);
        assert_ne!(SENDER.number(), number);
        caller.join().unwrap();
        sys::close(number);
    }
}
