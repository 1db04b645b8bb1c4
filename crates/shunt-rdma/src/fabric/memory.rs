//! Registered memory, read and written word by word, as a NIC does beside the processor.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

#[derive(Clone, Copy)]
pub(super) struct Memory {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: only atomics are used on it.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    /// As `Transport::register` demands.
    pub(super) unsafe fn new(base: *mut u8, bytes: usize) -> Self {
        assert!(base.addr().is_multiple_of(8) && bytes.is_multiple_of(8));
        Self { base, bytes }
    }

    /// Where it begins, and what is behind it.
    pub(super) fn contains(&self, address: u64, bytes: usize) -> bool {
        let start = self.base as u64;
        address >= start
            && address.is_multiple_of(8)
            && address - start <= self.bytes as u64
            && bytes as u64 <= self.bytes as u64 - (address - start)
    }

    /// The word at an offset; `None`: there is none.
    pub(super) fn load(&self, offset: usize) -> Option<u64> {
        let is_inside = offset.is_multiple_of(8) && offset < self.bytes;
        is_inside.then(|| {
            // SAFETY: the word lies in registered memory (`bytes` is a multiple of 8), is aligned, and nobody has a reference
            // to it that is not atomic.
            let word = unsafe { &*self.base.add(offset).cast::<AtomicU64>() };
            word.load(Ordering::Relaxed)
        })
    }

    /// Stores the first `bytes` (1 to 8) of a word at an address that [`Self::contains`] them.
    pub(super) fn store(&self, address: u64, word: u64, bytes: usize) {
        assert!(self.contains(address, bytes));
        let at = (address - self.base as u64) as usize;
        if bytes == 8 {
            // SAFETY: the word lies in this memory and is aligned (`contains`); it is used by atomics only.
            let place = unsafe { &*self.base.add(at).cast::<AtomicU64>() };
            place.store(word, Ordering::Relaxed);
            return;
        }
        for (i, byte) in word.to_le_bytes().into_iter().enumerate().take(bytes) {
            // SAFETY: the byte lies in this memory (`contains`), a byte is always aligned, and it is used by atomics only.
            let place = unsafe { &*self.base.add(at + i).cast::<AtomicU8>() };
            place.store(byte, Ordering::Relaxed);
        }
    }
}
