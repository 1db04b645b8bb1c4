//! How many processes hold a socket that went through a fork.
//!
//! A direction may change its way only while nobody is inside a real call on the
//! base socket, and a process sees only its own threads. So a connection that a
//! fork has shared waits until one process holds it alone, as a server does
//! whose parent accepts and whose children serve. A holder that was killed, or
//! went on as another program that has the socket too, counts until shuntd has found that nobody
//! else has it ([`crate::stream::again`]).

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys;

/// Sockets that can be shared at a time, in all processes of one ancestry.
const WORDS: usize = 1024;

/// Memory that forked relatives share: holders by number; 0 is free.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// A socket's number in that memory, plus 1; 0 while no other process has it.
#[derive(Default)]
pub(crate) struct Share(AtomicU32);

fn words() -> Option<&'static [AtomicU32]> {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: `before_fork` mapped as many words, zeroed; they are never unmapped.
    (!page.is_null()).then(|| unsafe { std::slice::from_raw_parts(page, WORDS) })
}

impl Share {
    fn word(&self) -> Option<&'static AtomicU32> {
        let number = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        words()?.get(number as usize)
    }

    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Another process is about to have the socket too. `false`: no room to count.
    pub(crate) fn before_fork(&self) -> bool {
        if let Some(word) = self.word() {
            word.fetch_add(1, Ordering::AcqRel);
            return true;
        }
        if PAGE.load(Ordering::Acquire).is_null() {
            let new = sys::map_shared(WORDS * size_of::<AtomicU32>()).cast::<AtomicU32>();
            let old = std::ptr::null_mut();
            let o = (Ordering::AcqRel, Ordering::Acquire);
            if !new.is_null() && PAGE.compare_exchange(old, new, o.0, o.1).is_err() {
                sys::unmap(new.cast(), WORDS * size_of::<AtomicU32>());
            }
        }
        let free = words().and_then(|words| {
            words.iter().position(|word| {
                word.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
        });
        if let Some(free) = free {
            self.0.store(free as u32 + 1, Ordering::Relaxed);
        }
        free.is_some()
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

    /// Whether nobody counts.
    pub(crate) fn is_unknown(&self) -> bool {
        self.word().is_none()
    }

    /// This process has it alone, whatever the count says of those that were killed or are
    /// other programs by now.
    pub(crate) fn settle(&self) {
        if let Some(word) = self.word() {
            self.clear();
            word.store(0, Ordering::Release);
        }
    }

    /// This process has it no more, and is in no call on it.
    pub(crate) fn leave(&self) {
        if let Some(word) = self.word() {
            self.clear();
            word.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
