//! How the inner set is made, and what it tells: bytes of TCP, ends, kicks.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use shunt_shm::slot::Way;

use super::outside;
use super::set::{SETS, Set};
use super::sleepers;
use super::state::State;
use crate::config;
use crate::reach;
use crate::stream::Conn;
use crate::sys::{self, Errno};

/// The data of the NIC's registration in the inner set.
const NIC: u64 = KICK - 1;
/// The data of the kick's registration there.
const KICK: u64 = u64::MAX;

impl Set {
    /// The inner set, which is made if there is none; not in the place of one that was lost ([`super::restore`]). With the lock held.
    pub(super) fn open_inner(&self) -> Result<c_int, Errno> {
        if self.is_flat.load(Ordering::Relaxed) {
            return Err(libc::ELOOP);
        }
        if !self.is_divided.load(Ordering::Relaxed) {
            self.make_inner()?;
        }
        match self.inner_fd() {
            -1 => Err(libc::EBADF),
            inner => Ok(inner),
        }
    }

    /// The number of the inner set; -1: there is none, or it was lost.
    pub(super) fn inner_fd(&self) -> c_int {
        match self.inner.is_kept() {
            true => self.inner.number(),
            false => -1,
        }
    }

    /// The number of the kick, if it names that still. (Of a process that has confined itself the kernel is not asked: it may
    /// forbid the question.)
    pub(super) fn kick_fd(&self) -> Option<c_int> {
        let is_kept = self.kick.is_kept() && (config::is_confined() || self.kick.get().is_some());
        is_kept.then(|| self.kick.number())
    }

    /// Puts the kick into the inner set, at the number that it has now. `EEXIST`: it is there.
    pub(super) fn enter_kick(&self, inner: c_int, kick: c_int) -> Result<(), Errno> {
        let mut event = epoll_event {
            events: libc::EPOLLIN as u32,
            u64: KICK,
        };
        sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, kick, &raw mut event).map(drop)
    }

    /// Puts the inner set into the program's, at the number that it has now.
    pub(super) fn enter_inner(&self, inner: c_int) -> Result<(), Errno> {
        let mut event = epoll_event {
            events: libc::EPOLLIN as u32,
            u64: self.magic(),
        };
        sys::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, inner, &raw mut event).map(drop)
    }

    /// Makes an inner set and its kick, with the lock held.
    pub(super) fn make_inner(&self) -> Result<(), Errno> {
        let inner = sys::move_high(sys::epoll_create()?);
        let kick = match sys::eventfd() {
            Ok(kick) => sys::move_high(kick),
            Err(errno) => {
                sys::close(inner);
                return Err(errno);
            }
        };
        let done = self
            .enter_kick(inner, kick)
            .and_then(|()| self.enter_inner(inner));
        if let Err(errno) = done {
            sys::close(inner);
            sys::close(kick);
            return Err(errno);
        }
        if !self.inner.keep(inner) {
            sys::close(kick);
            return Err(libc::EBADF);
        }
        if !self.kick.keep(kick) {
            if let Some(inner) = self.inner.take() {
                sys::close(inner);
            }
            return Err(libc::EBADF);
        }
        // Either a thread that begins a plain wait sees it, or who opens it sees that thread.
        self.is_divided.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Puts the NIC by which other hosts are reached into the inner set. With the lock held.
    pub(super) fn watch_nic(&self) {
        let mut event = epoll_event {
            events: libc::EPOLLIN as u32,
            u64: NIC,
        };
        if let (Ok(inner), Some(nic)) = (self.open_inner(), reach::watch()) {
            // It may be there already.
            let _ = sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, nic.fd, &raw mut event);
        }
    }

    /// The data of the inner set's registration in the program's set: an address of ours, which no
    /// program uses as its data.
    pub(super) fn magic(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// The data of the channel's registration in the program's set.
    pub(super) fn call_magic(&self) -> u64 {
        self.magic() + 1
    }

    /// Whether an event is one of these two.
    pub(super) fn is_report(&self, event: &epoll_event) -> bool {
        let data = event.u64;
        data == self.magic() || data == self.call_magic()
    }

    /// Wakes a thread of this process that sleeps on the set.
    pub(crate) fn kick(&self) {
        let asleep =
            self.sleepers.load(Ordering::Acquire) + self.plain_sleepers.load(Ordering::SeqCst);
        if asleep != 0 && !self.naps() {
            self.wake_any();
        }
    }

    /// Wakes a thread that sleeps in the kernel's set.
    pub(super) fn wake_any(&self) {
        if let Some(kick) = self.kick_fd() {
            let one = 1u64;
            let _ = sys::write(kick, (&raw const one).cast(), 8);
        }
    }

    /// Takes the kick.
    pub(super) fn hear_kick(&self) {
        let mut count = 0u64;
        if let Some(kick) = self.kick_fd() {
            let _ = sys::read(kick, (&raw mut count).cast(), 8);
        }
    }
}

