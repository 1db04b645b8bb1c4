//! Trials: now and then one of many short connections to a port is brought to its rings at once, to see whether the next ones
//! can use its socket again ([`crate::recycle`]).
//!
//! ```text
//! connector:  enough were short  │ claims, and waits until the board says so │ connect │ waits until both are attached
//! acceptor:                                                       accept │ sees that at the board │ claims │ likewise
//! ```
//!
//! Each wait is bounded. As long as trials come to nothing, each is followed by twice as many ordinary connections as the last one, which
//! cost nothing more. Each connection that uses a socket again halves their number, and soon each `connect` that finds no socket to use
//! again is a trial. If connections are kept and time and again no thread waits there, there are no trials, and nobody waits for one.
//! With many under way, the youngest mostly is not known to have been accepted, so nothing may be used: a trial waits until it is.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use shunt_abi::message::Role;

use crate::config;
use crate::control;
use crate::socket::{Socket, Stage, Tries};

/// How many short connections come before the first trial.
const FIRST: u32 = 32;

/// This many connects in a row that found nobody waiting at a kept connection show that the acceptor is busy.
const MANY: u32 = 4;

/// The longest that a connector waits in a trial, in nanoseconds: before the connection is made, ...
const SAYING: u64 = 1_000_000;
/// ... and after that.
const CONNECTING: u64 = 4_000_000;
/// The longest that an acceptor waits: others may wait for it.
const ACCEPTING: u64 = 1_000_000;

/// What this process has seen of connections to one port.
struct Port {
    /// Which port it is.
    number: AtomicU32,
    /// Trials; the occasions are short connections.
    tries: Tries,
    /// The last trial has come to something.
    pays: AtomicBool,
    /// A connection is kept that could be used, were the listener's queue known to hold none that is older.
    wants: AtomicBool,
    /// How many connects in a row have found that a connection is kept, but no thread waits there.
    missed: AtomicU32,
}

/// A port whose place another port has takes the place over, and begins anew.
static PORTS: [Port; 64] = [const { Port::new() }; 64];

impl Port {
    /// All zeros, which take no room in the library's data.
    const fn new() -> Self {
        Self {
            number: AtomicU32::new(0),
            tries: Tries::new(),
            pays: AtomicBool::new(false),
            wants: AtomicBool::new(false),
            missed: AtomicU32::new(0),
        }
    }

    fn of(number: u16) -> &'static Self {
        let (port, o) = (&PORTS[usize::from(number) % PORTS.len()], Ordering::Relaxed);
        if port.number.load(o) != number.into() {
            port.number.store(number.into(), o);
            port.tries.wait(FIRST);
            port.pays.store(false, o);
            port.wants.store(false, o);
            port.missed.store(0, o);
        }
        port
    }

    /// Whether the next connection is a trial. One that has been accepted shows that all older ones have been.
    fn is_due(&self) -> bool {
        self.tries.is_due() && !self.is_missed()
            || self.wants.load(Ordering::Relaxed)
                && self.pays.load(Ordering::Relaxed)
                && self.tries.pays()
    }

    fn takes_turn(&self) -> bool {
        let is_due = self.is_due();
        if is_due {
            self.tries.begin();
            self.tries.spend();
            self.wants.store(false, Ordering::Relaxed);
        }
        is_due
    }

    fn is_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed) >= MANY
    }

    fn note_used(&self) {
        self.missed.store(0, Ordering::Relaxed);
        self.wants.store(false, Ordering::Relaxed);
        self.pays.store(true, Ordering::Relaxed);
        self.tries.note_paid();
    }

    fn note_missed(&self) {
        let missed = self.missed.load(Ordering::Relaxed).saturating_add(1);
        self.missed.store(missed, Ordering::Relaxed);
    }

    /// Whether a `connect` should wait until a thread waits at a kept connection. Now and then it should even if the waits before
    /// came to nothing.
    fn may_wait(&self) -> bool {
        !self.is_missed() || self.missed.load(Ordering::Relaxed).is_power_of_two()
    }

    fn note_vain(&self) {
        self.pays.store(false, Ordering::Relaxed);
        self.tries.note_vain();
    }
}

/// Whether the next connection to that port is brought to its rings at once.
pub(crate) fn is_due(port: u16) -> bool {
    config::upgrade() == config::Upgrade::Sync || Port::of(port).is_due()
}

