//! Where a thread sleeps: a channel that it has to itself meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, pollfd};
use shunt_shm::wake::Address;

use super::channel::Channel;
use super::demand::SHARE;
use crate::thread::{self, under_way};
use crate::{config, sys};

/// The most threads of a process that may sleep in places at the same time.
const MOST: usize = 512;

static CHANNELS: [Channel; MOST] = [const { Channel::new() }; MOST];
/// Which are taken, a bit each.
static TAKEN: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
/// How many places, from the first on, have ever been taken. The channels of the others are no more than zeros, which a forked child
/// need not look at: it would get their pages for it.
static EVER_TAKEN: AtomicUsize = AtomicUsize::new(0);

/// The process could poll no more than one descriptor at a time, and so does without places.
static WITHOUT: AtomicBool = AtomicBool::new(false);

/// A thread's place, from before it says that it sleeps until after it has.
/// No destructor: a cancelled thread runs none.
#[derive(Clone, Copy)]
pub(crate) struct Place(usize);

/// Takes a place. `None`: there is none now, or never where the program has confined itself:
/// it may sleep and receive in its own ways only.
pub(crate) fn enter() -> Option<Place> {
    if !thread::owns_memory() || config::is_confined() || is_without() {
        return None;
    }
    let place = Place((0..TAKEN.len()).find_map(take_in)?);
    if EVER_TAKEN.load(Ordering::Relaxed) <= place.0 {
        EVER_TAKEN.fetch_max(place.0 + 1, Ordering::Relaxed);
    }
    let channel = place.channel();
    if channel.is_outdated() {
        channel.close(); // Nobody else has the place.
    }
    let may = || sys::descriptor_limit() / SHARE > place.0 as u64;
    if channel.is_open() || may() && channel.open() {
        return Some(place);
    }
    place.leave();
    None
}

/// Takes a free one of 64.
fn take_in(word: usize) -> Option<usize> {
    loop {
        let free = TAKEN[word].load(Ordering::Relaxed).trailing_ones();
        let bit = 1u64.checked_shl(free)?;
        if TAKEN[word].fetch_or(bit, Ordering::Acquire) & bit == 0 {
            return Some(word * 64 + free as usize);
        }
    }
}

impl Place {
    fn channel(self) -> &'static Channel {
        &CHANNELS[self.0]
    }

    /// Says where its thread is to be called.
    pub(crate) fn tell(self, at: &Address) {
        self.channel().tell(at);
    }

    /// Whether an address names its channel still.
    pub(crate) fn is_told(self, at: &Address) -> bool {
        self.channel().is_told(at)
    }

    /// What to poll: readable when called.
    pub(crate) fn watch(self) -> pollfd {
        under_way::set_place(Some(self.number()));
        pollfd {
            fd: self.channel().watch(),
            events: libc::POLLIN,
            revents: 0,
        }
    }

    /// A handler runs in its thread, which sleeps no more.
    #[cold]
    pub(crate) fn interrupted(self) {
        self.channel().interrupt();
    }

    /// Takes the call that woke its thread; `sure`: it finds what it has waited for.
    pub(crate) fn hear(self, sure: bool) {
        if sure {
            self.channel().hear_sure();
        } else {
            self.channel().hear();
        }
    }

    /// Wakes its thread, from within this process.
    pub(crate) fn wake(self) {
        self.channel().wake();
    }

    /// Its number, for [`Place::numbered`].
    pub(crate) fn number(self) -> c_int {
        self.0 as c_int
    }

    pub(crate) fn numbered(number: c_int) -> Self {
        Self(number as usize)
    }

    /// Gives the place back. A call may still be there, or come: the next thread here looks once more than it need
    /// have.
    pub(crate) fn leave(self) {
        self.channel().unwatch();
        under_way::set_place(None);
        let bit = 1 << (self.0 % 64);
        TAKEN[self.0 / 64].fetch_and(!bit, Ordering::Release);
    }
}

