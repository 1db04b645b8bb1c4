//! A TCP socket of this process: one per open file description, whatever
//! number of descriptors name it.
//!
//! ```text
//!            connect              claim             daemon              next call
//!   Fresh ───────────> Candidate ───────> Claimed ─────────> Paired ─────────────> Attached
//!     │ listen             │                 │                  │
//!     └──> Listener        └─────────────────┴──────────────────┴──> Plain(reason)
//! ```
//!
//! An attached connection that is closed may be put *aside*, and be attached again as the next one ([`crate::recycle`]).
//!
//! *Attached* means that this side honours the rings; each direction still
//! moves by itself (see [`crate::stream`]).

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::Reason;
use shunt_abi::counters::Record;
use shunt_abi::message::Role;

use crate::config::{self, Upgrade};
use crate::hold::Held;
use crate::link::Pair;
use crate::pool::{Links, Pool, Pooled};
use crate::region::{self, Shown};
use crate::share::Share;
use crate::sys;
use crate::table::{self, Object, Word};
use crate::thread::Lock;
use crate::wake::Places;

pub(crate) mod above;
mod accepts;
mod candidate;
mod dealings;
mod handed;
mod hints;
mod holds;
mod inside;
mod items;
mod locked;
pub(crate) mod made;
mod paired;
mod pairs;
mod queued;
mod recycled;
pub(crate) mod returning;
mod settings;
mod tries;
pub(crate) mod untold;

use accepts::Accepts;
use dealings::Dealings;
use hints::Hints;
use items::ItemList;
use made::Made;
use pairs::Pairs;
use returning::Return;
pub(crate) use settings::Settings;

pub(crate) use handed::{Handed, Left};
pub(crate) use hints::{BETWEEN_HOSTS, IN_VAIN, LEFT};
pub(crate) use inside::{Inside, RECEIVER, SENDER};
pub(crate) use locked::Locked;
pub(crate) use paired::any as is_any_paired;
pub(crate) use queued::{Queued, is_any_queued};
pub(crate) use recycled::{Origin, Place, Whereabouts};
pub(crate) use settings::{KEEPALIVE, NO_RCVTIMEO, NO_SNDTIMEO, RESTORED, SETS_TIMEOUTS};
pub(crate) use shunt_abi::counters::{Counts, Stage};
pub(crate) use tries::Tries;

/// See the module.
///
/// | fields | written by |
/// |---|---|
/// | `stage`, `reason`, `role`, `fd`, `cookie`, `port`, `life` | its birth, and whoever moves it on, by the functions below |
/// | `holds` | whoever opens, copies and closes descriptors ([`holds`]) |
/// | `calls`, `claim_after`, `adopted`, `completed`, `watcher` | calls on a connection that is not shunted yet ([`candidate`]) |
/// | `inside`, `handed`, `share`, `again` | each its own functions |
/// | `dealings`, `pairs` | who holds the lock of the connection to the daemon |
/// | `settings` | `setsockopt` |
/// | `accepts` | `listen`, and calls that wait at a listener |
/// | `made` | calls that make a descriptor, and change its flags |
/// | `origin`, `whereabouts`, `queued` | `socket`, `connect` and `accept` |
/// | `hints` | any call, without a lock |
/// | `places` | the holder of the direction's token |
/// | `items` | the holder of `lock` ([`Locked`]) |
/// | `record`, `tx`, `rx` | its birth; counts in them, calls of that direction |
#[repr(C, align(64))]
pub(crate) struct Socket {
    stage: AtomicU8,
    reason: AtomicU8,
    role: AtomicU8,
    /// Descriptors of this process and calls that wait.
    holds: AtomicU64,
    /// One of the descriptors.
    fd: AtomicI32,
    /// Raised each time the object is used for another socket.
    life: AtomicU32,
    // This cache line has what a call that the kernel serves looks at.
    /// Data calls made while a candidate.
    pub(crate) calls: AtomicU32,
    /// After how many such calls it is claimed; 0: as the mode says.
    pub(crate) claim_after: AtomicU32,
    /// Threads inside real calls that move bytes.
    pub(crate) inside: Inside,
    pairs: Pairs,
    links: Links,
    cookie: AtomicU64,
    port: AtomicU32,
    /// Another program or process made it: nobody here knows who else has it.
    pub(crate) adopted: AtomicBool,
    /// Its addresses lead out of its network namespace.
    pub(crate) afar: AtomicBool,
    /// In the mode `sync`: a call has waited until both ends were attached, or as long as it may.
    pub(crate) completed: AtomicBool,
    /// It is brought to its rings at once although it may be short: a trial to find out whether the next connections can
    /// use its socket again.
    pub(crate) on_trial: AtomicBool,
    /// A call was told of a reset that came without a FIN before it.
    pub(crate) was_reset: AtomicBool,
    /// What the daemon knows of the socket, and has said of it.
    pub(crate) dealings: Dealings,
    /// What the last call that looked at the connection saw.
    pub(crate) hints: Hints,
    /// What keeps it with the kernel once it went back there, or brings it to its rings again.
    pub(crate) again: Return,
    /// What the program has set.
    pub(crate) settings: Settings,
    /// Its flags, as far as they are known.
    pub(crate) made: Made,
    /// How it came about, if the next connection may come about the same way.
    pub(crate) origin: Origin,
    /// Where the socket is, and where it leads.
    pub(crate) whereabouts: Whereabouts,
    /// Whether the kernel connects it, and it may be in the listener's queue.
    pub(crate) queued: Queued,
    /// Of a listener: which thread last accepted or polled there (sync); 0: none yet.
    pub(crate) watcher: AtomicU64,
    /// Of a listener: who accepts there.
    pub(crate) accepts: Accepts,
    /// Calls that have slept on it, and the copy of its descriptor that they use once it was closed.
    pub(crate) handed: Handed,
    /// Other processes that have it since a fork.
    pub(crate) share: Share,
    /// Where threads of this process sleep until something arrives, and until there is room.
    pub(crate) places: [Places; 2],
    /// See [`Locked`].
    lock: Lock,
    /// Registrations in epoll sets.
    pub(crate) items: ItemList,
    /// What others may see of it.
    pub(crate) record: Shown<Record>,
    pub(crate) tx: Shown<Counts>,
    pub(crate) rx: Shown<Counts>,
    /// Its record where the region has no room for one.
    own: Record,
}

