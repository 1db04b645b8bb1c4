//! Waiting on one connection: spin, then sleep in a real call on the base socket and a wake
//! channel ([`kernel`]), having said so to the peer.

use std::sync::atomic::Ordering;

use shunt_shm::atomic::heavy;
use shunt_shm::publish;
use shunt_shm::slot::{self, Way};
use shunt_shm::token::Token;
use shunt_shm::wake::Address;

use super::leave::only_the_kernel_can_wake;
use super::spin::{self, Peer, Spin};
use super::swallow::{any_bells, swallow};
use super::{Conn, owed};
use crate::hold::Taken;
use crate::life;
use crate::sys::{self, Errno};
use crate::thread::{give, is_alone, signals::Seen};
use crate::wake::{self, Place};

mod kernel;

pub(crate) use kernel::{TURN, must_look};
use kernel::{Woken, is_interrupted, sleep_in_kernel};
pub(super) use kernel::{timeout, wait_for_kernel};

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Something to read.
    Data,
    /// Room to write.
    Room,
}

impl Want {
    /// A sleeper of each kind.
    pub(crate) const ALL_UNITS: u32 = 1 | 1 << 16;

    /// One sleeper of this kind in `Receiving::sleepers`.
    fn unit(self) -> u32 {
        match self {
            Self::Data => 1,
            Self::Room => 1 << 16,
        }
    }

    /// How many of this kind there are among these.
    fn count(self, sleepers: u32) -> u32 {
        match self {
            Self::Data => sleepers & 0xffff,
            Self::Room => sleepers >> 16,
        }
    }

    fn bit(self) -> u32 {
        match self {
            Self::Data => slot::WAIT_RX,
            Self::Room => slot::WAIT_TX,
        }
    }
}

fn token<'a>(conn: &Conn<'a>, want: Want) -> &'a Token {
    match want {
        Want::Data => &conn.pair.own.receiving.token,
        Want::Room => &conn.pair.own.sending.token,
    }
}

fn is_ready(conn: &Conn, want: Want) -> bool {
    match want {
        // On TCP the kernel wakes us; look at the ring once the peer has switched.
        Want::Data if conn.way_in() != Way::Ring => false,
        Want::Data => conn.consumer().is_ready() || owed::is_withdrawn(conn),
        Want::Room => {
            conn.has_room()
                || conn.way_out() != Way::Ring
                || conn.is_shut()
                || owed::is_recalled(conn)
        }
    }
}

/// A wait's deadline in nanoseconds of the monotonic clock; `Some(None)`: none.
pub(crate) type Deadline = Option<Option<u64>>;

/// Waits until `want` may have come. The caller holds no token, and looks again.
///
/// # Errors
/// `EINTR` where the kernel's call would give it; `EAGAIN` at the socket's own
/// timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
pub(crate) fn wait(
    conn: &Conn,
    want: Want,
    deadline: &mut Deadline,
    seen: Seen,
) -> Result<(), Errno> {
    life::see_to_wishes();
    spin::share_crowd(conn.pair.link);
    let mut spin = Spin::for_peer(where_peer(conn, want));
    while !is_ready(conn, want) {
        if seen.interrupting_since() {
            return Err(libc::EINTR);
        }
        if conn.way_in() == Way::Tcp && want == Want::Data || !spin.turn() {
            let result = sleep(conn, want, deadline, seen);
            spin.woke();
            return result;
        }
    }
    spin.paid();
    if want == Want::Data && conn.pair.own.face.wait.load(Ordering::Relaxed) & slot::FENCED != 0 {
        stay_awake(conn);
    }
    Ok(())
}

/// Where the peer is that this thread is about to wait for; says where this thread is. Of
/// several threads, or of who waits for other things too, that would say little.
fn where_peer(conn: &Conn, want: Want) -> Peer {
    if want == Want::Room {
        return Peer::Somewhere;
    }
    let own = &conn.pair.own.face.core;
    let here = sys::core();
    let is_sole = is_alone() && conn.socket.items.is_empty();
    let core = if is_sole { here } else { 0 };
    if own.load(Ordering::Relaxed) != core {
        own.store(core, Ordering::Relaxed);
    }
    spin::compare(here, conn.pair.peer.face.core.load(Ordering::Relaxed))
}

/// A wait has ended without sleep on a connection on which the peer passes a barrier
/// with each publication. It need not any more if that goes on.
#[cold]
fn stay_awake(conn: &Conn) {
    /// In a row.
    const WAITS: u32 = 16;
    if conn.socket.awake.fetch_add(1, Ordering::Relaxed) >= WAITS || has_streamed(conn) {
        conn.unfence();
    }
}

