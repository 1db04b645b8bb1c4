//! How many processes hold a socket that went through a fork.
//!
//! A direction may change its way only while nobody is inside a real call on the
//! base socket, and a process sees only its own threads. So a connection that a
//! fork has shared waits until one process holds it alone, as a server does
//! whose parent accepts and whose children serve. A holder that was killed, or
//! went on as another program that has the socket too, counts until shuntd has found that nobody
//! else has it ([`crate::upgrade`]).
//!
//! The counts are words in pages that relatives share. What a killed process has counted is never
//! taken back, so a page is not used for ever: sockets that a fork shares for the first time get
//! words in a page that no relative has yet, and where no socket of this process has a word any more,
//! a new page takes the place of the old one, which the kernel gives back with its last holder. So
//! no relative can write the count of a socket that it has never had, either.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

mod page;

pub(crate) use page::{after_fork_child, before_fork};

/// A socket's word in memory that relatives share; null while no other process has it.
#[derive(Default)]
pub(crate) struct Share(AtomicPtr<AtomicU32>);

impl Share {
    fn word(&self) -> Option<&'static AtomicU32> {
        // SAFETY: null, or a word in a page: another page may take its place, but it stays memory.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }
    }

    /// The socket has no word any more; what was said there stays.
    pub(crate) fn clear(&self) {
        self.give_up(|_| ());
    }

    fn give_up(&self, last: impl FnOnce(&AtomicU32)) {
        let word = self.0.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: as in `word`.
        if let Some(word) = unsafe { word.as_ref() } {
            last(word);
            page::give(word);
        }
    }

    /// Another process is about to have the socket too. `false`: no room to count.
    pub(crate) fn before_fork(&self) -> bool {
        if let Some(word) = self.word() {
            word.fetch_add(1, Ordering::AcqRel);
            return true;
        }
        let fresh = page::take();
        if let Some(word) = fresh {
            word.store(2, Ordering::Release);
            self.0
                .store(ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
        }
        fresh.is_some()
    }

    /// Whether other processes may have the socket.
    pub(crate) fn is_shared(&self) -> bool {
        let alone = self
            .word()
            .is_none_or(|word| word.load(Ordering::Acquire) == 1);
        if alone {
            self.leave();
        }
        !alone
    }

    /// Whether nobody counts who has the socket: it has no word.
    pub(crate) fn is_unknown(&self) -> bool {
        self.word().is_none()
    }

    /// This process has it alone, whatever the count says of those that were killed or are
    /// other programs by now.
    pub(crate) fn settle(&self) {
        self.clear();
    }

    /// This process has it no more, and is in no call on it.
    pub(crate) fn leave(&self) {
        self.give_up(|word| {
            word.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

/// A flag that relatives have in common: down until one of them raises it.
#[derive(Default)]
pub(crate) struct Flag(AtomicPtr<AtomicU32>);

impl Flag {
    fn word(&self) -> Option<&'static AtomicU32> {
        // SAFETY: null, or a word in a page.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }
    }

    /// Another process is about to have it, too.
    pub(crate) fn before_fork(&self) {
        if self.is_unknown()
            && let Some(word) = page::take()
        {
            let word = ptr::from_ref(word).cast_mut();
            self.0.store(word, Ordering::Relaxed);
        }
    }

    /// Whether no relative has it.
    #[inline]
    pub(crate) fn is_unknown(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Raises it. `true`: it was down.
    pub(crate) fn raise(&self) -> bool {
        self.word()
            .is_some_and(|word| word.swap(1, Ordering::AcqRel) == 0)
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.word()
            .is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }

    /// This process has it no more.
    pub(crate) fn clear(&self) {
        let word = self.0.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: as in `word`.
        if let Some(word) = unsafe { word.as_ref() } {
            page::give(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_shared_from_a_fork_on_until_one_process_has_it_alone() {
        let _alone = crate::both_ends::one_at_a_time();
        let share = Share::default();
        assert!(share.is_unknown() && !share.is_shared());
        assert!(share.before_fork() && share.is_shared() && !share.is_unknown());
        // The child's word is the same one.
        let childs = Share(AtomicPtr::new(share.0.load(Ordering::Relaxed)));
        childs.word().unwrap().fetch_sub(1, Ordering::AcqRel);
        assert!(!share.is_shared() && share.is_unknown());
    }

    #[test]
    fn each_fork_counts_one_process_more() {
        let _alone = crate::both_ends::one_at_a_time();
        let share = Share::default();
        assert!(share.before_fork() && share.before_fork());
        let word = share.word().unwrap();
        assert_eq!(word.load(Ordering::Relaxed), 3);
        share.leave();
        assert_eq!(
            (word.load(Ordering::Relaxed), share.is_unknown()),
            (2, true)
        );
    }

    #[test]
    fn who_is_found_to_have_it_alone_counts_nobody() {
        let _alone = crate::both_ends::one_at_a_time();
        let share = Share::default();
        share.before_fork();
        share.settle();
        assert!(share.is_unknown() && !share.is_shared());
    }
}
