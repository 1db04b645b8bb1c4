//! The bytes of a ring, addressed by offset. Never behind a slice: the peer may
//! change its own ring at any time, so bytes are copied through raw pointers. The
//! other side of a copy is the program's, which may have given us a bad address.

use crate::atomic::AtomicU64;

/// The program's memory is not there, or may not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBuffer;

/// A ring's memory: `size` bytes at `words`, aligned to 8.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    words: *const AtomicU64,
    size: u32,
}

// SAFETY: shared memory; words are atomics, payload bytes are guarded by the
// ring's protocol.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory of `size` bytes, a multiple of 8.
    ///
    /// # Safety
    /// `words` is valid for `size` bytes for as long as the value is used.
    #[must_use]
    pub unsafe fn new(words: *const AtomicU64, size: u32) -> Self {
        debug_assert!(size.is_multiple_of(8));
        Self { words, size }
    }

    /// Its size in bytes.
    #[inline(always)]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The word at a byte offset.
    #[inline(always)]
    #[must_use]
    pub fn word(&self, offset: u32) -> &AtomicU64 {
        assert!(offset < self.size && offset.is_multiple_of(8));
        // SAFETY: checked above to be inside the ring, and aligned.
        unsafe { &*self.words.add(offset as usize / 8) }
    }

    /// The word at a byte offset that is known to be in the ring.
    ///
    /// # Safety
    /// It is below the size, and a multiple of 8.
    #[inline(always)]
    #[must_use]
    pub unsafe fn word_within(&self, offset: u32) -> &AtomicU64 {
        debug_assert!(offset < self.size && offset.is_multiple_of(8));
        // SAFETY: the caller's promise.
        unsafe { &*self.words.add(offset as usize / 8) }
    }

    /// Where the byte at `offset` is, for system calls that fill or drain the ring.
    #[cfg(not(model))]
    #[must_use]
    pub fn at(&self, offset: u32) -> *mut u8 {
        assert!(offset <= self.size);
        // SAFETY: inside or one past the end.
        unsafe { self.start().add(offset as usize) }
    }

    #[cfg(not(model))]
    #[inline(always)]
    fn start(&self) -> *mut u8 {
        self.words.cast::<u8>().cast_mut()
    }

    /// Copies into the ring.
    ///
    /// # Errors
    /// [`BadBuffer`]; then the bytes in the ring are garbage.
    ///
    /// # Safety
    /// `source` is readable for `n` bytes, or a fault there is sent to
    /// [`crate::copy::fix_up`]; this side writes the ring and holds its sending
    /// token, and `offset..offset + n` is free.
    #[inline(always)]
    pub unsafe fn copy_in(
        &self,
        offset: u32,
        source: *const u8,
        n: usize,
    ) -> Result<(), BadBuffer> {
        assert!(offset as usize + n <= self.size as usize);
        // SAFETY: checked bounds; the caller vouches for the rest.
        unsafe { self.copy_in_within(offset, source, n) }
    }

    /// [`Self::copy_in`] where the caller knows that the bytes fit.
    ///
    /// # Errors
    /// As for [`Self::copy_in`].
    ///
    /// # Safety
    /// As for [`Self::copy_in`], and `offset + n` is at most the size.
    #[inline(always)]
    pub unsafe fn copy_in_within(
        &self,
        offset: u32,
        source: *const u8,
        n: usize,
    ) -> Result<(), BadBuffer> {
        debug_assert!(offset as usize + n <= self.size as usize);
        #[cfg(not(model))]
        // SAFETY: the caller's promise.
        if unsafe { crate::copy::copy(self.start().add(offset as usize), source, n) } != 0 {
            return Err(BadBuffer);
        }
        #[cfg(model)]
        for i in 0..n {
            if i % 8 == 0 && n - i >= 8 && offset % 8 == 0 {
                // Whole words keep the model small.
                // SAFETY: the caller's promise.
                let value = unsafe { source.add(i).cast::<u64>().read_unaligned() };
                self.word(offset + i as u32)
                    .store(value, crate::atomic::Ordering::Relaxed);
            }
            if n - i / 8 * 8 >= 8 && offset % 8 == 0 {
                continue;
            }
            let (word, shift) = self.byte(offset + i as u32);
            // SAFETY: the caller's promise.
            let byte = u64::from(unsafe { *source.add(i) });
            let old = word.load(crate::atomic::Ordering::Relaxed);
            word.store(
                old & !(0xff << shift) | byte << shift,
                crate::atomic::Ordering::Relaxed,
            );
        }
        Ok(())
    }

    /// Copies out of the ring. A peer that breaks the protocol can make the
    /// bytes garbage, nothing else.
    ///
    /// # Errors
    /// [`BadBuffer`]; then part of the target may have been filled.
    ///
    /// # Safety
    /// `target` is writable for `n` bytes, or a fault there is sent to
    /// [`crate::copy::fix_up`].
    #[inline(always)]
    pub unsafe fn copy_out(&self, offset: u32, target: *mut u8, n: usize) -> Result<(), BadBuffer> {
        assert!(offset as usize + n <= self.size as usize);
        // SAFETY: checked bounds; the caller vouches for the target.
        unsafe { self.copy_out_within(offset, target, n) }
    }

    /// [`Self::copy_out`] where the caller knows that the bytes lie within the ring.
    ///
    /// # Errors
    /// As for [`Self::copy_out`].
    ///
    /// # Safety
    /// As for [`Self::copy_out`], and `offset + n` is at most the size.
    #[inline(always)]
    pub unsafe fn copy_out_within(
        &self,
        offset: u32,
        target: *mut u8,
        n: usize,
    ) -> Result<(), BadBuffer> {
        debug_assert!(offset as usize + n <= self.size as usize);
        #[cfg(not(model))]
        // SAFETY: the caller's promise.
        if unsafe { crate::copy::copy(target, self.start().add(offset as usize), n) } != 0 {
            return Err(BadBuffer);
        }
        #[cfg(model)]
        for i in 0..n {
            if i % 8 == 0 && n - i >= 8 && offset % 8 == 0 {
                let value = self
                    .word(offset + i as u32)
                    .load(crate::atomic::Ordering::Relaxed);
                // SAFETY: the caller's promise.
                unsafe { target.add(i).cast::<u64>().write_unaligned(value) };
            }
            if n - i / 8 * 8 >= 8 && offset % 8 == 0 {
                continue;
            }
            let (word, shift) = self.byte(offset + i as u32);
            // SAFETY: the caller's promise.
            unsafe {
                *target.add(i) = (word.load(crate::atomic::Ordering::Relaxed) >> shift) as u8
            };
        }
        Ok(())
    }

    #[cfg(model)]
    fn byte(&self, offset: u32) -> (&AtomicU64, u32) {
        (self.word(offset & !7), (offset & 7) * 8)
    }
}
