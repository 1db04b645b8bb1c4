//! Waiting on one connection: spin, then sleep in a real call on the base socket and a wake
//! channel ([`in_kernel`]), having said so to the peer.
//!
//! Whatever ends the sleep, also `pthread_cancel`, gives back what the sleeper holds: [`sleep`]'s `get_up` the wait word and its
//! place at the wake channel, [`stay`] the call's count and its copy of the descriptor.

use std::sync::atomic::{AtomicU32, Ordering};

use shunt_abi::Reason;
use shunt_shm::atomic::heavy;
use shunt_shm::publish;
use shunt_shm::slot::{self, Slot, Way};
use shunt_shm::wake::Address;

use super::Conn;
use super::downgrade::downgrade;
use super::leave::{leave_full, leave_if_ending};
use super::meet::meet_or_part;
use super::owed;
use super::spin::{self, Peer, Spin};
use super::want::{Deadline, Want, is_interrupted, is_ready, lost, must_be_called, token};
use super::wish::see_to_wishes;
use crate::config::hesitate;
use crate::hold::Taken;
use crate::sys::{self, Errno};
use crate::thread::{give, signals::Seen};
use crate::wake::{self, Place};

mod in_kernel;
mod stay;

pub(crate) use in_kernel::{SELDOM, TURN, has_time_limit, turn};
use in_kernel::{Woken, sleep_in_kernel, until};
pub(super) use in_kernel::{timeout, wait_for_kernel};
pub(crate) use stay::{Stay, interrupted};

/// How a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// What is waited for may have come, during a wait without sleep.
    Enough,
    /// It may have come during a sleep, before any handler that has run since the wait began.
    Woken,
    /// A signal handler has run, and the kernel's call would begin anew, with what other threads have
    /// set since (`O_NONBLOCK`).
    Anew,
}

/// Waits until `want` may have come. The caller holds no token, and looks again: where `stay`
/// says that the connection is by then. `seen`: the handlers that had run when the call began; `looked`: those that had run
/// when the caller found that it has to wait. A later one ends the wait before it sleeps.
///
/// # Errors
/// `EINTR` where the kernel's call would give it; `EAGAIN` at the socket's own
/// timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
pub(crate) fn wait(
    conn: &Conn,
    want: Want,
    deadline: &mut Deadline,
    stay: &Stay,
    (seen, looked): (Seen, Seen),
) -> Result<Waited, Errno> {
    let way = conn.way_in();
    see_to_wishes();
    // The direction has gone back to TCP: the receive continues there.
    if want == Want::Data && conn.way_in() != way {
        return Ok(Waited::Enough);
    }
    spin::share_crowd(conn.pair.link);
    let mut spin = Spin::for_peer(locate_peer(conn, want));
    while !is_ready(conn, want) {
        if seen.any_since()
            && let Some(end) = after_handler(conn, want, deadline, seen, looked)
        {
            return end;
        }
        if conn.way_in() == Way::Tcp && want == Want::Data || !spin.turn() {
            let result = sleep(conn, want, deadline, stay, (seen, looked));
            spin.woke();
            return result;
        }
    }
    spin.paid();
    if want == Want::Data && conn.pair.own.face.wait.load(Ordering::Relaxed) & slot::FENCED != 0 {
        stay_awake(conn);
    }
    Ok(Waited::Enough)
}

/// How a wait that spins ends after a handler; `None`: it goes on. A handler that had run before the wait (`looked`) has made the call
/// begin anew already.
#[cold]
fn after_handler(
    conn: &Conn,
    want: Want,
    deadline: &mut Deadline,
    seen: Seen,
    looked: Seen,
) -> Option<Result<Waited, Errno>> {
    if seen.interrupting_since() {
        return Some(Err(libc::EINTR));
    }
    if !looked.any_since() {
        return None;
    }
    let until = until(conn, want, deadline);
    Some(match is_interrupted(until, seen) {
        true => Err(libc::EINTR),
        false => Ok(Waited::Anew),
    })
}

