//! Processes on other hosts, and the NIC by which this one reaches them.
//!
//! ```text
//! begin     the daemon has said that the other end of a connection is on another host: offers its process a queue pair
//! heard     reads what that process answers by way of the daemons, until both have the queue pair
//! open      a connection is attached: tells the peer where to write its ring
//! propose   asks the peer whether the stream may go on in the ring; enter: goes on there, if the peer has said yes
//! publish   posts what is new in the ring; leave: goes back to TCP where that cannot be posted
//! progress  takes completions: what the peer has written is in the view of its arena after that
//! ```
//!
//! All of this is a test's switch (`docs/decisions/0018-between-hosts.md`): `SHUNT_WIRE` names a directory of emulated NICs. It allocates
//! where a link or its queue pair is made.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use shunt_abi::Reason;
use shunt_rdma::bond::Lines;
use shunt_rdma::link::{Link, News, Resumed};
use shunt_rdma::meeting::{Connected, Heard, Meeting};
use shunt_rdma::port::{Found, Port};
use shunt_rdma::resume::{BYTES, Leave};
use shunt_rdma::transport::{QueueId, Refused};
use shunt_rdma::wire::{Queue, Wire};
use shunt_rdma::word::{self, Word};

use crate::config;
use crate::real;
use crate::thread::Lock;

/// What one process says to another by way of their daemons.
pub(crate) type Text = [u8; word::BYTES];

/// Hears what has happened on a slot of a link, with the lock.
pub(crate) type Tell = fn(link: u32, slot: u32, News);

static LOCK: Lock = Lock::new();
/// Forks under way in handlers of the thread that has the lock.
static ON_TOP: AtomicU32 = AtomicU32::new(0);
static NIC: Place = Place(UnsafeCell::new(None));

/// The NIC's place; used with the lock.
struct Place(UnsafeCell<Option<Nic>>);

// SAFETY: who uses it has the lock.
unsafe impl Sync for Place {}

/// The NIC, and the processes that it is to reach.
struct Nic {
    port: Port<'static, Wire>,
    peers: Vec<Peer>,
    /// How to tell what has happened; set by the first connection that is opened.
    tell: Option<Tell>,
}

/// One process on another host.
struct Peer {
    /// The link that this process has to it.
    link: u32,
    meeting: Meeting<Wire>,
    /// The queue pair, once this side has connected it.
    queue: Option<QueueId>,
    /// The peer has connected it, too: this side may send.
    is_met: bool,
    /// Connections that were attached before that.
    early: Vec<Opening>,
    /// The queue pair of each connection that the peer has been told of, by slot.
    queues: BTreeMap<u32, QueueId>,
    /// Queue pairs that are over, and have connections that must still leave their rings.
    former: Vec<QueueId>,
}

/// A connection that is attached: its slot, its life and its memory.
#[derive(Clone, Copy)]
struct Opening {
    slot: u32,
    life: u32,
    lines: Lines<'static>,
}

/// Whether connections may be claimed whose other ends are on other hosts.
pub(crate) fn is_on() -> bool {
    config::wire().is_some()
}

/// A link to another process is in use: offers it a queue pair, unless there is one. `say` sends a word to it; `false`: it cannot.
pub(crate) fn begin(link: u32, mut say: impl FnMut(&Text) -> bool) {
    let _ = with(open_nic, |nic| {
        let known = nic.peers.iter().position(|peer| peer.link == link);
        let at = known.unwrap_or_else(|| nic.add(link));
        nic.peers[at].offer(&nic.port, &mut say);
    });
}

/// The process at the other end of a link says something.
pub(crate) fn heard(link: u32, text: &Text, mut say: impl FnMut(&Text) -> bool) {
    let _ = with(no_nic, |nic| {
        if let Some(at) = nic.peers.iter().position(|peer| peer.link == link) {
            nic.hear(at, text, &mut say);
        }
    });
}

/// A connection is about to be attached: the peer is told so when it can be.
///
/// # Errors
/// `Busy`: not now. Another reason: never.
///
/// # Safety
/// The memory stays mapped until the link is [forgotten](forget), and nobody else writes the view.
pub(crate) unsafe fn open(
    link: u32,
    slot: u32,
    life: u32,
    lines: Lines<'static>,
    tell: Tell,
) -> Result<(), Reason> {
    let opening = Opening { slot, life, lines };
    with(no_nic, |nic| {
        nic.tell = Some(tell);
        nic.progress();
        let Nic { port, peers, .. } = nic;
        let peer = peers.iter_mut().find(|peer| peer.link == link);
        let peer = peer.ok_or(Reason::NoDevice)?;
        // SAFETY: the caller's promise.
        unsafe { peer.open(port, opening) }
    })?
}

