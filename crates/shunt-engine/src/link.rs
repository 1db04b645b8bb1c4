//! Links of this process: the two arenas it shares with one other process.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use shunt_abi::{layout, message};
use shunt_shm::arena::{Arena, Part};
use shunt_shm::ring::{Consumer, Memory};
use shunt_shm::slot::{self, Slot};

use crate::pool::{Links, Pool, Pooled};
use crate::thread::is_alone;
use crate::{reach, sys};

mod late;
mod relatives;
mod slots;

pub(crate) use relatives::{
    after_fork_child, before_fork, drop_all_but, forget_empty, has_come, is_any_to_retire,
    is_handed_on, retire_all,
};
use slots::Slots;

/// All links.
pub(crate) static LINKS: Pool<Link> = Pool::new();
/// Some link is gone and not yet unmapped.
static ANY_GONE: AtomicBool = AtomicBool::new(false);
/// How long a link without a user stays mapped (nanoseconds): a thread that lost a race against
/// `close` has left by then.
const GRACE: u64 = 1_000_000_000;
/// How long that is in a process with one thread: the thread may be in a call that was interrupted by the signal handler
/// which closed.
const GRACE_ALONE: u64 = 10_000_000;

/// Two arenas, one written here and one written by the peer process.
pub(crate) struct Link {
    links: Links,
    in_use: AtomicBool,
    id: AtomicU64,
    own_number: AtomicU32,
    arenas: std::cell::UnsafeCell<[Option<Arena>; 2]>,
    /// Sockets (and epoll sets) that use it.
    users: AtomicU32,
    /// No new connection will come: the peer process is dead, or the daemon has taken the link
    /// back.
    gone: AtomicBool,
    /// The daemon has said that the peer process has died.
    died: AtomicBool,
    /// Between hosts: a wait for the daemon's word of the peer's death came to nothing.
    is_unsaid: AtomicBool,
    /// A forked child has, or has had, memory of the link: no new connection may use it.
    retired: AtomicBool,
    /// The daemon is still to be told that it is retired.
    retire_due: AtomicBool,
    /// This process has the link from the process that forked it.
    foreign: AtomicBool,
    /// The other process is on another host: in the place of its arena is a view of it.
    between_hosts: AtomicBool,
    /// The slots whose rings are mapped here, with everything before the rings.
    mapped: Slots,
    /// The slots whose rings a child that is forked now would get.
    handed_on: Slots,
    /// The slots that sockets of this process use, while `mapped` or `handed_on` follows them.
    used: Slots,
    /// Since when nobody uses a link that is gone, as far as is known (nanoseconds); 0: it was in
    /// use at the last look.
    unused_since: AtomicU64,
    /// How many slots both arenas have.
    slots: AtomicU32,
    /// Socket index + 1 by slot.
    sockets: [AtomicU32; layout::MOST_SLOTS as usize],
    /// The epoll sets of this process that stand at its doors: index + 1.
    sets: [AtomicU32; layout::GROUPS],
}

// SAFETY: `arenas` is written before the link is published and after the last
// user has gone; everything else is atomic.
unsafe impl Sync for Link {}

impl Pooled for Link {
    fn links(&self) -> &Links {
        &self.links
    }
}

