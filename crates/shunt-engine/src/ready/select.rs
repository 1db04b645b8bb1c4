//! `select`, by way of `poll`.

use libc::{c_int, fd_set, pollfd, sigset_t};

use super::array::{Memory, with_array};
use super::poll::{self, Whose};
use crate::entry::{self, Entry};
use crate::epoll::{self, Limit, Set};
use crate::recycle::Waits;
use crate::stream::{self, Conn};
use crate::thread::signals::{self, Seen};
use crate::{Outcome, real, signal, sys};

/// What makes a descriptor readable, writable, exceptional for `select`
/// (`fs/select.c`: `POLLIN_SET`, `POLLOUT_SET`, `POLLEX_SET`).
const MEANS: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR,
    libc::POLLPRI,
];
/// What to ask `poll` for.
const ASKS: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM,
    libc::POLLOUT | libc::POLLWRNORM,
    libc::POLLPRI,
];

const WORD: usize = 64;

/// A set as words, however long the program made it: no `FD_SETSIZE` here.
#[derive(Clone, Copy)]
struct Bits(*mut u64);

impl Bits {
    /// # Safety
    /// The set is null or covers `fd`.
    unsafe fn get(self, fd: usize) -> bool {
        // SAFETY: the program's set covers every descriptor below its count.
        !self.0.is_null() && unsafe { *self.0.add(fd / WORD) } & 1 << (fd % WORD) != 0
    }

    /// Stores a word; `false`: it cannot be stored.
    ///
    /// # Safety
    /// The word is one of a set of the program's, which may be null, or not be mapped.
    unsafe fn put_word(self, at: usize, word: u64) -> bool {
        let place = self.0.wrapping_add(at).cast();
        // SAFETY: the caller's promise.
        self.0.is_null() || unsafe { signal::put(place, &word.to_ne_bytes()) }
    }

    /// # Safety
    /// The set is null or covers `fd`.
    unsafe fn put(self, fd: usize, on: bool) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: as above.
        let word = unsafe { &mut *self.0.add(fd / WORD) };
        *word = *word & !(1 << (fd % WORD)) | u64::from(on) << (fd % WORD);
    }
}

/// `pselect(2)`.
///
/// # Safety
/// The sets are null or hold `count` bits; `mask` is null or a signal set.
pub(super) unsafe fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: Limit,
    mask: *const sigset_t,
) -> Outcome {
    let seen = signals::now();
    let sets = sets.map(|s| Bits(s.cast()));
    let Ok(count) = usize::try_from(count) else {
        return Outcome::Kernel;
    };
    // The kernel says EFAULT.
    let is_bad = |s: &Bits| {
        (1..4096).contains(&s.0.addr())
            || !s.0.is_null() && !signal::may_read(s.0, count.div_ceil(WORD))
    };
    if count > 1 << 20 || sets.iter().any(is_bad) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let events = |fd| unsafe { events_of(&sets, fd) };
    let chosen = (0..count).filter(|&fd| events(fd) != 0);
    if !chosen.clone().any(is_known) {
        return Outcome::Kernel;
    }
    let numbers = chosen.clone().map(|fd| fd as c_int);
    let whose = poll::whose(numbers, limit.is_now(), seen);
    // Before there is an array: a long one takes memory.
    if whose == Whose::Kernels {
        return Outcome::Kernel;
    }
    let n = chosen.clone().count();
    let run = |array: &mut [pollfd], memory| {
        let (fds, scratch) = array.split_at_mut(n);
        for (one, fd) in fds.iter_mut().zip(chosen) {
            *one = pollfd {
                fd: fd as c_int,
                events: events(fd),
                revents: 0,
            };
        }
        // SAFETY: the caller's promise.
        let mut poll = |fds: &mut [pollfd]| unsafe {
            let polled = match whose {
                Whose::Perhaps => poll::poll_in_kernel(fds, memory, limit, mask, seen),
                _ => poll::poll_with(fds, scratch, memory, limit, mask, seen),
            };
            match polled {
                Outcome::Fail(libc::EINVAL) if sys::descriptor_limit() < n as u64 => {
                    select_in_turns(fds, memory, limit, mask, seen)
                }
                outcome => outcome,
            }
        };
        // SAFETY: as above.
        unsafe { with(fds, &sets, count, &mut poll) }
    };
    let more = match whose {
        Whose::Perhaps => 0,
        _ => poll::scratch_for(n),
    };
    with_array(n + more, run).unwrap_or(Outcome::Kernel)
}