/// Takes what other processes have told and written.
pub(crate) fn progress() {
    let _ = with(no_nic, Nic::progress);
}

/// Whether this process has the NIC, and not the one that has forked it.
#[cold]
#[inline(never)]
pub(crate) fn is_here() -> bool {
    with(no_nic, |_| ()).is_ok()
}

/// A descriptor that is readable when there is something to take.
pub(crate) fn events() -> Option<c_int> {
    with(no_nic, |nic| nic.port.events()).ok()
}

/// Asks the peer whether the ring may carry the stream from that byte of TCP on.
pub(crate) fn propose(link: u32, slot: u32, written: u64) {
    on(link, slot, |wire, link| link.propose(wire, slot, written));
}

/// The stream goes on in the ring, if the peer has agreed to that for this byte of TCP.
pub(crate) fn enter(link: u32, slot: u32, written: u64) -> bool {
    progress();
    let entered = on(link, slot, |_, link| {
        link.agreed(slot) == Some(written) && link.enter(slot)
    });
    entered == Some(true)
}

/// Sends what is in the ring. `false`: not all of it is out.
pub(crate) fn publish(link: u32, slot: u32) -> bool {
    progress();
    on(link, slot, |wire, link| link.publish(wire, slot)) == Some(Ok(true))
}

/// This side has read something of the peer's ring, with the receiving token, which the caller has.
pub(crate) fn has_read(link: u32, slot: u32) {
    on(link, slot, |wire, link| link.has_read(wire, slot));
}

/// The stream leaves the ring, or never comes there in this life. What is said goes to TCP; `None`: it was not in the ring, or this
/// process does not know.
pub(crate) fn leave(link: u32, slot: u32) -> Option<Leave> {
    on(link, slot, |wire, link| {
        let left = link.leave(slot);
        link.flush(wire);
        left
    })?
}

/// Tells the peer that nothing follows in the ring, and how far its own is read; with the receiving token, which the caller has. `true`: it
/// has everything in its memory.
pub(crate) fn end(link: u32, slot: u32) -> bool {
    on(link, slot, |wire, link| link.end(wire, slot));
    has_arrived(link, slot)
}

/// Whether the peer has everything in its memory by now.
pub(crate) fn has_arrived(link: u32, slot: u32) -> bool {
    progress();
    on(link, slot, |_, link| link.has_ended(slot)) == Some(true)
}

/// Whether the peer has said that nothing follows in its ring, as far as is known by now.
pub(crate) fn has_peer_ended(link: u32, slot: u32) -> bool {
    progress();
    on(link, slot, |_, link| link.has_peer_ended(slot)) == Some(true)
}

/// The peer has died in this life of the slot. `bytes`: how many it had received, and sent, through the rings.
pub(crate) fn note_death(link: u32, slot: u32, life: u32, bytes: [u64; 2]) {
    progress();
    let [received, sent] = bytes;
    on(link, slot, |_, link| link.died(slot, life, received, sent));
}

/// The record by which a direction leaves its ring, where the peer was known to have read `from` bytes of it.
pub(crate) fn record(link: u32, slot: u32, from: u64) -> Option<[u8; BYTES]> {
    on(link, slot, |_, link| link.record(slot, from))?
}

/// What these bytes of TCP mean while the peer's stream should be in its ring: a record, or payload.
pub(crate) fn resume(link: u32, slot: u32, bytes: &[u8]) -> Resumed {
    let resumed = on(link, slot, |_, link| link.resume(slot, bytes));
    resumed.unwrap_or(Resumed::Wrong)
}

/// This side reads on by TCP where it has looked for the peer's ring.
pub(crate) fn stayed(link: u32, slot: u32) {
    on(link, slot, |wire, link| link.stayed(wire, slot));
}

/// This side reads the peer's ring no more: the peer is to leave it, or not to enter it. One that has not been told of the connection never
/// is, and so never enters.
pub(crate) fn recall(link: u32, slot: u32) {
    let recalled = on(link, slot, |wire, link| link.recall(wire, slot));
    if recalled.is_none() {
        let _ = with(no_nic, |nic| {
            let peer = nic.peers.iter_mut().find(|peer| peer.link == link);
            peer.into_iter().for_each(|peer| peer.take_back(slot));
        });
    }
}