/// Where the peer is that this thread is about to wait for. Also says where this thread is.
fn locate_peer(conn: &Conn, want: Want) -> Peer {
    if want == Want::Room {
        return Peer::Somewhere;
    }
    let here = conn.say_core();
    spin::compare(here, conn.pair.peer.face.core.load(Ordering::Relaxed))
}

/// Notes that a wait has ended without sleep on a connection whose peer passes a barrier with each
/// publication. After several such waits in a row the peer need not any more.
#[cold]
fn stay_awake(conn: &Conn) {
    /// This many waits in a row without sleep.
    const WAITS: u32 = 16;
    if conn.socket.hints.awake.fetch_add(1, Ordering::Relaxed) >= WAITS || has_streamed(conn) {
        conn.unfence();
    }
}

/// How many heavy barriers this process has issued before a sleep.
static HEAVY: AtomicU32 = AtomicU32::new(0);

/// A connection is about to be honoured that nobody watches. A process that has slept on many will
/// sleep on this one: its peer passes a barrier with each publication from the first one on, and no
/// heavy one is needed, until [`stay_awake`].
pub(crate) fn foresee_sleep(own: &Slot) {
    const MANY: u32 = 64;
    if HEAVY.load(Ordering::Relaxed) >= MANY {
        // Read by the peer after the state that is published next.
        publish::set_bits(&own.face.wait, slot::FENCED);
    }
}

/// Whether more messages have come since the last sleep than pay: the barriers that the peer passes
/// with each of them cost more than a heavy barrier before the next sleep would.
fn has_streamed(conn: &Conn) -> bool {
    const MESSAGES: u64 = 1000;
    let calls = conn.socket.rx.user_calls.load(Ordering::Relaxed);
    calls.wrapping_sub(conn.socket.hints.slept_at.load(Ordering::Relaxed)) >= MESSAGES
}

#[cold]
fn sleep(
    conn: &Conn,
    want: Want,
    deadline: &mut Deadline,
    stay: &Stay,
    (seen, looked): (Seen, Seen),
) -> Result<Waited, Errno> {
    meet_or_part();
    // Closed under a call that was awake: nothing is left to sleep on.
    if !stay.enter(conn) {
        return Err(lost(seen));
    }
    let base = || conn.base().ok_or(libc::EBADF);
    let here = &Conn {
        fd: base()?,
        ..*conn
    };
    if want == Want::Room && leave_if_ending(here) {
        return Ok(Waited::Enough);
    }
    let goes_on = || here.is_mirrored() && owed::has_room_again(here);
    if want == Want::Room && (goes_on() || leave_full(here)) {
        return Ok(Waited::Enough);
    }
    let until = until(here, want, deadline);
    let place = wake::enter();
    if place.is_none() && must_be_called(here, want) && !here.is_mirrored() {
        downgrade(here, Reason::Blocked);
        return Ok(Waited::Enough);
    }
    let held = Taken::now();
    // In a child that a signal handler has forked meanwhile nothing is to be undone: the parent sleeps.
    let get_up = || {
        if !held.lasts() {
            return;
        }
        awake(here, want, place);
        if let Some(place) = place {
            place.leave();
        }
    };
    if asleep(here, want, place) {
        get_up();
        return Ok(Waited::Enough);
    }
    // Once more: a `close` from here on sees the call, and wakes it.
    let Ok(fd) = base() else {
        get_up();
        return Err(libc::EBADF);
    };
    let conn = &Conn { fd, ..*conn };
    count_sleep(conn, want);
    let result = if is_interrupted(until, seen) {
        Err(libc::EINTR)
    } else {
        sleep_in_kernel(conn, want, place, until, stay, (seen, looked), &get_up)
    };
    if result != Ok(Woken::Called) {
        // The kernel may have news.
        conn.socket.hints.looked_at.store(0, Ordering::Relaxed);
    }
    get_up();
    after_sleep(conn, result?, stay, seen)
}

/// How the wait ends after a sleep that was ended by `woken`.
fn after_sleep(conn: &Conn, woken: Woken, stay: &Stay, seen: Seen) -> Result<Waited, Errno> {
    // After a signal handler the kernel would look the program's number up.
    if !stay.enter(conn) || woken == Woken::Restarted && stay.has_lost_number() {
        return Err(lost(seen));
    }
    Ok(match woken {
        Woken::Restarted => Waited::Anew,
        Woken::Called | Woken::Otherwise => Waited::Woken,
    })
}