/// The events whose sets have a number.
///
/// # Safety
/// Each set is null or covers it.
unsafe fn events_of(sets: &[Bits; 3], fd: usize) -> i16 {
    // SAFETY: the caller's promise.
    let is_in = |set: &Bits| unsafe { set.get(fd) };
    let asked = sets.iter().zip(ASKS).filter(|(set, _)| is_in(set));
    asked.fold(0, |events, (_, asks)| events | asks)
}

/// Whether a number names a socket or a set.
fn is_known(fd: usize) -> bool {
    !matches!(entry::look(fd as c_int), Entry::Other)
}

/// Where `ppoll` takes fewer descriptors than there are (`RLIMIT_NOFILE`): the real call, and
/// a look from time to time at sockets that are shunted, or may become so meanwhile, and for signals.
///
/// # Safety
/// `mask` is null or a signal set.
#[cold]
unsafe fn select_in_turns(
    fds: &mut [pollfd],
    memory: Memory,
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
) -> Outcome {
    let words = fds.last().map_or(0, |last| number(last) / WORD + 1);
    // Entries are as large as words, but may lie at half of one.
    let run = |array: &mut [pollfd], sets: Memory| {
        let at = array.as_mut_ptr().cast::<u8>();
        let at = at
            .wrapping_add(at.align_offset(align_of::<u64>()))
            .cast::<u64>();
        let bits = [0, 1, 2].map(|i| Bits(at.wrapping_add(i * words)));
        let memories = [memory, sets];
        // SAFETY: the caller's promise; each set covers the last descriptor, in the array.
        unsafe { select_with(fds, bits, words, &memories, limit, mask, seen) }
    };
    with_array(3 * words + 1, run).unwrap_or(Outcome::Fail(libc::ENOMEM))
}

/// Has an epoll set, if that is what the program waits for, look ready to the kernel exactly if it is. `false`:
/// there is none.
fn expose(one: &pollfd) -> bool {
    let set = Set::of(one.fd);
    if let Some(set) = set {
        epoll::expose(set);
    }
    set.is_some()
}

/// Does what `select` does for the descriptors in `fds`, which say what is asked. `sets` are for the real call, of
/// `words` words each.
///
/// # Safety
/// `mask` is null or a signal set; each set covers all descriptors.
unsafe fn select_with(
    fds: &mut [pollfd],
    sets: [Bits; 3],
    words: usize,
    memories: &[Memory; 2],
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
) -> Outcome {
    loop {
        let mut found = poll::look_at_shunted(fds, &[]);
        found += poll::look_at_listeners(fds, &Waits::none());
        for set in &sets {
            // SAFETY: its words.
            unsafe { set.0.write_bytes(0, words) };
        }
        for one in fds.iter_mut().filter(|one| is_theirs(one)) {
            one.revents = 0;
            expose(one);
            for (set, asks) in sets.iter().zip(ASKS) {
                // SAFETY: it covers all descriptors of this call.
                unsafe { set.put(one.fd as usize, one.events & asks != 0) };
            }
        }
        let interrupted = seen.any_since() && !limit.is_now();
        let time = limit.left_of(match found > 0 || interrupted {
            true => 0,
            false => stream::TURN,
        });
        let [read, write, except] = sets.map(|set| set.0.cast());
        let most = (words * WORD) as c_int;
        let give_back = || memories.iter().for_each(|memory| memory.give_back());
        // SAFETY: our own sets; the program's mask.
        let n = real::sleeping(&give_back, || unsafe {
            real::pselect()(most, read, write, except, &raw const time, mask) as isize
        });
        match n {
            Err(errno) if found == 0 => return Outcome::Fail(errno),
            Err(_) => return Outcome::Done(found as isize),
            Ok(_) => {}
        }
        // SAFETY: as above.
        found += unsafe { take_theirs(fds, &sets) };
        if found == 0 && interrupted {
            return Outcome::Fail(libc::EINTR);
        }
        if found > 0 || limit.is_up() {
            return Outcome::Done(found as isize);
        }
    }
}

