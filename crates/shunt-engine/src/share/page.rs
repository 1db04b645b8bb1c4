//! Pages of words that relatives share ([`super`]).

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys;
use crate::thread::Lock;

/// Pages that are in use at a time: as many forks may each have shared sockets for the first
/// time that are still there.
const PAGES: usize = 1024;
const PAGE: usize = 4096;
const WORDS: u32 = (PAGE / size_of::<AtomicU32>()) as u32;
/// No page.
const NONE: u32 = u32::MAX;

/// Where the pages lie, one behind the other; null: nothing has been shared yet.
static AREA: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Sockets of this process that have a word in each page.
static USERS: [AtomicU32; PAGES] = [const { AtomicU32::new(0) }; PAGES];
/// The page that new words come from, and how many of its words are given out. With the lock.
static OPEN: AtomicU32 = AtomicU32::new(NONE);
static GIVEN: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock = Lock::new();

/// Before a fork: what is shared from here on lies in a page that no relative has yet.
pub(crate) fn before_fork() {
    // Not while another thread takes a word; a handler has interrupted this one then.
    let locked = LOCK.take();
    OPEN.store(NONE, Ordering::Relaxed);
    if locked {
        LOCK.give();
    }
}

/// In a forked child, where no other thread holds the lock.
pub(crate) fn after_fork_child() {
    LOCK.reset();
}

/// A word that nobody uses; `None`: there is no memory, or too many pages are in use.
pub(super) fn take() -> Option<&'static AtomicU32> {
    if !LOCK.take() {
        return None;
    }
    let word = take_locked();
    LOCK.give();
    word
}

fn take_locked() -> Option<&'static AtomicU32> {
    let o = Ordering::Relaxed;
    let mut page = OPEN.load(o);
    if page == NONE || GIVEN.load(o) == WORDS {
        page = begin_page()?;
        OPEN.store(page, o);
        GIVEN.store(0, o);
    }
    let word = GIVEN.fetch_add(1, o);
    USERS[page as usize].fetch_add(1, Ordering::AcqRel);
    // SAFETY: a word of a page in the area, which is mapped.
    Some(unsafe { &*place(page)?.cast::<AtomicU32>().add(word as usize) })
}

/// Puts an empty page where no socket has a word.
fn begin_page() -> Option<u32> {
    let free = USERS
        .iter()
        .position(|users| users.load(Ordering::Acquire) == 0)?;
    let page = free as u32;
    let at = place(page).or_else(|| {
        AREA.store(sys::map(PAGES * PAGE), Ordering::Release);
        place(page)
    })?;
    // A thread that is just looking at a word which its socket has given up finds zero there.
    sys::map_shared_at(at, PAGE).then_some(page)
}

fn place(page: u32) -> Option<*mut u8> {
    let area = AREA.load(Ordering::Acquire);
    // SAFETY: inside the area.
    (!area.is_null()).then(|| unsafe { area.add(page as usize * PAGE) })
}

/// A socket uses its word no more.
pub(super) fn give(word: &AtomicU32) {
    let at = std::ptr::from_ref(word) as usize - AREA.load(Ordering::Acquire) as usize;
    USERS[at / PAGE].fetch_sub(1, Ordering::AcqRel);
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// One test: what is tested is of the whole process.
    #[test]
    fn words_of_the_dead_take_no_room_from_the_living() {
        let _alone = crate::both_ends::one_at_a_time();
        let lasting = take().unwrap();
        lasting.store(2, Ordering::Relaxed);
        // As many forks as there are words in all pages, and no child lives to leave.
        for _ in 0..PAGES {
            before_fork();
            let word = take().unwrap();
            assert_eq!(word.swap(2, Ordering::Relaxed), 0);
            give(word);
        }
        assert_eq!(lasting.load(Ordering::Relaxed), 2);
        // One fork that shares more sockets than a page has words.
        before_fork();
        let many: Vec<_> = (0..=WORDS).map(|_| take().unwrap()).collect();
        let page = |word: &AtomicU32| std::ptr::from_ref(word) as usize / PAGE;
        assert_eq!(page(many[0]), page(many[WORDS as usize - 1]));
        assert_ne!(page(many[0]), page(many[WORDS as usize]));
        assert!(many.iter().all(|word| page(word) != page(lasting)));
        for word in many.into_iter().chain([lasting]) {
            give(word);
        }
        assert!(USERS.iter().all(|users| users.load(Ordering::Relaxed) == 0));
    }
}
