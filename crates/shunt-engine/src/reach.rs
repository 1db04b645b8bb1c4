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
//! The NIC is a real one, of which the daemon says the name; or for tests an emulated one, of which `SHUNT_WIRE` names the directory. It allocates
//! where a link or its queue pair is made (`docs/decisions/0018-between-hosts.md`).

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::c_int;
use shunt_abi::Reason;
use shunt_rdma::bond::Lines;
use shunt_rdma::link::{Link, News, Resumed};
use shunt_rdma::meeting::{Connected, Heard};
use shunt_rdma::nic::{Nic, Queue};
use shunt_rdma::port::{Found, Port};
use shunt_rdma::resume::{BYTES, Leave};
use shunt_rdma::verbs::Verbs;
use shunt_rdma::wire::Wire;
use shunt_rdma::word::Word;

use crate::table::{self, Word as Entry};
use crate::thread::Lock;
use crate::{config, real, sys};
pub(crate) use peer::Text;
use peer::{Opening, Peer};

mod peer;

/// Hears what has happened on a slot of a link, with the lock.
pub(crate) type Tell = fn(link: u32, slot: u32, News);

static LOCK: Lock = Lock::new();
/// Forks under way in handlers of the thread that has the lock.
static ON_TOP: AtomicU32 = AtomicU32::new(0);
static NIC: Place = Place(UnsafeCell::new(None));
/// The process has had a link to one on another host. Until then no fork takes the lock.
static IS_WANTED: AtomicBool = AtomicBool::new(false);
/// The lock is held over a fork.
static IS_FORKING: AtomicBool = AtomicBool::new(false);
/// The process has a NIC.
static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// The process can have none: it has tried.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// The NIC's place; used with the lock.
struct Place(UnsafeCell<Option<Reach>>);

// SAFETY: who uses it has the lock.
unsafe impl Sync for Place {}

/// The NIC, and the processes that it is to reach.
struct Reach {
    port: Port<'static, Nic>,
    peers: Vec<Peer>,
    /// How to tell what has happened; set by the first connection that is opened.
    tell: Option<Tell>,
}

/// Whether this process can use memory of other hosts, as far as it knows.
pub(crate) fn may_be() -> bool {
    !IS_REFUSED.load(Ordering::Relaxed) && !config::is_confined()
}

/// Whether it has the NIC for that.
pub(crate) fn is_open() -> bool {
    IS_OPEN.load(Ordering::Relaxed)
}

/// Whether this thread is in a call of the NIC's library, which may use the NIC's descriptors.
pub(crate) fn is_at_work() -> bool {
    LOCK.is_here()
}

/// A link to another process is in use: offers it a queue pair, unless there is one. `device`: the NIC's name; empty: any.
/// `say` sends a word to it; `false`: it cannot.
pub(crate) fn begin(link: u32, device: &str, mut say: impl FnMut(&Text) -> bool) {
    IS_WANTED.store(true, Ordering::SeqCst);
    let _ = with(
        || open_nic(device),
        |nic| {
            let known = nic.peers.iter().position(|peer| peer.link == link);
            let at = known.unwrap_or_else(|| nic.add(link));
            nic.peers[at].offer(&nic.port, &mut say);
        },
    );
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
        let Reach { port, peers, .. } = nic;
        let peer = peers.iter_mut().find(|peer| peer.link == link);
        let peer = peer.ok_or(Reason::NoDevice)?;
        // SAFETY: the caller's promise.
        unsafe { peer.open(port, opening) }
    })?
}

/// The memory of a slot is about to begin the life of another connection.
pub(crate) fn close(link: u32, slot: u32) {
    on(link, slot, |_, link| link.close(slot));
}

/// Takes what other processes have told and written.
pub(crate) fn progress() {
    let _ = with(no_nic, Reach::progress);
}

/// Whether this process has the NIC, and not the one that has forked it.
#[cold]
#[inline(never)]
pub(crate) fn is_here() -> bool {
    with(no_nic, |_| ()).is_ok()
}

/// What a thread that sleeps watches for what comes from other hosts.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    /// Readable once something has come.
    pub(crate) fd: c_int,
    /// Something had come before, and has been taken.
    pub(crate) has_come: bool,
}

/// Before a sleep, and once its descriptor is readable. What comes after this makes it readable, for all threads that watch it, until the next call.
pub(crate) fn watch() -> Option<Watch> {
    let watch = with(no_nic, |nic| {
        nic.port.take_events();
        // A device that is gone says so in `progress`.
        let _ = nic.port.arm();
        let has_come = nic.progress();
        Watch {
            fd: nic.port.events(),
            has_come,
        }
    });
    watch.ok()
}