impl Link {
    /// Opens a link; the caller holds the control lock.
    pub(crate) fn open(id: u64, own_number: u32, own: Arena, peer: Arena) -> Option<&'static Self> {
        Self::begin(id, own_number, [own, peer], false)
    }

    /// Opens a link to a process on another host; the caller holds the control lock.
    pub(crate) fn open_between_hosts(id: u64, own_number: u32) -> Option<&'static Self> {
        let (own, fd) = Arena::create(layout::MOST_SLOTS).ok()?;
        // The peer does not map it.
        sys::close(fd);
        let view = Arena::view(own.slots()).ok();
        let link = view.and_then(|view| Self::begin(id, own_number, [own, view], true));
        if link.is_none() {
            for arena in [Some(own), view].into_iter().flatten() {
                // SAFETY: nobody has looked at it.
                unsafe { arena.unmap() };
            }
        }
        link
    }

    fn begin(
        id: u64,
        own_number: u32,
        arenas: [Arena; 2],
        between_hosts: bool,
    ) -> Option<&'static Self> {
        let link = LINKS.take()?;
        let [own, peer] = arenas;
        // SAFETY: a free object; nobody else looks at it before `in_use`.
        unsafe { *link.arenas.get() = [Some(own), Some(peer)] };
        link.id.store(id, Ordering::Relaxed);
        link.own_number.store(own_number, Ordering::Relaxed);
        link.gone.store(false, Ordering::Relaxed);
        link.unused_since.store(0, Ordering::Relaxed);
        for flag in [
            &link.died,
            &link.is_unsaid,
            &link.retired,
            &link.retire_due,
            &link.foreign,
        ] {
            flag.store(false, Ordering::Relaxed);
        }
        own.pid_namespace()
            .store(sys::pid_namespace(), Ordering::Relaxed);
        link.between_hosts.store(between_hosts, Ordering::Relaxed);
        let slots = own.slots().min(peer.slots());
        link.slots.store(slots, Ordering::Relaxed);
        link.mapped.fill(slots);
        link.handed_on.clear();
        link.users.store(0, Ordering::Relaxed);
        for index in link.sockets.iter().chain(&link.sets) {
            index.store(0, Ordering::Relaxed);
        }
        link.in_use.store(true, Ordering::Release);
        Some(link)
    }

    /// The link with this number; a process linked with itself has two, told
    /// apart by its arena.
    pub(crate) fn find(id: u64, own_number: u32) -> Option<&'static Self> {
        LINKS.each().find(|l| {
            l.in_use.load(Ordering::Acquire)
                && l.id.load(Ordering::Relaxed) == id
                && l.own_number.load(Ordering::Relaxed) == own_number
        })
    }

    /// The link to a process on another host that has this number in this process.
    pub(crate) fn between_hosts(own_number: u32) -> Option<&'static Self> {
        LINKS.each().find(|l| {
            l.in_use.load(Ordering::Acquire)
                && l.is_between_hosts()
                && l.own_number.load(Ordering::Relaxed) == own_number
        })
    }

    /// The link to a process on another host that has this number at the daemon, if that may still hand out slots of it.
    /// That includes a retired one, on which new connections stay on TCP.
    pub(crate) fn find_between_hosts(id: u64) -> Option<&'static Self> {
        LINKS.each().find(|l| {
            l.is_between_hosts_as(id) && (!l.gone.load(Ordering::Acquire) || l.is_retired())
        })
    }

    fn is_between_hosts_as(&self, id: u64) -> bool {
        self.in_use.load(Ordering::Acquire)
            && self.is_between_hosts()
            && self.id.load(Ordering::Relaxed) == id
    }

    /// Whether the other process is on another host.
    #[inline]
    pub(crate) fn is_between_hosts(&self) -> bool {
        self.between_hosts.load(Ordering::Relaxed)
    }

    /// Whether both sides see the same process numbers: they are in one PID namespace.
    pub(crate) fn shares_numbers(&self) -> bool {
        let [own, peer] =
            [self.own(), self.peer()].map(|arena| arena.pid_namespace().load(Ordering::Relaxed));
        own == peer && own != 0
    }

    /// The link's number in this process.
    pub(crate) fn own_number(&self) -> u32 {
        self.own_number.load(Ordering::Relaxed)
    }

    /// The arena that this process writes.
    pub(crate) fn own(&self) -> Arena {
        // SAFETY: written before the link is published as in use, and not while it is.
        unsafe { (*self.arenas.get())[0].expect("a link in use has its arenas") }
    }

    /// The peer's arena.
    pub(crate) fn peer(&self) -> Arena {
        // SAFETY: written before the link is published as in use, and not while it is.
        unsafe { (*self.arenas.get())[1].expect("a link in use has its arenas") }
    }

    pub(crate) fn index(&self) -> u32 {
        self.links.index()
    }

    /// How many connections it has room for.
    fn slots(&self) -> u32 {
        self.slots.load(Ordering::Relaxed)
    }

    /// The link's number at the daemon.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Enters the socket that uses a slot (`None`: nobody).
    pub(crate) fn enter(&self, slot: u32, socket: Option<u32>) {
        self.sockets[slot as usize].store(socket.map_or(0, |s| s + 1), Ordering::Release);
    }

    /// The socket that uses a slot.
    pub(crate) fn socket(&self, slot: u32) -> Option<u32> {
        self.sockets
            .get(slot as usize)?
            .load(Ordering::Acquire)
            .checked_sub(1)
    }

    /// Enters the epoll set that stands at a door (`None`: none of this process).
    pub(crate) fn enter_set(&self, door: u32, set: Option<u32>) {
        self.sets[door as usize].store(set.map_or(0, |s| s + 1), Ordering::Release);
    }

    /// The set that stands at a door.
    pub(crate) fn set(&self, door: u32) -> Option<u32> {
        self.sets
            .get(door as usize)?
            .load(Ordering::Acquire)
            .checked_sub(1)
    }

    /// Counts a user.
    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less.
    pub(crate) fn unhold(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// The daemon has taken a link back, perhaps since the peer process has died: no new connection uses it,
    /// and its memory goes after its last user, at once if that has gone long ago (`FLAG_UNUSED`). With the
    /// control lock. (The daemon numbers links between hosts separately.)
    pub(crate) fn bury(id: u64, flags: u32) {
        let has = |flag| flags & flag != 0;
        let between_hosts = has(message::FLAG_REACHES);
        let long_ago = u64::from(has(message::FLAG_UNUSED));
        for link in LINKS.each() {
            if link.in_use.load(Ordering::Acquire)
                && link.is_between_hosts() == between_hosts
                && link.id.load(Ordering::Relaxed) == id
            {
                link.unused_since.store(long_ago, Ordering::Relaxed);
                link.died
                    .fetch_or(has(message::FLAG_DIED), Ordering::Relaxed);
                link.gone.store(true, Ordering::Release);
                ANY_GONE.store(true, Ordering::Relaxed);
            }
        }
        Self::sweep();
    }

    #[cfg(test)]
    pub(crate) fn number_as(&self, id: u64) {
        self.id.store(id, Ordering::Relaxed);
    }

    /// Whether the peer process has died, as far as the daemon has said.
    pub(crate) fn has_peer_died(&self) -> bool {
        self.died.load(Ordering::Relaxed)
    }

    /// The note that a wait for the daemon's word of the peer's death has come to nothing.
    pub(crate) fn is_waited_for_in_vain(&self) -> &AtomicBool {
        &self.is_unsaid
    }

    /// The daemon that handed out the slots of all links is gone.
    pub(crate) fn bury_all() {
        for link in LINKS.each() {
            link.gone.store(true, Ordering::Release);
            ANY_GONE.store(true, Ordering::Relaxed);
        }
    }

    /// Unmaps links that are gone and have not been used for a while. With the control lock,
    /// now and then.
    pub(crate) fn sweep() {
        if !ANY_GONE.swap(false, Ordering::Relaxed) {
            return;
        }
        let now = sys::now();
        for link in LINKS.each() {
            if link.in_use.load(Ordering::Acquire)
                && link.gone.load(Ordering::Acquire)
                && !link.unmap_if_unused(now)
            {
                ANY_GONE.store(true, Ordering::Relaxed);
            }
        }
    }

    fn unmap_if_unused(&'static self, now: u64) -> bool {
        let since = self.unused_since.load(Ordering::Relaxed);
        if self.users.load(Ordering::Acquire) != 0 {
            self.unused_since.store(0, Ordering::Relaxed);
            return false;
        }
        if since == 0 {
            self.unused_since.store(now, Ordering::Relaxed);
        }
        let grace = if is_alone() { GRACE_ALONE } else { GRACE };
        if since == 0 || now - since < grace {
            return false;
        }
        // SAFETY: nobody has held it for that long; a thread that still looks finds its control lines empty.
        unsafe { self.end() };
        true
    }

    /// Takes the memory away.
    ///
    /// # Safety
    /// No connection uses the link any more, and no call that began while one did looks into its rings.
    unsafe fn end(&'static self) {
        self.in_use.store(false, Ordering::Release);
        if self.is_between_hosts() {
            reach::forget(self.own_number());
        }
        let arenas = [self.own(), self.peer()];
        for arena in &arenas {
            // SAFETY: the caller's promise.
            unsafe { late::leave(arena) };
        }
        if self.foreign.load(Ordering::Relaxed) {
            // SAFETY: as above.
            unsafe { self.unmap_rings() };
        } else {
            for arena in &arenas {
                // SAFETY: as above.
                unsafe { arena.unmap_part(&Part::Rings(0..arena.slots())) };
            }
        }
        arenas.into_iter().for_each(Arena::forget);
        LINKS.give(self);
    }
}