/// Whether the kernel knows what a descriptor is ready for: all is on TCP, and nothing to accept was offered in memory.
fn is_theirs(one: &pollfd) -> bool {
    let is_on_tcp = || Conn::of(one.fd).is_none_or(|conn| !stream::is_on_rings(&conn));
    !is_left_out(one) && is_on_tcp() && !poll::is_told_beside_kernel(one)
}

/// Takes over what the real call has reported; how many are ready.
///
/// # Safety
/// Each set covers all descriptors.
unsafe fn take_theirs(fds: &mut [pollfd], sets: &[Bits; 3]) -> usize {
    let mut found = 0;
    for one in fds.iter_mut().filter(|one| is_theirs(one)) {
        // SAFETY: the caller's promise.
        one.revents = unsafe { events_of(sets, one.fd as usize) };
        if one.revents != 0 && expose(one) && sys::ready(one.fd, one.events) & one.events == 0 {
            // What woke it is no event of the program's.
            one.revents = 0;
        }
        found += usize::from(one.revents != 0);
    }
    found
}

/// Answers a `select` by `poll`, and stores what that tells in the program's sets. What `poll` tells unasked and no set
/// means (`POLLHUP` for `exceptfds`) does not end the call.
///
/// # Safety
/// Each set is null or covers `count` descriptors; `mask` is null or a signal set.
unsafe fn with(
    fds: &mut [pollfd],
    sets: &[Bits; 3],
    count: usize,
    mut poll: impl FnMut(&mut [pollfd]) -> Outcome,
) -> Outcome {
    loop {
        let outcome = poll(fds);
        let Outcome::Done(_) = outcome else {
            return outcome;
        };
        // A closed descriptor is an error here, an event in poll.
        if fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
            return Outcome::Fail(libc::EBADF);
        }
        if !leave_out_what_means_nothing(fds) {
            break;
        }
    }
    let mut found = 0;
    for (set, kind) in sets.iter().zip(ASKS.into_iter().zip(MEANS)) {
        // SAFETY: the caller's promise.
        match unsafe { tell(*set, count, fds, kind) } {
            Some(n) => found += n,
            None => return Outcome::Fail(libc::EFAULT),
        }
    }
    Outcome::Done(found)
}

/// If all that `poll` tells means nothing to the sets: takes these entries out for the next `poll`, which passes over negative numbers.
fn leave_out_what_means_nothing(fds: &mut [pollfd]) -> bool {
    let means = |one: &pollfd| {
        let asked = ASKS.into_iter().zip(MEANS);
        let mut asked = asked.filter(|(asks, _)| one.events & asks != 0);
        asked.any(|(_, means)| one.revents & means != 0)
    };
    if fds.iter().any(means) {
        return false;
    }
    let mut any = false;
    for one in fds.iter_mut().filter(|one| one.revents != 0) {
        (one.fd, one.revents, any) = (!one.fd, 0, true);
    }
    any
}

/// Whether an entry has been taken out.
fn is_left_out(one: &pollfd) -> bool {
    one.fd < 0
}

/// The number of an entry, which may have been taken out.
fn number(one: &pollfd) -> usize {
    one.fd.max(!one.fd) as usize
}