/// The program is about to put something else at this number.
pub(crate) fn make_way(wanted: c_int) {
    if is_open() {
        let _ = with(no_nic, |nic| {
            if let Some(other) = nic.port.transport_mut().make_way(wanted) {
                table::enter(other, Entry::OURS);
                table::enter(wanted, Entry::NOTHING);
            }
        });
    }
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

/// Whether anything that is in the ring can still be sent by the NIC.
pub(crate) fn may_publish(link: u32, slot: u32) -> bool {
    on(link, slot, |_, link| link.broken().is_none()) == Some(true)
}

/// The byte of TCP from which on the ring may carry the stream, if the peer has agreed to that.
pub(crate) fn agreed(link: u32, slot: u32) -> Option<u64> {
    progress();
    on(link, slot, |_, link| link.agreed(slot))?
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
fn on<R>(link: u32, slot: u32, act: impl FnOnce(&Nic, &mut Link<'static, Nic>) -> R) -> Option<R> {
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
    if !IS_WANTED.load(Ordering::SeqCst) {
        return;
    }
    if LOCK.take() {
        IS_FORKING.store(true, Ordering::Relaxed);
    } else {
        ON_TOP.fetch_add(1, Ordering::Relaxed);
    }
}

/// After it, in the parent; also where [`before_fork`] has found nothing to take.
pub(crate) fn after_fork_parent() {
    if !LOCK.is_here() {
        return;
    }
    let one_less = |forks: u32| forks.checked_sub(1);
    let was_on_top = ON_TOP.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    if was_on_top.is_err() {
        IS_FORKING.store(false, Ordering::Relaxed);
        LOCK.give();
    }
}

/// In the child: the NIC and all that it has are the parent's. Until this has run, the lock may have the name of a thread of the parent's.
pub(crate) fn after_fork_child() {
    let is_on_top = ON_TOP.swap(0, Ordering::Relaxed) != 0;
    let is_ours = IS_FORKING.swap(false, Ordering::Relaxed) && !is_on_top;
    // A thread of the parent's that has begun to use the NIC since this fork began is in the middle of something.
    let is_torn = !is_ours && !is_on_top && LOCK.is_taken();
    if is_ours {
        LOCK.give();
    } else {
        // Another thread has it, which is not here; or who has it goes on below this handler, and gives it back.
        LOCK.reset();
    }
    let place = NIC.0.get();
    // SAFETY: this is the only thread, and what another one has left half written is not looked at.
    let nic = unsafe {
        if is_torn {
            place.write(None);
        }
        (*place).take()
    };
    match nic {
        // In the middle of something: it stays as it is, and nobody looks at it any more.
        Some(nic) if is_on_top => std::mem::forget(nic),
        Some(nic) => unseen(|| leave_to_parent(nic)),
        None => {}
    }
    IS_OPEN.store(false, Ordering::Relaxed);
}

/// Gives up the child's copies of its parent's descriptors.
fn leave_to_parent(nic: Reach) {
    if nic.port.transport().note_fork() {
        drop(nic);
        return;
    }
    for fd in nic.port.transport().descriptors().into_iter().flatten() {
        if table::look(fd) == Entry::OURS {
            table::enter(fd, Entry::NOTHING);
            sys::close(fd);
        }
    }
    // What the library has made there is the parent's.
    std::mem::forget(nic);
}

/// Runs `act` with the NIC, which `missing` opens if there is none.
///
/// # Errors
/// `Busy`: this is a handler on top of who uses it. `NoDevice`: there is none.
fn with<R>(
    missing: impl FnOnce() -> Option<Reach>,
    act: impl FnOnce(&mut Reach) -> R,
) -> Result<R, Reason> {
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

fn no_nic() -> Option<Reach> {
    None
}

fn open_nic(device: &str) -> Option<Reach> {
    if !may_be() {
        return None;
    }
    let nic = match config::wire() {
        Some(directory) => Wire::open(directory).ok().map(Nic::Emulated),
        None => {
            let device = Some(device).filter(|name| !name.is_empty());
            let verbs = Verbs::open(device, sys::first_of_ours());
            verbs.ok().map(Nic::Real)
        }
    };
    let Some(nic) = nic else {
        IS_REFUSED.store(true, Ordering::Relaxed);
        return None;
    };
    for fd in nic.descriptors().into_iter().flatten() {
        table::enter(fd, Entry::OURS);
    }
    IS_OPEN.store(true, Ordering::Relaxed);
    Some(Reach {
        port: Port::new(nic),
        peers: Vec::new(),
        tell: None,
    })
}

impl Reach {
    fn add(&mut self, link: u32) -> usize {
        self.peers.push(Peer::new(link));
        self.peers.len() - 1
    }

    /// `true`: something has come.
    fn progress(&mut self) -> bool {
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
        done.unwrap_or(true)
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