/// Where threads sleep that wait for the same thing, a bit for each place, and how many have none.
/// Changed under a token.
#[derive(Debug)]
pub(crate) struct Places {
    taken: [AtomicU64; MOST / 64],
    without: AtomicU32,
}

impl Places {
    /// One sleeper more, in this place; `None`: it has none.
    pub(crate) fn add(&self, place: Option<Place>) {
        let o = Ordering::Relaxed;
        if let Some((word, bit)) = place.map(|place| self.at(place)) {
            word.store(word.load(o) | bit, o);
        } else {
            self.without.store(self.without.load(o) + 1, o);
        }
    }

    /// One sleeper less.
    pub(crate) fn remove(&self, place: Option<Place>) {
        let o = Ordering::Relaxed;
        if let Some((word, bit)) = place.map(|place| self.at(place)) {
            word.store(word.load(o) & !bit, o);
        } else {
            self.without
                .store(self.without.load(o).saturating_sub(1), o);
        }
    }

    fn at(&self, place: Place) -> (&AtomicU64, u64) {
        (&self.taken[place.0 / 64], 1 << (place.0 % 64))
    }

    /// How many there are. `None`: not all of their threads can be called.
    pub(crate) fn count(&self) -> Option<u32> {
        let ones = |taken: &AtomicU64| taken.load(Ordering::Relaxed).count_ones();
        (self.without.load(Ordering::Relaxed) == 0).then(|| self.taken.iter().map(ones).sum())
    }

    /// Calls `visit` with each of them whose thread no signal handler has interrupted. An interrupted thread looks
    /// again when it goes on, if it ever does.
    pub(crate) fn each_that_hears(&self, mut visit: impl FnMut(Place)) {
        self.each(|place| {
            if !place.channel().is_interrupted() {
                visit(place);
            }
        });
    }

    /// Any of them.
    pub(crate) fn any(&self) -> Option<Place> {
        let numbered = |(word, places): (usize, &AtomicU64)| match places.load(Ordering::Relaxed) {
            0 => None,
            places => Some(Place(word * 64 + places.trailing_zeros() as usize)),
        };
        self.taken.iter().enumerate().find_map(numbered)
    }

    /// Calls `visit` with each of them.
    pub(crate) fn each(&self, mut visit: impl FnMut(Place)) {
        for (word, places) in self.taken.iter().enumerate() {
            let mut left = places.load(Ordering::Relaxed);
            while left != 0 {
                visit(Place(word * 64 + left.trailing_zeros() as usize));
                left &= left - 1;
            }
        }
    }

    /// None any more: their threads are gone.
    pub(crate) fn clear(&self) {
        for places in &self.taken {
            places.store(0, Ordering::Relaxed);
        }
        self.without.store(0, Ordering::Relaxed);
    }
}

impl Default for Places {
    fn default() -> Self {
        Self {
            taken: [const { AtomicU64::new(0) }; MOST / 64],
            without: AtomicU32::new(0),
        }
    }
}

/// `ppoll` takes fewer entries than a place needs.
#[cold]
pub(crate) fn do_without() {
    WITHOUT.store(true, Ordering::Relaxed);
}

/// Whether it still does (`RLIMIT_NOFILE` below 2).
fn is_without() -> bool {
    WITHOUT.load(Ordering::Relaxed) && {
        let still = sys::descriptor_limit() < 2;
        WITHOUT.store(still, Ordering::Relaxed);
        still
    }
}

/// Wakes every thread of this process that sleeps in a place: each looks again.
#[cold]
pub(crate) fn wake_all() {
    for (word, taken) in TAKEN.iter().enumerate() {
        let mut taken = taken.load(Ordering::Acquire);
        while taken != 0 {
            CHANNELS[word * 64 + taken.trailing_zeros() as usize].wake();
            taken &= taken - 1;
        }
    }
}