/// A socket is about to connect to `port`: is that a trial?
pub(crate) fn begin(socket: &Socket, port: u16) {
    let tries = config::upgrade() != config::Upgrade::Sync && Port::of(port).takes_turn();
    socket.on_trial.store(tries, Ordering::Relaxed);
}

/// A connection was accepted: notes it as a trial if its connector does.
pub(crate) fn follow(socket: &Socket, listener: &Socket) {
    let tries = config::recycles() && control::is_tried(listener.port());
    socket.on_trial.store(tries, Ordering::Relaxed);
}

/// A connector has claimed a connection that it is about to make. If that is a trial, this waits until the acceptor can see so.
pub(super) fn await_said(socket: &Socket) {
    if socket.tries() && socket.stage() == Stage::Claimed {
        control::await_trial(socket.port(), SAYING);
    }
}

/// How long an end waits for the other one in a trial, in nanoseconds.
pub(super) fn longest(socket: &Socket) -> u64 {
    match socket.role() {
        Role::Connector => CONNECTING,
        Role::Acceptor => ACCEPTING,
    }
}

/// A connection ends, and its socket is not used again.
pub(super) fn note_end(socket: &Socket) {
    if !config::recycles() || socket.role() != Role::Connector || socket.port() == 0 {
        return;
    }
    if socket.tries() {
        Port::of(socket.port()).note_vain();
    } else if matches!(
        socket.stage(),
        Stage::Candidate | Stage::Claimed | Stage::Paired
    ) {
        Port::of(socket.port()).tries.note_passed();
    }
}

/// A connection is put aside.
pub(crate) fn note_kept(socket: &Socket) {
    socket.on_trial.store(false, Ordering::Relaxed);
    if socket.role() == Role::Connector {
        Port::of(socket.port()).pays.store(true, Ordering::Relaxed);
    }
}

/// A `connect` to that port could use a socket again, but the listener's queue may hold an older connection of this process.
pub(crate) fn note_wanted(port: u16) {
    Port::of(port).wants.store(true, Ordering::Relaxed);
}

/// A `connect` to that port uses a socket again.
pub(crate) fn note_used(port: u16) {
    Port::of(port).note_used();
}

/// A `connect` to this port could use a kept socket, but no thread waits there.
pub(crate) fn note_missed(port: u16) {
    Port::of(port).note_missed();
}

/// Whether a `connect` to this port should wait until a thread waits at a kept connection.
pub(crate) fn may_wait(port: u16) -> bool {
    config::upgrade() == config::Upgrade::Sync || Port::of(port).may_wait()
}

/// The trials of connections to that port.
pub(crate) fn of(port: u16) -> &'static Tries {
    &Port::of(port).tries
}

/// A connection that was put aside is given up: it was not used again in all the time that it was kept.
pub(crate) fn note_unused(socket: &Socket) {
    if socket.role() == Role::Connector {
        let port = Port::of(socket.port());
        port.missed.store(0, Ordering::Relaxed);
        port.tries.note_unused();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many short connections come before the next trial.
    fn pause(port: &Port) -> u32 {
        let mut pause = 0;
        while !port.is_due() {
            port.tries.note_passed();
            pause += 1;
        }
        pause
    }

    #[test]
    fn what_is_kept_and_cannot_be_used_for_an_older_connection_is_a_reason_for_a_trial_once() {
        let port = Port::of(7);
        assert_eq!(pause(port), FIRST);
        assert!(port.takes_turn() && !port.is_due());
        note_wanted(7);
        assert!(!port.is_due(), "the last one has not come to anything");
        port.note_used();
        note_wanted(7);
        assert!(port.takes_turn() && !port.takes_turn());
        note_wanted(7);
        port.note_vain();
        assert!(!port.is_due());
    }

    #[test]
    fn nothing_is_tried_and_hardly_anybody_waits_where_the_acceptor_is_busy() {
        let port = Port::of(8);
        port.tries.wait(0);
        let misses = |count: u32| {
            (0..count).fold(0, |waits, _| {
                port.note_missed();
                waits + u32::from(port.may_wait())
            })
        };
        assert!(misses(MANY - 1) == MANY - 1 && port.is_due());
        assert_eq!(misses(1000), 8);
        assert!(!port.is_due());
        port.note_used();
        assert!(port.is_due() && port.may_wait());
    }

    #[test]
    fn a_port_that_comes_to_the_place_of_another_one_begins_anew() {
        Port::of(9).tries.wait(0);
        assert_eq!(pause(Port::of(9 + 64)), FIRST);
        assert_eq!(pause(Port::of(9)), FIRST);
    }
}