/// Takes our own reports out of the program's events and hears what they have to say. Returns how many events are the program's.
pub(super) fn take_inner(set: &'static Set, told: &mut [epoll_event]) -> usize {
    if !set.is_divided.load(Ordering::Acquire) && !set.looks_in_turns() {
        // The inner set has members, and so something to report, only after its number is known here.
        return told.len();
    }
    let kept = set.with(|state| take_inner_with(set, state, told));
    kept.unwrap_or_else(|| {
        // A signal handler has interrupted a change of the set: the report is heard later.
        let n = told.len();
        let n = leave_out(set.call_magic(), told, n).unwrap_or(n);
        leave_out(set.magic(), told, n).unwrap_or(n)
    })
}

/// Takes a report out of the first `n` events; returns how many are left, if it was there.
fn leave_out(magic: u64, told: &mut [epoll_event], n: usize) -> Option<usize> {
    let at = told[..n].iter().position(|e| e.u64 == magic)?;
    told.copy_within(at + 1..n, at);
    Some(n - 1)
}

/// Takes the library's own reports, of any set, out of events that a number has brought which is
/// not tracked, or which was closed during the call, so that it may name another set by now. No
/// thread hears these reports here. Returns how many events are left.
pub(crate) fn take_foreign(told: &mut [epoll_event]) -> usize {
    let mut left = 0;
    for i in 0..told.len() {
        if !SETS.each().any(|set| set.is_report(&told[i])) {
            told[left] = told[i];
            left += 1;
        }
    }
    left
}

/// [`take_inner`] with the lock held.
pub(super) fn take_inner_with(
    set: &'static Set,
    state: &mut State,
    told: &mut [epoll_event],
) -> usize {
    let mut left = told.len();
    while let Some(others) = leave_out(set.call_magic(), told, left) {
        if set.channel.hear_sure() {
            sleepers::call_again(set, state);
        }
        left = others;
    }
    while let Some(others) = leave_out(set.magic(), told, left) {
        outside::look(set, state, true);
        hear_inner(set, state, false, None);
        left = others;
    }
    left
}

/// Hears the base sockets: notes what came by TCP, FINs and resets. The kick
/// is taken too, unless it is to be left for others. One item may be left out.
pub(super) fn hear_inner(
    set: &'static Set,
    state: &mut State,
    leave_kick: bool,
    except: Option<u32>,
) {
    // Calls that stay in the channel would make the set look ready from outside. No more than a few
    // are taken, since a peer may send them without end.
    if set.channel.hear() {
        let _ = (0..16).all(|_| set.channel.hear_sure());
        sleepers::call_again(set, state);
    }
    outside::look(set, state, false);
    let inner = set.inner_fd();
    if inner < 0 && !leave_kick && !must_leave_kick(set, state) {
        set.hear_kick();
    }
    let mut events = [epoll_event { events: 0, u64: 0 }; 64];
    loop {
        let n = sys::epoll_now(inner, events.as_mut_ptr(), events.len()).unwrap_or(0);
        for event in &events[..n] {
            let (kind, data) = (event.events, event.u64);
            if data == KICK {
                if leave_kick || must_leave_kick(set, state) {
                    continue;
                }
                set.exposed.store(false, Ordering::Relaxed);
                set.hear_kick();
                continue;
            }
            if data == NIC {
                let _ = reach::watch();
                continue;
            }
            let (index, generation) = (data as u32, (data >> 32) as u32);
            let Some(item) = state.items.get(index as usize) else {
                continue;
            };
            if !item.live || item.generation != generation || except == Some(index) {
                continue;
            }
            let Some(conn) = Conn::new(item.socket, item.socket.fd()) else {
                continue;
            };
            let news = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLPRI;
            let on_ring = conn.way_in() == Way::Ring && conn.way_out() == Way::Ring;
            state.enqueue(index, kind & news as u32 != 0 || !on_ring);
        }
        if n < events.len() {
            break;
        }
    }
}

/// Whether a kick is left for those whom it wakes. A thread in a plain wait is woken by nothing else, and a kick may be for the parent
/// process. A thread that sleeps in `poll`, or on a set around this one, looks at the kernel's set once more as it wakes: while this set
/// is ready, the kick shows it so.
fn must_leave_kick(set: &Set, state: &State) -> bool {
    set.plain_sleepers.load(Ordering::SeqCst) != 0
        || set.naps()
        || set.has_outsiders() && state.is_any_ready()
}

/// Hears what the inner set has to say of all but one item.
pub(super) fn hear_others(set: &'static Set, state: &mut State, item: u32) {
    hear_inner(set, state, true, Some(item));
    // The call that was taken out may have been for a thread that still sleeps.
    set.kick();
}

/// The set of ours in the program's set `fd`.
pub(crate) fn inner(fd: c_int) -> Option<c_int> {
    let inner = Set::of(fd)?.inner_fd();
    (inner >= 0).then_some(inner)
}