/// Stores in a set of the program's which descriptors are ready, in their order; how many. `None`: nothing can be
/// stored there.
///
/// # Safety
/// The set is null or covers `count` descriptors.
unsafe fn tell(
    set: Bits,
    count: usize,
    fds: &[pollfd],
    (asks, means): (i16, i16),
) -> Option<isize> {
    let mut rest = fds.iter().peekable();
    let mut found = 0;
    for at in 0..count.div_ceil(WORD) {
        let mut word = 0u64;
        while let Some(one) = rest.next_if(|one| number(one) / WORD == at) {
            let is_ready = one.events & asks != 0 && one.revents & means != 0;
            word |= u64::from(is_ready) << (number(one) % WORD);
        }
        found += word.count_ones() as isize;
        // SAFETY: the caller's promise.
        if !unsafe { set.put_word(at, word) } {
            return None;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::both_ends::BothEnds;

    #[test]
    fn a_set_of_any_length_is_read_and_written_bit_by_bit() {
        let mut words = [0u64; 40];
        let set = Bits(words.as_mut_ptr());
        // SAFETY: both bits are in the set, which is this test's; a null set has none.
        unsafe {
            set.put(2500, true);
            set.put(3, true);
            assert!(set.get(2500) && set.get(3) && !set.get(2499));
            set.put(3, false);
            assert!(!set.get(3));
            let none = Bits(std::ptr::null_mut());
            none.put(1, true);
            assert!(!none.get(1));
        }
        assert_eq!(words[39], 1 << (2500 % 64));
    }

    /// Asks at once for all numbers of a set, once for reading and once for writing; what the sets are then.
    fn ask(numbers: &[c_int]) -> (Outcome, [Vec<c_int>; 2]) {
        const MOST: c_int = 1024;
        let mut words = [[0u64; MOST as usize / WORD]; 2];
        let [read, write] = words.each_mut().map(|set| set.as_mut_ptr());
        for &fd in numbers {
            // SAFETY: such numbers are in the sets, which are this test's.
            unsafe {
                Bits(read).put(fd as usize, true);
                Bits(write).put(fd as usize, true);
            }
        }
        let sets = [read.cast(), write.cast(), std::ptr::null_mut()];
        // SAFETY: each set holds `MOST` bits; no mask.
        let outcome = unsafe { select(MOST, sets, Limit::new(Some(0)), std::ptr::null()) };
        // SAFETY: as above.
        let is_in = |set, fd| unsafe { Bits(set).get(fd as usize) };
        let all = |set| (0..MOST).filter(|&fd| is_in(set, fd)).collect();
        (outcome, [all(read), all(write)])
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn what_is_ready_is_left_in_its_set_and_counted_in_each() {
        let ends = BothEnds::attached();
        let [one, other] = ends.fds;
        ends.send(b"x");
        let (outcome, [read, write]) = ask(&ends.fds);
        assert_eq!((outcome, read), (Outcome::Done(3), vec![other]));
        assert!(write.len() == 2 && write.contains(&one) && write.contains(&other));
        ends.receive::<1>();
        assert_eq!(ask(&[other]), (Outcome::Done(1), [vec![], vec![other]]));
    }

    #[test]
    fn an_end_is_told_only_in_the_sets_that_ask_for_its_number() {
        let asked_to_write = pollfd {
            fd: 3,
            events: ASKS[1],
            revents: libc::POLLOUT | libc::POLLHUP | libc::POLLERR,
        };
        let told = |kind: usize| {
            let mut word = u64::MAX;
            let set = Bits(&raw mut word);
            // SAFETY: the set has room for `WORD` bits.
            let found = unsafe { tell(set, WORD, &[asked_to_write], (ASKS[kind], MEANS[kind])) };
            (found, word)
        };
        assert_eq!(
            [0, 1, 2].map(told),
            [(Some(0), 0), (Some(1), 1 << 3), (Some(0), 0)]
        );
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_closed_number_is_an_error() {
        let ends = BothEnds::attached();
        ends.send(b"x");
        let (outcome, _) = ask(&[ends.fds[1], 901]);
        assert_eq!(outcome, Outcome::Fail(libc::EBADF));
    }
}