/// All sockets.
pub(crate) static SOCKETS: Pool<Socket> = Pool::new();

impl Pooled for Socket {
    fn links(&self) -> &Links {
        &self.links
    }
}

// SAFETY: sets have another kind; sockets are pooled.
unsafe impl Object for Socket {
    const KIND: usize = 1;
}

impl Socket {
    /// The socket that `fd` is, if it is one.
    #[inline(always)]
    pub(crate) fn of(fd: c_int) -> Option<&'static Self> {
        table::get(fd)
    }

    /// Whether the descriptor table says that `fd` names the socket.
    #[inline(always)]
    pub(crate) fn is_at(&self, fd: c_int) -> bool {
        table::look(fd).is(self)
    }

    /// A new socket object for `fd`, in the table. Others see its record if this process counts ([`region::ensure`]).
    pub(crate) fn enter(fd: c_int, stage: Stage) -> Option<&'static Self> {
        let socket = SOCKETS.take()?;
        let o = Ordering::Relaxed;
        let record = socket.begin_record();
        socket.life.fetch_add(1, o);
        socket.reason.store(Reason::Pending as u8, o);
        socket.fd.store(fd, o);
        socket.cookie.store(0, o);
        socket.port.store(0, o);
        socket.calls.store(0, o);
        socket.claim_after.store(0, o);
        let Self {
            adopted,
            afar,
            completed,
            on_trial,
            was_reset,
            ..
        } = socket;
        for flag in [adopted, afar, completed, on_trial, was_reset] {
            flag.store(false, o);
        }
        socket.watcher.store(0, o);
        socket.accepts.clear();
        socket.inside.clear();
        socket.dealings.clear();
        socket.hints.clear();
        socket.again.clear();
        socket.settings.clear();
        socket.made.forget();
        socket.origin.clear();
        socket.whereabouts.clear();
        socket.queued.clear();
        socket.handed.clear();
        record.fd.store(fd, o);
        record.reason.store(Reason::Pending as u8, o);
        socket.share.clear();
        socket.places.iter().for_each(Places::clear);
        socket.lock.reset();
        socket.holds.store(1, o);
        socket.set_stage(stage);
        // Whatever the number named before is gone: the library has not seen its close.
        if let Some(stale) = table::enter(fd, Word::of(socket)).get::<Self>() {
            stale.unhold();
        }
        Some(socket)
    }

    /// Gets the socket an empty record, in the region if that has room.
    fn begin_record(&'static self) -> &'static Record {
        let record = region::record(self.index()).unwrap_or(&self.own);
        record.clear();
        self.record.set(record);
        self.tx.set(&record.tx);
        self.rx.set(&record.rx);
        record
    }

    /// Writes what is known of the socket into a new record, after a fork.
    pub(crate) fn show(&'static self) {
        let o = Ordering::Relaxed;
        let record = self.begin_record();
        record.cookie.store(self.cookie(), o);
        record.fd.store(self.fd(), o);
        record.port.store(self.port.load(o), o);
        record.reason.store(self.reason.load(o), o);
        record.role.store(self.role.load(o), o);
        record.stage.store(self.stage.load(o), o);
    }

    /// Whether others see its record.
    pub(crate) fn is_shown(&self) -> bool {
        !std::ptr::eq(&raw const *self.record, &raw const self.own)
    }

    pub(crate) fn index(&self) -> u32 {
        self.links.index()
    }

    #[inline(always)]
    pub(crate) fn stage(&self) -> Stage {
        Stage::from_number(self.stage.load(Ordering::Acquire))
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
        self.record.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Moves on from a stage, if it is still in it: another thread may have been
    /// faster.
    pub(crate) fn move_on(&self, from: Stage, to: Stage) -> bool {
        let moved = self
            .stage
            .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if moved {
            paired::note(self.index(), from, to);
            self.record.stage.store(to as u8, Ordering::Relaxed);
        }
        moved
    }

    /// Notes that `connect` has returned, or `accept` has made the connection: the totals count it.
    pub(crate) fn set_connected(&self, connected: bool) {
        self.record
            .connected
            .store(u8::from(connected), Ordering::Relaxed);
        if connected && self.record.since.load(Ordering::Relaxed) == 0 {
            let seconds = sys::now() / 1_000_000_000;
            self.record.since.store(seconds as u32, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.record.connected.load(Ordering::Relaxed) != 0
    }

    /// A direction went back to TCP.
    pub(crate) fn note_downgrade(&self) {
        self.note_record();
        self.note_whole(false);
    }

    /// A direction from or to another host went back to TCP, by a record. This end's counts of its rings are still right.
    pub(crate) fn note_record(&self) {
        self.record.downgraded.store(1, Ordering::Relaxed);
    }

    /// Whether this end's counts of its rings tell what is unread there.
    pub(crate) fn note_whole(&self, is_whole: bool) {
        self.record.whole.store(is_whole.into(), Ordering::Relaxed);
    }

    pub(crate) fn is_downgraded(&self) -> bool {
        self.record.downgraded.load(Ordering::Relaxed) != 0
    }

    /// The connection is on its rings again.
    pub(crate) fn note_return(&self) {
        self.record.downgraded.store(0, Ordering::Relaxed);
    }

    /// Whether the object is in use.
    pub(crate) fn is_live(&self) -> bool {
        self.stage() != Stage::Free
    }

    /// The memory of an attached (or paired) connection.
    #[inline(always)]
    pub(crate) fn pair(&self) -> Option<&Pair> {
        self.pairs.now()
    }

    /// Calls `visit` with each pair of slots that the socket has been given in its life.
    pub(crate) fn each_pair(&self, visit: impl FnMut(Pair)) {
        self.pairs.each(visit);
    }

    /// Calls `visit` with the memory of each socket that is chosen and may still look at it.
    pub(crate) fn each_used(choose: impl Fn(&Self) -> bool, visit: &mut dyn FnMut(Pair)) {
        for socket in SOCKETS.each() {
            // A plain socket does not look at its slots any more.
            if socket.stage() != Stage::Plain && choose(socket) {
                socket.each_pair(&mut *visit);
            }
        }
    }

    /// Calls `visit` with each socket that waits to be attached, beginning behind the object of this index, as
    /// long as it says so.
    pub(crate) fn each_paired(behind: u32, visit: impl FnMut(&'static Self) -> bool) {
        let find = |index| SOCKETS.get(index).filter(|s| s.stage() == Stage::Paired);
        paired::each(behind, SOCKETS.used(), find, visit);
    }

    /// The socket does not use its pair of slots any more.
    pub(crate) fn lose_memory(&self) {
        self.pairs.each(|pair| pair.link.unhold());
        self.pairs.clear();
    }

    /// Whether it can be paired once more.
    pub(crate) fn may_pair_again(&self) -> bool {
        self.pairs.has_room()
    }

    /// How many descriptors of this process name it, as far as is known.
    pub(crate) fn descriptors(&self) -> u32 {
        let mut n = 0;
        table::each(|_, word| n += u32::from(word.is(self)));
        n
    }

    /// Leaves the socket to TCP for good. `false`: it has left the stage `from`, in which this was decided.
    pub(crate) fn set_plain(&self, from: Stage, reason: Reason) -> bool {
        if !self.move_on(from, Stage::Plain) {
            return false;
        }
        self.set_reason(reason);
        true
    }

    /// Why it is not shunted.
    pub(crate) fn reason(&self) -> Reason {
        Reason::from_number(self.reason.load(Ordering::Relaxed)).unwrap_or(Reason::Pending)
    }

    /// Notes a reason. What the daemon has found out is not replaced by what is only supposed.
    pub(crate) fn set_reason(&self, reason: Reason) {
        let found = matches!(self.reason(), Reason::OtherNamespace | Reason::OtherUser);
        if !(found && reason.is_provisional()) {
            self.write_reason(reason);
        }
    }

    /// The socket is another connection from here on, of whose other end nothing is known.
    pub(crate) fn forget_peer(&self) {
        self.dealings.inquired.store(false, Ordering::Relaxed);
        if matches!(self.reason(), Reason::OtherNamespace | Reason::OtherUser) {
            self.write_reason(Reason::Pending);
        }
    }

    fn write_reason(&self, reason: Reason) {
        self.reason.store(reason as u8, Ordering::Relaxed);
        self.record.reason.store(reason as u8, Ordering::Relaxed);
    }

    pub(crate) fn role(&self) -> Role {
        if self.role.load(Ordering::Relaxed) == Role::Acceptor as u8 {
            Role::Acceptor
        } else {
            Role::Connector
        }
    }

    pub(crate) fn set_role(&self, role: Role) {
        self.role.store(role as u8, Ordering::Relaxed);
        self.record.role.store(role as u8, Ordering::Relaxed);
    }

    /// The kernel's name for it (`SO_COOKIE`), 0 if not asked yet.
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Relaxed)
    }

    pub(crate) fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Relaxed);
        self.record.cookie.store(cookie, Ordering::Relaxed);
    }

    /// The port a listener listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed) as u16
    }

    pub(crate) fn set_port(&self, port: u16) {
        self.port.store(u32::from(port), Ordering::Relaxed);
        self.record.port.store(u32::from(port), Ordering::Relaxed);
    }

    /// Whether the connection is a trial (`on_trial`).
    pub(crate) fn tries(&self) -> bool {
        self.on_trial.load(Ordering::Relaxed)
    }

    /// Whether the daemon has answered that nobody claims the other end.
    pub(crate) fn answered(&self) -> bool {
        self.dealings.answered.load(Ordering::Acquire)
    }

    /// Notes the daemon's answer. `matched`: the other end is claimed, but the pairing needs memory that is still to
    /// come.
    pub(crate) fn note_answer(&self, matched: bool) {
        if matched && (config::upgrade() == Upgrade::Sync || self.tries()) {
            return; // Who waits goes on.
        }
        // An eager connector would have claimed it. If another does so later, the
        // pairing is the answer.
        if !matched && self.stage() == Stage::Claimed && self.role() == Role::Acceptor {
            self.set_reason(Reason::PeerPlain);
        }
        self.dealings.answered.store(true, Ordering::Release);
    }

    /// A descriptor of it that is open, as far as is known.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// A thread is about to make a real call on `fd` that moves bytes. `false`: it may not
    /// just now, or `fd` is another socket by now; look again.
    #[inline(always)]
    pub(crate) fn go_in(&'static self, fd: c_int, who: u32) -> bool {
        let entered = self.inside.enter(who);
        let is_it = self.is_at(fd);
        if entered && is_it {
            return true;
        }
        self.go_out(who);
        if !entered {
            crate::sys::sched_yield();
        }
        false
    }

    /// [`Self::go_in`] with a token of the connection: the token keeps the socket from ending.
    pub(crate) fn go_in_attached(&'static self, who: u32) {
        while !self.inside.enter(who) {
            self.go_out(who);
            crate::sys::sched_yield();
        }
    }

    /// The real call of a thread that has [entered](Self::go_in) has returned.
    #[inline(always)]
    pub(crate) fn go_out(&'static self, who: u32) {
        if self.inside.leave(who) {
            self.bury();
        }
    }
}

/// Adds to a count that only the holder of a token writes.
#[inline(always)]
pub(crate) fn bump(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}