/// Whether so much has come since the last sleep that the peer's barriers with each
/// message cost more than a heavy one before the next sleep will.
fn has_streamed(conn: &Conn) -> bool {
    const MESSAGES: u64 = 1000;
    let calls = conn.socket.rx.user_calls.load(Ordering::Relaxed);
    calls.wrapping_sub(conn.socket.slept_at.load(Ordering::Relaxed)) >= MESSAGES
}

#[cold]
fn sleep(conn: &Conn, want: Want, deadline: &mut Deadline, seen: Seen) -> Result<(), Errno> {
    if want == Want::Room && only_the_kernel_can_wake(conn) {
        return Ok(());
    }
    // Closed under a call that was awake: nothing is left to sleep on.
    let Some(base) = conn.base() else {
        return Err(libc::EBADF);
    };
    let conn = &Conn { fd: base, ..*conn };
    let until = *deadline.get_or_insert_with(|| timeout(conn, want).map(|t| sys::now() + t));
    let place = wake::enter();
    let held = Taken::now();
    // In a child that a signal handler has forked meanwhile it is the parent who sleeps.
    let get_up = |heard| {
        if !held.lasts() {
            return;
        }
        awake(conn, want, heard);
        if let Some(place) = place {
            place.leave();
        }
        conn.socket.unhold();
    };
    conn.socket.hold();
    let come = asleep(conn, want, place);
    if come {
        get_up(false);
        Ok(())
    } else {
        let counts = if want == Want::Data {
            &conn.socket.rx
        } else {
            &conn.socket.tx
        };
        counts.sleeps.fetch_add(1, Ordering::Relaxed);
        let result = if is_interrupted(until, seen) {
            Err(libc::EINTR)
        } else {
            sleep_in_kernel(conn, want, place, until, seen, &|| get_up(false))
        };
        get_up(result == Ok(Woken::Otherwise));
        if result != Ok(Woken::Called) {
            // The kernel may have news.
            conn.socket.looked_at.store(0, Ordering::Relaxed);
        }
        result.map(|_| ())
    }
}

/// Whether a thread sleeps until there is room. With the sending token.
pub(super) fn any_waits_for_room(conn: &Conn) -> bool {
    conn.pair.own.receiving.sleepers.load(Ordering::Acquire) >= Want::Room.unit()
}

/// Says in our arena that a thread sleeps on the connection, and in which place, until
/// [`awake`]. `true`: what it waits for has just come, so it should not.
pub(crate) fn asleep(conn: &Conn, want: Want, place: Option<Place>) -> bool {
    let own = conn.pair.own;
    if !conn.take(token(conn, want)) {
        // A signal handler that interrupted the token's holder: not registered,
        // and `awake` will see the same.
        return true;
    }
    let others = want.count(
        own.receiving
            .sleepers
            .fetch_add(want.unit(), Ordering::AcqRel),
    );
    let at = match want {
        Want::Data => &own.face.data,
        Want::Room => &own.face.room,
    };
    match place {
        // A byte on the connection wakes them all.
        _ if others > 0 => at.say(Address::MANY, 0),
        Some(place) => place.tell(at),
        None => at.say(Address::NOWHERE, 0),
    }
    if want == Want::Room {
        conn.ask_at();
    }
    own.face.naps.fetch_add(1, Ordering::AcqRel);
    match want {
        Want::Data => {
            own.face.say_asleep(!has_streamed(conn));
            let socket = conn.socket;
            let calls = socket.rx.user_calls.load(Ordering::Relaxed);
            socket.slept_at.store(calls, Ordering::Relaxed);
            socket.awake.store(0, Ordering::Relaxed);
        }
        Want::Room => {
            publish::set_bits(&own.face.wait, slot::WAIT_TX);
            // Pairs with the light barrier before a waker's look at the wait word.
            heavy();
        }
    }
    let come = is_ready(conn, want)
        || owed::is_asked(conn)
        || (want == Want::Data
            && conn.way_in() == Way::Tcp
            && super::recv::settle(conn)
            && conn.consumer().is_ready());
    if want == Want::Room && !come {
        conn.tell_full();
    }
    give(token(conn, want));
    come
}

/// The thread sleeps no more; the last one swallows the doorbells, if there are any:
/// the kernel has said so (`heard`), or the peer has counted them.
pub(crate) fn awake(conn: &Conn, want: Want, heard: bool) {
    let own = conn.pair.own;
    if conn.take(token(conn, want)) {
        let left = own
            .receiving
            .sleepers
            .fetch_sub(want.unit(), Ordering::AcqRel)
            - want.unit();
        if want.count(left) == 0 {
            publish::clear_bits(&own.face.wait, want.bit());
        }
        give(token(conn, want));
    }
    if !heard && !any_bells(conn) {
        return;
    }
    // A byte in the queue wakes every sleeper; whoever is last takes it, so that
    // none misses it.
    for _ in 0..50 {
        if own.receiving.sleepers.load(Ordering::Acquire) == 0 {
            break;
        }
        sys::sched_yield();
    }
    swallow(conn);
}