fn count_sleep(conn: &Conn, want: Want) {
    let counts = match want {
        Want::Data => &conn.socket.rx,
        Want::Room => &conn.socket.tx,
    };
    counts.sleeps.fetch_add(1, Ordering::Relaxed);
}

/// Whether a call whose direction is held by a stopped process waits until that one continues: it does as
/// long as it would wait for data or room.
#[cold]
pub(super) fn is_patient(
    conn: &Conn,
    want: Want,
    waits: bool,
    deadline: &mut Deadline,
    seen: Seen,
) -> bool {
    let until = until(conn, want, deadline);
    waits && !is_interrupted(until, seen) && until.is_none_or(|until| sys::now() < until)
}

/// The error of a call whose patience has ended.
#[cold]
pub(super) fn out_of_patience(seen: Seen) -> Errno {
    if seen.any_since() {
        libc::EINTR
    } else {
        libc::EAGAIN
    }
}

/// Says in our arena that a thread sleeps on the connection, and in which place, until [`awake`].
/// `true`: what it waits for has just come, so that it should not sleep.
pub(crate) fn asleep(conn: &Conn, want: Want, place: Option<Place>) -> bool {
    let own = conn.pair.own;
    hesitate();
    if !conn.take(token(conn, want)) {
        // A signal handler that interrupted the token's holder: not registered,
        // and `awake` will see the same.
        return true;
    }
    let sleepers = &own.receiving.sleepers;
    let others = want.count(sleepers.fetch_add(want.unit(), Ordering::AcqRel)) > 0;
    // If several threads sleep, the last one is called.
    if let Some(place) = place {
        place.tell(called_at(conn, want));
    }
    want.places(conn.socket).add(place);
    if want == Want::Room {
        conn.ask_at();
    }
    own.face.epoch.fetch_add(1, Ordering::AcqRel);
    match want {
        Want::Data => {
            let soon = !has_streamed(conn);
            if !soon {
                conn.socket.origin.note_fenced(false);
            }
            if own.face.say_asleep(soon) {
                HEAVY.fetch_add(1, Ordering::Relaxed);
            }
            let socket = conn.socket;
            let calls = socket.rx.user_calls.load(Ordering::Relaxed);
            socket.hints.slept_at.store(calls, Ordering::Relaxed);
            socket.hints.awake.store(0, Ordering::Relaxed);
        }
        Want::Room => {
            publish::set_bits(&own.face.wait, slot::WAIT_TX);
            // Pairs with the light barrier before a waker's look at the wait word.
            heavy();
        }
    }
    let come = has_come(conn, want);
    let told = want == Want::Data || come || conn.tell_full();
    give(token(conn, want));
    if !told {
        conn.reach();
        return true;
    }
    // This process cannot say at which address a thread of another process is called.
    let apart = others && own.options.forked.load(Ordering::Relaxed) == slot::SHARED;
    // Without a place the thread cannot be called; the connection may have come back to its rings since it chose that.
    let deaf = apart || place.is_none();
    if deaf && !come && must_be_called(conn, want) {
        downgrade(conn, Reason::Blocked);
        return true;
    }
    come
}

/// Before the connection comes back to its rings: says anew where its sleepers are called, as a relative may have
/// written other addresses since. With both tokens; no other process has the connection. `false`: one of the sleepers
/// cannot be called.
pub(crate) fn say_again(conn: &Conn) -> bool {
    let sleepers = &conn.pair.own.receiving.sleepers;
    let mut asleep = 0;
    for want in [Want::Data, Want::Room] {
        let places = want.places(conn.socket);
        let Some(count) = places.count() else {
            return false;
        };
        asleep += count * want.unit();
        if let Some(place) = places.any() {
            place.tell(called_at(conn, want));
        }
    }
    // Relatives may have died asleep.
    sleepers.store(asleep, Ordering::Release);
    conn.pair.own.face.epoch.fetch_add(1, Ordering::AcqRel);
    true
}