/// Runs `act` with a connection's queue pair, also one that is over. `None`: there is none.
fn on<R>(
    link: u32,
    slot: u32,
    act: impl FnOnce(&Wire, &mut Link<'static, Wire>) -> R,
) -> Option<R> {
    with(no_nic, |nic| {
        let peer = nic.peers.iter().position(|peer| peer.link == link)?;
        let queue = *nic.peers[peer].queues.get(&slot)?;
        let (wire, link) = nic.port.link(queue)?;
        let done = act(wire, link);
        if link.broken().is_some() && nic.peers[peer].queue == Some(queue) {
            nic.part(peer);
        }
        Some(done)
    })
    .ok()?
}

/// A link ends: its queue pair and its regions go.
pub(crate) fn forget(link: u32) {
    let _ = with(no_nic, |nic| {
        if let Some(at) = nic.peers.iter().position(|peer| peer.link == link) {
            let peer = nic.peers.swap_remove(at);
            for queue in peer.queue.into_iter().chain(peer.former) {
                nic.port.remove(queue);
            }
        }
    });
}

/// Before a fork: no thread is in the middle of anything here, unless this is a handler on top of it.
pub(crate) fn before_fork() {
    if is_on() && !LOCK.take() {
        ON_TOP.fetch_add(1, Ordering::Relaxed);
    }
}

/// After it, in the parent.
pub(crate) fn after_fork_parent() {
    if !is_on() {
        return;
    }
    let one_less = |forks: u32| forks.checked_sub(1);
    let was_on_top = ON_TOP.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    if was_on_top.is_err() {
        LOCK.give();
    }
}

/// In the child: the NIC and all that it has are the parent's.
pub(crate) fn after_fork_child() {
    LOCK.reset();
    // SAFETY: this is the only thread.
    let nic = unsafe { &mut *NIC.0.get() }.take();
    match nic {
        // In the middle of something: it stays as it is, and nobody looks at it any more.
        Some(nic) if ON_TOP.swap(0, Ordering::Relaxed) != 0 => std::mem::forget(nic),
        Some(nic) => unseen(|| {
            nic.port.transport().note_fork();
            drop(nic);
        }),
        None => {}
    }
}

/// Runs `act` with the NIC, which `missing` opens if there is none.
///
/// # Errors
/// `Busy`: this is a handler on top of who uses it. `NoDevice`: there is none.
fn with<R>(missing: fn() -> Option<Nic>, act: impl FnOnce(&mut Nic) -> R) -> Result<R, Reason> {
    if !LOCK.take() {
        return Err(Reason::Busy);
    }
    // SAFETY: with the lock.
    let place = unsafe { &mut *NIC.0.get() };
    let done = unseen(|| {
        if place.is_none() {
            *place = missing();
        }
        place.as_mut().map(act).ok_or(Reason::NoDevice)
    });
    LOCK.give();
    done
}

/// Runs work of the NIC's, which calls libc: the program's `errno` stays as it is, and a cancelled thread ends only after it.
fn unseen<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: this thread's own, as long as it lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let done = real::uncancelled(work);
    // SAFETY: as above.
    unsafe { *errno = before };
    done
}

fn no_nic() -> Option<Nic> {
    None
}

fn open_nic() -> Option<Nic> {
    let wire = Wire::open(config::wire()?).ok()?;
    Some(Nic {
        port: Port::new(wire),
        peers: Vec::new(),
        tell: None,
    })
}

impl Nic {
    fn add(&mut self, link: u32) -> usize {
        self.peers.push(Peer {
            link,
            meeting: Meeting::new(),
            queue: None,
            is_met: false,
            early: Vec::new(),
            queues: BTreeMap::new(),
            former: Vec::new(),
        });
        self.peers.len() - 1
    }

    fn progress(&mut self) {
        let Self { port, peers, tell } = self;
        let mut broken = Vec::new();
        let done = port.progress(|found| match found {
            Found::Broken(queue, _) => broken.push(queue),
            Found::News(queue, slot, news) => {
                let peer = peers.iter().find(|peer| peer.queue == Some(queue));
                if let (Some(peer), Some(tell)) = (peer, *tell) {
                    tell(peer.link, slot, news);
                }
            }
        });
        for at in 0..self.peers.len() {
            let queue = self.peers[at].queue;
            if done.is_err() || queue.is_some_and(|queue| broken.contains(&queue)) {
                self.part(at);
            }
        }
    }

