//! `accept`: a thread waits at a connection that is kept as well as for the kernel.

use std::sync::atomic::Ordering;

use libc::{c_int, pollfd, sockaddr, socklen_t};

use super::await_offer::{self, Waits};
use super::lock::{self, Locked};
use super::offer::set_up;
use super::open;
use super::store::{self, Kept};
use crate::entry::{self, Entry};
use crate::hold::{Held, Taken};
use crate::socket::{Socket, Stage};
use crate::stream::{self, Spin};
use crate::thread::signals::{self, Seen};
use crate::thread::sleep::Sleep;
use crate::wake::{self, Place};
use crate::{Outcome, config, control, signal, sys, thread};

/// What the program wants to accept, and where to.
struct Wanted {
    listener: &'static Socket,
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
}

/// Before the real `accept4`. `Done`: a connection that was kept is accepted. Waits only while somebody may offer one.
///
/// # Safety
/// As for `accept4(2)`.
pub(crate) unsafe fn accept(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> Outcome {
    if !config::recycles() || !store::is_any() || config::is_confined() {
        return Outcome::Kernel;
    }
    // A connection that was taken before is accepted in any case: the listener was as new then.
    let accepts = |socket: &Socket| open::is_plain(socket) || await_offer::is_readable(socket);
    let listens = |socket: &&Socket| socket.stage() == Stage::Listener && accepts(socket);
    let Some(listener) = Socket::of(fd).filter(listens) else {
        return Outcome::Kernel;
    };
    const KNOWN: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let is_bad = !address.is_null() && !signal::may_read(length, 1);
    if is_bad || flags & !KNOWN != 0 || !thread::owns_descriptors() {
        return Outcome::Kernel;
    }
    let wanted = Wanted {
        listener,
        fd,
        address,
        length,
        flags,
    };
    let seen = signals::now();
    control::look();
    stream::see_to_wishes();
    loop {
        match wanted.attempt(seen) {
            Next::Again => {}
            Next::End(outcome) => return outcome,
        }
    }
}

/// How long a thread looks for an offer before it asks whether the kernel has something, which takes longer than a connector
/// that is on its way (ticks, about 1 µs).
const GLANCE: u64 = 2_600;

/// What the kernel has is accepted though there are offers all the time: it is asked at least this often (ticks, about 40 µs).
const ASK_EVERY: u64 = 100_000;

/// What follows an attempt.
enum Next {
    Again,
    End(Outcome),
}

impl Wanted {
    fn attempt(&self, seen: Seen) -> Next {
        let Some(locked) = lock::lock() else {
            return Next::End(Outcome::Kernel);
        };
        locked.sweep();
        await_offer::leave_what_was_left(&locked);
        if let Some(end) = self.take(&locked) {
            return end;
        }
        if !open::is_plain(self.listener) {
            return Next::End(Outcome::Kernel);
        }
        if !self.may_wait() {
            return self.look_once(&locked);
        }
        let is_known = self.was_asked_just_now();
        if !is_known && self.has_kernel_some() {
            return self.take_first(&locked);
        }
        let waits = Waits::none();
        waits.begin_with(&locked, self.listener, false);
        if !waits.are_any() {
            let taken = self.take(&locked);
            return taken.unwrap_or(Next::End(Outcome::Kernel));
        }
        drop(locked);
        let woken = self.wait(&waits, seen, !is_known);
        waits.end();
        let Some(locked) = lock::lock() else {
            // Cannot happen: this thread has not taken it.
            return Next::End(Outcome::Kernel);
        };
        match woken {
            Woken::Kernel => self.take_first(&locked),
            Woken::Interrupted => {
                let taken = self.take(&locked);
                taken.unwrap_or(Next::End(Outcome::Fail(libc::EINTR)))
            }
            Woken::Otherwise => Next::Again,
        }
    }

    /// Accepts what was taken first, or is offered now. `None`: nothing.
    fn take(&self, locked: &Locked) -> Option<Next> {
        open::take_all(locked, self.listener);
        let taken = open::first_taken(locked, self.listener)?;
        Some(self.finish(locked, taken))
    }

    /// The kernel has something. What was offered before that was connected is accepted first.
    fn take_first(&self, locked: &Locked) -> Next {
        self.take(locked).unwrap_or(Next::End(Outcome::Kernel))
    }

    /// For a call that does not wait. Nothing has been offered so far.
    fn look_once(&self, locked: &Locked) -> Next {
        if open::of(locked, self.listener) == 0 || self.has_kernel_some() {
            return self.take_first(locked);
        }
        let taken = self.take(locked);
        taken.unwrap_or(Next::End(Outcome::Fail(libc::EAGAIN)))
    }

    /// Whether the kernel was asked for a connection so recently that an offer comes first.
    fn was_asked_just_now(&self) -> bool {
        let asked_at = self.listener.hints.looked_at.load(Ordering::Relaxed);
        !stream::shares_core() && sys::ticks().wrapping_sub(asked_at) < ASK_EVERY
    }

    /// Asks the kernel for a connection.
    fn has_kernel_some(&self) -> bool {
        let asked_at = &self.listener.hints.looked_at;
        asked_at.store(sys::ticks(), Ordering::Relaxed);
        sys::ready(self.fd, libc::POLLIN) != 0
    }

    /// Whether the call waits.
    fn may_wait(&self) -> bool {
        let waits = |flags| flags & libc::O_NONBLOCK as usize == 0;
        let asked = || sys::fcntl(self.fd, libc::F_GETFL, 0).is_ok_and(waits);
        let known = self.listener.made.flags();
        known.map_or_else(asked, |flags| !flags.nonblock)
    }

    /// Gives the program a descriptor of the connection that was taken.
    fn finish(&self, locked: &Locked, kept: &Kept) -> Next {
        let Some(socket) = kept.socket() else {
            return Next::Again;
        };
        let copy = if self.flags & libc::SOCK_CLOEXEC != 0 {
            libc::F_DUPFD_CLOEXEC
        } else {
            libc::F_DUPFD
        };
        let fd = match sys::fcntl(kept.fd(), copy, 0) {
            Ok(fd) => fd as c_int,
            // The numbers that are left are the library's, of which the program knows nothing. It gets this one, unless it has
            // forbidden itself such a number meanwhile.
            Err(libc::EMFILE) if (kept.fd() as u64) < sys::descriptor_limit() => {
                let closes = self.flags & libc::SOCK_CLOEXEC != 0;
                let flag = if closes { libc::FD_CLOEXEC } else { 0 };
                let _ = sys::fcntl(kept.fd(), libc::F_SETFD, flag as usize);
                kept.fd()
            }
            // As in the kernel, the connection stays for an `accept` that has room for a descriptor.
            Err(errno) => return Next::End(Outcome::Fail(errno)),
        };
        let nonblock = self.flags & libc::SOCK_NONBLOCK != 0;
        self.listener.accepts.keeps.note_paid();
        let set = self.listener.settings.on.load(Ordering::Relaxed);
        set_up(socket, fd, nonblock, set);
        if !self.address.is_null() {
            // SAFETY: the program's own, as `accept4(2)` wants it.
            unsafe { sys::put_name(fd, self.address, self.length) };
        }
        if let Some(pair) = socket.pair() {
            stream::turns(pair).accept();
        }
        socket.use_again(fd);
        match entry::enter(fd, Entry::Socket(socket)) {
            Entry::Socket(stale) => stale.unhold(),
            Entry::Set(stale) => stale.unhold(),
            Entry::Ours | Entry::Other => {}
        }
        kept.use_again(locked);
        Next::End(Outcome::Done(fd as isize))
    }

    /// Waits for an offer, or for the kernel. `asked`: the kernel has just said that it has nothing.
    fn wait(&self, waits: &Waits, seen: Seen, mut asked: bool) -> Woken {
        let (mut spin, began) = (Spin::new(), sys::ticks());
        loop {
            if waits.have_news() {
                spin.paid();
                return Woken::Otherwise;
            }
            if seen.interrupting_since() {
                return Woken::Interrupted;
            }
            if asked {
                if !spin.turn() {
                    break;
                }
            } else if sys::ticks().wrapping_sub(began) > GLANCE {
                asked = true;
                if self.has_kernel_some() {
                    return Woken::Kernel;
                }
            }
        }
        let woken = self.sleep(waits, seen);
        spin.woke();
        woken
    }

    /// Sleeps until something is offered, the kernel has something, or the connection has been kept long enough.
    fn sleep(&self, waits: &Waits, seen: Seen) -> Woken {
        let Some(place) = wake::enter() else {
            // Nobody could wake this thread but the kernel.
            waits.give_up();
            return Woken::Kernel;
        };
        let held = Taken::now();
        let get_up = || {
            // In a child that a signal handler has forked meanwhile nothing is to be undone: the parent sleeps.
            if held.lasts() {
                place.leave();
            }
        };
        waits.say(|at| place.tell(at));
        let looked = signals::now();
        let woken = if waits.have_news() {
            Woken::Otherwise
        } else if seen.interrupting_since() {
            Woken::Interrupted
        } else {
            self.sleep_in_kernel(waits, place, seen, looked, &|| {
                get_up();
                // The thread is cancelled in its sleep: the next `accept` returns what is offered.
                waits.end();
            })
        };
        get_up();
        woken
    }

    fn sleep_in_kernel(
        &self,
        waits: &Waits,
        place: Place,
        seen: Seen,
        looked: Seen,
        undo: &impl Fn(),
    ) -> Woken {
        let queue = pollfd {
            fd: self.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut both = [queue, place.watch()];
        let left = waits.left().unwrap_or(0);
        let time = libc::timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        };
        // SAFETY: no mask.
        let slept = unsafe { Sleep::poll(&mut both, Some(time), std::ptr::null(), looked, undo) };
        if both[1].revents != 0 {
            place.hear(waits.have_news());
        }
        match slept {
            Err(libc::EINTR) if seen.interrupting_since() => Woken::Interrupted,
            Err(libc::EINTR) => Woken::Otherwise,
            Err(_) => Woken::Kernel,
            Ok(_) if both[0].revents != 0 => Woken::Kernel,
            Ok(_) => Woken::Otherwise,
        }
    }
}

/// What has ended a wait.
enum Woken {
    /// A signal handler after which the kernel would not restart the call.
    Interrupted,
    /// The kernel has a connection, or an error.
    Kernel,
    /// Time, or a call.
    Otherwise,
}
