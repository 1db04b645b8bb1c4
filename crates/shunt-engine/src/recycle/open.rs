//! Connections at which the next one may be offered although no thread waits: those of a listener at which one thread of this process
//! alone accepts. Nobody else could accept what is offered there, so it waits for that thread as it would in the kernel's queue.
//!
//! ```text
//!   kept ──> open ── a connect offers ──> offered ── a call that accepts, or looks whether it could ──> taken
//! ```
//!
//! * **Who accepts** is known of a listener whose descriptor this process has made, and has neither copied, sent nor given to a child
//!   ([`crate::socket::made`]), and where only one thread has waited so that it can be called ([`crate::socket::Accepts`]).
//!   Whoever changes that [says so](shut_shared) before it can matter.
//! * **How many** may wait: one in eight of what the kernel's queue may hold.
//! * **In which order** they are accepted: as they were offered ([`take_all`]).
//! * **The kernel's queue** is asked before the last look for offers, and accepted from after it. So what was offered before
//!   another one was connected by the kernel comes before that one ([`super::accept`]).

use std::sync::atomic::Ordering;

use super::lock::{self, Locked};
use super::store::{self, Kept, numbered};
use crate::socket::{SETS_TIMEOUTS, Socket, Stage};
use crate::stream::{self, Conn};
use crate::thread;

/// Whether a listener has no settings that matter here: its `accept` waits without a timeout, and the sockets that it
/// accepts are as new.
pub(super) fn is_plain(listener: &Socket) -> bool {
    let settings = &listener.settings;
    !settings.is_odd.load(Ordering::Relaxed)
        && settings.timeouts.load(Ordering::SeqCst) & SETS_TIMEOUTS == 0
}

/// Whether one thread of this process alone accepts at a listener.
fn is_one_threads(listener: &Socket) -> bool {
    listener.stage() == Stage::Listener
        && listener.accepts.is_one()
        && listener.made.flags().is_some()
        && is_plain(listener)
}

/// This thread waits for what comes to a listener, and can be called. `true`: no other does. Then what the listener has accepted, and
/// is kept, is open from here on.
pub(super) fn open_all(locked: &Locked, listener: &Socket) -> bool {
    listener.accepts.note_wait(thread::here());
    let is_alone = is_one_threads(listener);
    if is_alone {
        let of_it = locked.each().filter(|kept| kept.is_of(listener));
        of_it.for_each(|kept| open(locked, kept, listener));
    } else {
        shut(locked, |kept| kept.is_of(listener));
    }
    is_alone
}

/// A connection is kept, which its process has just closed.
pub(super) fn open_if_alone(locked: &Locked, kept: &Kept) {
    let accepted_by = kept.socket().and_then(|socket| socket.origin.listener());
    if let Some(listener) = accepted_by
        && listener.accepts.is_by(thread::here())
        && is_one_threads(listener)
    {
        open(locked, kept, listener);
    }
}

fn open(locked: &Locked, kept: &Kept, listener: &Socket) {
    let is_open = |kept: &&Kept| kept.is_open() && kept.is_of(listener);
    let has_room = || locked.each().filter(is_open).count() < listener.accepts.room();
    if kept.is_free()
        && let Some(conn) = kept.conn()
        && stream::turns(conn.pair).may_be_offered()
        && has_room()
    {
        kept.open(locked);
        // There is none yet: nobody offers before this.
        let _ = stream::turns(conn.pair).wait();
    }
}

/// Nothing is offered any more where `which` is true; what was, is taken.
fn shut(locked: &Locked, which: impl Fn(&Kept) -> bool) {
    let open = locked.each().filter(|kept| kept.is_open() && which(kept));
    open.for_each(|kept| {
        kept.leave(locked);
    });
}

/// Something has changed by which others may accept at a listener, or what it accepts may be different.
#[inline(always)]
pub(crate) fn shut_shared() {
    if store::is_any_open() {
        shut_those();
    }
}