/// Whether what the thread waits for has come, after it has said that it sleeps. With the token.
fn has_come(conn: &Conn, want: Want) -> bool {
    if want == Want::Data && conn.way_in() == Way::Tcp {
        // The peer may have moved to its ring since the look before, and even have said there that it has closed.
        super::recv::settle(conn);
    }
    is_ready(conn, want) || conn.sender().is_asked() && !owed::cannot_send(conn)
}

/// The address at which a thread that waits for this is called.
fn called_at<'a>(conn: &Conn<'a>, want: Want) -> &'a Address {
    match want {
        Want::Data => &conn.pair.own.face.data,
        Want::Room => &conn.pair.own.face.room,
    }
}

/// The thread sleeps no more. If peers were to call this thread, they call another sleeper of the
/// connection from now on.
pub(crate) fn awake(conn: &Conn, want: Want, place: Option<Place>) {
    let own = conn.pair.own;
    if !conn.take(token(conn, want)) {
        return;
    }
    let sleepers = &own.receiving.sleepers;
    let left = sleepers.fetch_sub(want.unit(), Ordering::AcqRel) - want.unit();
    if want.count(left) == 0 {
        publish::clear_bits(&own.face.wait, want.bit());
    }
    let mut next = None;
    let places = want.places(conn.socket);
    places.remove(place);
    if let Some(place) = place {
        let at = called_at(conn, want);
        if want.count(left) > 0 && place.is_told(at) {
            places.each_that_hears(|place| next = Some(place));
        }
        if let Some(next) = next {
            next.tell(at);
            own.face.epoch.fetch_add(1, Ordering::AcqRel);
            // For that sleeper this is as if it just went to sleep: a barrier, then a look (`has_come`).
            heavy();
        }
    }
    let next = next.filter(|_| has_come(conn, want));
    give(token(conn, want));
    if let Some(next) = next {
        next.wake();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::both_ends::BothEnds;

    /// Two threads would sleep at these places until the connecting end has something to receive.
    fn two_sleepers(conn: &Conn) -> [Place; 2] {
        let places = [(); 2].map(|()| wake::enter().unwrap());
        for place in places {
            assert!(!asleep(conn, Want::Data, Some(place)));
        }
        places
    }

    fn is_called(place: Place) -> bool {
        sys::poll_now(&mut [place.watch()]) == Ok(1)
    }

    #[test]
    fn when_the_thread_that_is_called_wakes_another_sleeper_is_named_in_its_place() {
        let ends = BothEnds::attached();
        ends.send(b"x");
        ends.receive::<1>();
        let conn = &ends.conns()[1];
        let face = &conn.pair.own.face;
        let [first, last] = two_sleepers(conn);
        assert!(last.is_told(&face.data));
        let epoch = face.epoch.load(Ordering::Relaxed);
        awake(conn, Want::Data, Some(last));
        assert!(first.is_told(&face.data) && !is_called(first));
        assert_ne!(face.epoch.load(Ordering::Relaxed), epoch);
        let waits = || face.wait.load(Ordering::Relaxed) & slot::WAIT_RX != 0;
        assert!(waits());
        awake(conn, Want::Data, Some(first));
        assert!(!waits());
        last.leave();
        first.leave();
    }

    #[test]
    fn a_thread_that_leaves_something_unread_wakes_another_sleeper() {
        let ends = BothEnds::attached();
        ends.send(b"x");
        ends.receive::<1>();
        let conn = &ends.conns()[1];
        let [first, last] = two_sleepers(conn);
        ends.send(b"y");
        assert!(is_called(last) && !is_called(first));
        awake(conn, Want::Data, Some(last));
        assert!(is_called(first));
        awake(conn, Want::Data, Some(first));
        for place in [last, first] {
            place.hear(false);
            place.leave();
        }
    }

    #[test]
    fn nobody_sleeps_on_what_has_come() {
        let ends = BothEnds::attached();
        ends.send(b"xy");
        ends.receive::<1>();
        let (conn, place) = (&ends.conns()[1], wake::enter());
        assert!(asleep(conn, Want::Data, place));
        awake(conn, Want::Data, place);
        if let Some(place) = place {
            place.leave();
        }
    }
}