    fn hear(&mut self, at: usize, text: &Text, say: &mut impl FnMut(&Text) -> bool) {
        let word = Word::parse(text);
        let meeting = &mut self.peers[at].meeting;
        let heard = word.map(|word| meeting.heard(self.port.transport(), &word));
        match heard {
            Some(Ok(Heard::Nothing)) => {}
            Some(Ok(Heard::Connected(connected))) => self.connect(at, connected, say),
            Some(Ok(Heard::Met)) => self.peers[at].meet(&mut self.port),
            Some(Ok(Heard::Refused(_, word))) => {
                self.part(at);
                say(&word.to_bytes());
            }
            // It makes no sense, or the peer has none.
            None | Some(Err(_) | Ok(Heard::Gone)) => self.part(at),
        }
    }

    fn connect(
        &mut self,
        at: usize,
        connected: Connected<Queue>,
        say: &mut impl FnMut(&Text) -> bool,
    ) {
        self.part(at);
        let mut words = connected.words();
        let [own, peer] = connected.ends;
        let link = Link::new(self.port.transport(), connected.queue, &own, &peer);
        self.peers[at].queue = Some(self.port.add(link));
        if !words.all(|word| say(&word.to_bytes())) {
            self.part(at);
        }
    }

    /// The queue pair to a peer is over. Its connections leave their rings; until then what is known of these is kept.
    fn part(&mut self, at: usize) {
        let Self { port, peers, tell } = self;
        let peer = &mut peers[at];
        peer.is_met = false;
        let Some(queue) = peer.queue.take() else {
            return;
        };
        let Some((wire, link)) = port.link(queue) else {
            return;
        };
        link.abandon(wire);
        if let Some(tell) = tell {
            link.slots()
                .for_each(|slot| tell(peer.link, slot, News::Recalled));
        }
        if link.is_needed() {
            peer.former.push(queue);
        } else {
            port.remove(queue);
        }
    }
}

impl Peer {
    fn offer(&mut self, port: &Port<'static, Wire>, say: &mut impl FnMut(&Text) -> bool) {
        if self.queue.is_none()
            && let Ok(offer) = self.meeting.begin(port.transport())
        {
            // A word that is lost ends the round; the next connection of the link begins another one.
            say(&offer.to_bytes());
        }
    }

    /// The peer can receive from now on: opens the connections that waited for that.
    fn meet(&mut self, port: &mut Port<'static, Wire>) {
        self.is_met = true;
        for opening in std::mem::take(&mut self.early) {
            // SAFETY: as when it was to be opened first. One that the NIC refuses stays on TCP without a word.
            let _ = unsafe { self.open_now(port, opening) };
        }
    }

    /// # Safety
    /// As for [`open`].
    unsafe fn open(
        &mut self,
        port: &mut Port<'static, Wire>,
        opening: Opening,
    ) -> Result<(), Reason> {
        if self.is_met {
            // SAFETY: the caller's promise.
            let opened = unsafe { self.open_now(port, opening) };
            return opened.map_err(|_| Reason::Pinned);
        }
        self.take_back(opening.slot);
        self.early.push(opening);
        Ok(())
    }

    /// Takes back a connection of this slot that the peer has not been told of.
    fn take_back(&mut self, slot: u32) {
        self.early.retain(|early| early.slot != slot);
    }

    /// # Safety
    /// As for [`open`].
    unsafe fn open_now(
        &mut self,
        port: &mut Port<'static, Wire>,
        opening: Opening,
    ) -> Result<(), Refused> {
        self.former.retain(|&queue| {
            let is_needed = port.link(queue).is_some_and(|(_, link)| link.is_needed());
            if !is_needed {
                port.remove(queue);
            }
            is_needed
        });
        let Opening { slot, life, lines } = opening;
        let Some(queue) = self.queue else {
            return Ok(());
        };
        let Some((wire, link)) = port.link(queue) else {
            return Ok(());
        };
        // SAFETY: the caller's promise.
        unsafe { link.open(wire, slot, life, lines) }?;
        self.queues.insert(slot, queue);
        Ok(())
    }
}