/// Whether some link waits to be unmapped.
pub(crate) fn any_gone() -> bool {
    ANY_GONE.load(Ordering::Relaxed)
}

/// One connection's memory: both slots and both rings.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) link: &'static Link,
    pub(crate) number: u32,
    /// As the daemon counts.
    pub(crate) generation: u32,
    /// Our control lines.
    pub(crate) own: &'static Slot,
    /// The peer's: not trusted.
    pub(crate) peer: &'static Slot,
    /// The ring we write.
    pub(crate) out: Memory,
    /// The ring we read: not trusted.
    pub(crate) inward: Memory,
}

impl Pair {
    /// The memory of a slot on a link.
    pub(crate) fn new(link: &'static Link, number: u32, generation: u32) -> Option<Self> {
        if number >= link.slots() || slot::first_life(generation) == 0 {
            return None;
        }
        let (own, peer) = (link.own(), link.peer());
        let bytes = if link.is_between_hosts() {
            layout::MIRRORED_RING_BYTES
        } else {
            layout::RING_BYTES
        };
        let memory = |arena: &Arena| {
            // SAFETY: the ring has at least `bytes` bytes inside a mapping that outlives the socket.
            unsafe { Memory::new(arena.ring(number).cast(), bytes as u32) }
        };
        Some(Self {
            link,
            number,
            generation,
            own: own.slot(number),
            peer: peer.slot(number),
            out: memory(&own),
            inward: memory(&peer),
        })
    }