/// In a forked child: the channels are its parent's, and no other thread is here.
pub(super) fn after_fork_child() {
    for taken in TAKEN
        .iter()
        .filter(|taken| taken.load(Ordering::Relaxed) != 0)
    {
        taken.store(0, Ordering::Relaxed);
    }
    let ever = EVER_TAKEN.load(Ordering::Relaxed).min(MOST);
    for channel in CHANNELS[..ever].iter().filter(|channel| channel.is_open()) {
        channel.close();
    }
}

/// Moves a channel to another number, if the program wants its number `fd`.
pub(super) fn make_way(fd: c_int) {
    for (number, channel) in CHANNELS.iter().enumerate() {
        let may_wait = !under_way::is_in_place(number as c_int);
        channel.make_way(fd, may_wait);
    }
}

/// The number of a channel in which no thread sleeps now: the caller needs it more than the next sleeper will.
#[cold]
pub(super) fn spare() -> Option<c_int> {
    let limit = sys::descriptor_limit();
    let give_up = |number: usize| {
        let (word, bit) = (&TAKEN[number / 64], 1 << (number % 64));
        // One past the limit can be no copy of anything.
        let is_of_use = CHANNELS[number].is_open() && (CHANNELS[number].fd() as u64) < limit;
        if !is_of_use || word.fetch_or(bit, Ordering::Acquire) & bit != 0 {
            return None;
        }
        let fd = CHANNELS[number].give_up();
        word.fetch_and(!bit, Ordering::Release);
        fd
    };
    (0..MOST).find_map(give_up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_has_a_channel_of_its_own_and_is_called_there() {
        let _alone = crate::both_ends::one_at_a_time();
        thread::learn_pid();
        let (one, other) = (enter().unwrap(), enter().unwrap());
        assert_ne!(one.number(), other.number());
        let is_called = |place: Place| sys::poll_now(&mut [place.watch()]) == Ok(1);
        let at = Address::default();
        super::super::call(&at);
        other.tell(&at);
        assert!(!is_called(other));
        super::super::call(&at);
        assert!(is_called(other) && !is_called(one));
        // Only who knows the word is heard.
        let (name, secret) = at.look();
        at.say(name, secret ^ 1 << 40);
        other.hear(false);
        super::super::call(&at);
        assert!(!is_called(other));
        wake_all();
        assert!(is_called(one) && is_called(other));
        one.hear(false);
        other.hear(false);
        one.leave();
        other.leave();
        assert_eq!(enter().map(Place::number), Some(one.number()));
        one.leave();
    }

    #[test]
    fn a_forked_child_closes_the_channels_of_all_places_that_were_ever_taken() {
        let _alone = crate::both_ends::one_at_a_time();
        thread::learn_pid();
        let (one, other) = (enter().unwrap(), enter().unwrap());
        let open = || [one, other].map(|place| place.channel().is_open());
        one.leave();
        assert_eq!(open(), [true; 2]);
        after_fork_child();
        assert_eq!(open(), [false; 2]);
        assert!(TAKEN.iter().all(|taken| taken.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn places_are_told_apart_and_counted() {
        let places = Places::default();
        assert_eq!((places.count(), places.any().is_none()), (Some(0), true));
        for number in [3, 64, 511] {
            places.add(Some(Place::numbered(number)));
        }
        let mut seen = Vec::new();
        places.each(|place| seen.push(place.number()));
        assert_eq!((seen, places.count()), (vec![3, 64, 511], Some(3)));
        places.remove(Some(Place::numbered(3)));
        assert_eq!(places.any().map(Place::number), Some(64));
        places.clear();
        assert_eq!(places.count(), Some(0));
    }

    #[test]
    fn a_thread_without_a_place_is_counted_as_one_that_cannot_be_called() {
        let places = Places::default();
        places.add(None);
        places.add(Some(Place::numbered(1)));
        assert_eq!(places.count(), None);
        places.remove(None);
        assert_eq!(places.count(), Some(1));
        // One more than there are is none.
        places.remove(None);
        assert_eq!(places.count(), Some(1));
    }
}
