//! Walking through a program's buffers.

use libc::iovec;

use crate::Outcome;

/// A position in a list of buffers.
pub(crate) struct Cursor<'a> {
    parts: &'a [iovec],
    offset: usize,
    done: usize,
    remaining: usize,
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) fn new(parts: &'a [iovec]) -> Self {
        Self {
            parts,
            offset: 0,
            done: 0,
            remaining: total(parts),
        }
    }

    /// Bytes passed.
    #[inline(always)]
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// How a call ends that can go no further: with the bytes passed, or with this
    /// error if there are none.
    #[inline(always)]
    pub(crate) fn done_or(&self, errno: i32) -> Outcome {
        match self.done {
            0 => Outcome::Fail(errno),
            n => Outcome::Done(n as isize),
        }
    }

    /// Bytes to go.
    #[inline(always)]
    pub(crate) fn remaining(&self) -> usize {
        self.remaining
    }

    /// The rest of the current buffer; empty ones are passed over.
    #[inline]
    pub(crate) fn part(&mut self) -> Option<(*mut u8, usize)> {
        loop {
            let first = self.parts.first()?;
            if self.offset < first.iov_len {
                // SAFETY: `offset` is below the buffer's length here.
                let base = unsafe { first.iov_base.cast::<u8>().add(self.offset) };
                return Some((base, first.iov_len - self.offset));
            }
            self.parts = &self.parts[1..];
            self.offset = 0;
        }
    }

    /// Passes `n` bytes of the current buffer.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        self.offset += n;
        self.done += n;
        self.remaining -= n;
    }

    /// Passes `n` bytes, across buffers.
    pub(crate) fn skip(&mut self, mut n: usize) {
        while n > 0 {
            let Some((_, length)) = self.part() else {
                return;
            };
            self.advance(n.min(length));
            n -= n.min(length);
        }
    }

    /// What is left of each buffer.
    #[inline]
    pub(crate) fn rest(&self) -> impl Iterator<Item = (*mut u8, usize)> + use<'a> {
        let mut skip = self.offset;
        self.parts.iter().map(move |part| {
            let skipped = std::mem::take(&mut skip);
            // SAFETY: at most the length of the first buffer, then 0.
            let base = unsafe { part.iov_base.cast::<u8>().add(skipped) };
            (base, part.iov_len - skipped)
        })
    }

    /// The only buffer, of which no byte has been passed.
    #[inline]
    pub(crate) fn single(&self) -> Option<(*mut u8, usize)> {
        match self.parts {
            [one] if self.done == 0 && one.iov_len > 0 => Some((one.iov_base.cast(), one.iov_len)),
            _ => None,
        }
    }

    /// All buffers, of which no byte has been passed.
    pub(crate) fn all(&self) -> &'a [iovec] {
        debug_assert_eq!(self.done, 0);
        self.parts
    }

    /// The buffers still to go, as far as `to` holds them; returns how many.
    pub(crate) fn copy_rest(&self, to: &mut [iovec]) -> usize {
        let mut count = 0;
        let mut skip = self.offset;
        for part in self.parts {
            if count == to.len() {
                break;
            }
            // SAFETY: `skip` is at most the length of the first buffer, then 0.
            let base = unsafe { part.iov_base.cast::<u8>().add(skip) }.cast();
            to[count] = iovec {
                iov_base: base,
                iov_len: part.iov_len - skip,
            };
            skip = 0;
            count += usize::from(to[count].iov_len > 0);
        }
        count
    }
}

/// Bytes in all buffers.
#[inline]
pub(crate) fn total(parts: &[iovec]) -> usize {
    parts
        .iter()
        .fold(0usize, |sum, p| sum.saturating_add(p.iov_len))
}