    /// The receiving half.
    #[inline(always)]
    pub(crate) fn consumer(&self) -> Consumer<'static> {
        Consumer {
            memory: self.inward,
            receiving: &self.own.receiving,
            progress: &self.own.progress,
        }
    }

    /// The life of the slot that this side is in.
    #[inline(always)]
    pub(crate) fn life(&self) -> u32 {
        self.own.face.generation.load(Ordering::Relaxed)
    }

    /// The peer's state bits; none before it has begun this life.
    #[inline(always)]
    pub(crate) fn peer_state(&self) -> u32 {
        self.peer.state(self.life()).unwrap_or(0)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_used_again_meanwhile_rests_anew_before_it_is_unmapped() {
        const SECOND: u64 = 1_000_000_000;
        let _alone = crate::both_ends::one_at_a_time();
        crate::thread::learn_pid();
        let [(own, own_fd), (other, other_fd)] = [(); 2].map(|()| Arena::create(1).unwrap());
        let peer = Arena::open(other_fd, 1).unwrap();
        sys::close(own_fd);
        sys::close(other_fd);
        let link = Link::open(u64::MAX, 1, own, peer).unwrap();
        let is_unmapped_at = |second| link.unmap_if_unused(second * SECOND);
        assert!(!is_unmapped_at(1));
        link.hold();
        assert!(!is_unmapped_at(5));
        link.unhold();
        assert!(!is_unmapped_at(9));
        assert!(is_unmapped_at(11));
        assert!(Link::find(u64::MAX, 1).is_none());
        // SAFETY: nobody looks at it any more.
        unsafe { other.unmap() };
    }
}