#[cold]
fn shut_those() {
    if let Some(locked) = lock::lock() {
        let listener = |kept: &Kept| kept.socket().and_then(|socket| socket.origin.listener());
        shut(&locked, |kept| !listener(kept).is_some_and(is_one_threads));
    }
}

/// The thread that alone waits at these, by numbers, a bit each, cannot be called in the sleep that follows.
pub(super) fn shut_all(locked: &Locked, numbers: u64) {
    shut(locked, |kept| numbers >> kept.number() & 1 != 0);
}

/// By numbers, a bit each, where something may be offered to this listener.
pub(super) fn of(locked: &Locked, listener: &Socket) -> u64 {
    let open = locked
        .each()
        .filter(|kept| kept.is_open() && kept.is_of(listener));
    open.fold(0, |bits, kept| bits | 1 << kept.number())
}

/// Whether at one of `numbers` something is offered, or nothing can be any more.
pub(super) fn have_news(_: &Locked, numbers: u64) -> bool {
    let awaits = |conn: Conn| !stream::turns(conn.pair).is_offered();
    let is_quiet = |kept: &Kept| kept.is_open() && kept.conn().is_some_and(awaits);
    !each(numbers).all(is_quiet)
}

/// The thread that alone waits at these sleeps no more, and takes what was offered meanwhile.
pub(super) fn end_waits(locked: &Locked, numbers: u64) {
    let open = || each(numbers).filter(|kept| kept.is_open());
    for conn in open().filter_map(Kept::conn) {
        stream::await_no_more(conn.pair);
    }
    take(locked, |kept| numbers >> kept.number() & 1 != 0);
}

/// The places with these numbers.
pub(super) fn each(numbers: u64) -> impl Iterator<Item = &'static Kept> {
    let mut left = numbers;
    std::iter::from_fn(move || {
        let number = left.trailing_zeros();
        left &= left.checked_sub(1)?;
        Some(numbered(number))
    })
}

/// How often two looks at what is offered may differ before the last one is believed.
const LOOKS: usize = 8;

/// Takes everything that is offered to this listener, whichever threads wait, in the order in which it was offered. (Threads that wait
/// may all be called at one address, and only one of them hears the call.)
pub(super) fn take_all(locked: &Locked, listener: &Socket) {
    take(locked, |kept| kept.is_of(listener));
}

/// Takes what is offered where `which` is true.
fn take(locked: &Locked, which: impl Fn(&Kept) -> bool) {
    let offers = || {
        let awaited = |kept: &&Kept| (kept.is_open() || kept.is_waited_at()) && which(kept);
        let at = |kept: &Kept| stream::offered_at(kept.conn()?.pair);
        let offered = locked.each().filter(awaited);
        offered.filter_map(move |kept| Some((at(kept)?, kept.number())))
    };
    let bits = || offers().fold(0u64, |bits, (_, number)| bits | 1 << number);
    let mut seen = bits();
    if seen == 0 {
        return;
    }
    // A look may miss one that was offered before another that it finds. The next look finds it.
    for _ in 0..LOOKS {
        let before = std::mem::replace(&mut seen, bits());
        if before == seen {
            break;
        }
    }
    let mut order = [(u64::MAX, 0); 64];
    let found = offers().filter(|&(_, number)| seen >> number & 1 != 0);
    let count = order
        .iter_mut()
        .zip(found)
        .map(|(to, from)| *to = from)
        .count();
    order[..count].sort_unstable();
    for &(_, number) in &order[..count] {
        numbered(number).leave(locked);
    }
}

/// The connection that was taken first of those that wait for an `accept` of this listener.
pub(super) fn first_taken(locked: &Locked, listener: &Socket) -> Option<&'static Kept> {
    let taken = |kept: &&Kept| kept.is_taken() && kept.is_of(listener);
    locked.each().filter(taken).min_by_key(|kept| kept.turn())
}
