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

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<const N: usize>(lengths: [usize; N]) -> [iovec; N] {
        let mut at = 0x1000;
        lengths.map(|iov_len| {
            let iov_base = std::ptr::without_provenance_mut(at);
            at += 0x1000;
            iovec { iov_base, iov_len }
        })
    }

    fn at(part: Option<(*mut u8, usize)>) -> Option<(usize, usize)> {
        part.map(|(base, length)| (base.addr(), length))
    }

    #[test]
    fn empty_buffers_are_passed_over() {
        let parts = parts([0, 5, 0, 3]);
        let mut cursor = Cursor::new(&parts);
        assert_eq!(at(cursor.part()), Some((0x2000, 5)));
        cursor.advance(5);
        assert_eq!(at(cursor.part()), Some((0x4000, 3)));
        cursor.advance(3);
        assert_eq!(at(cursor.part()), None);
    }

    #[test]
    fn a_part_begins_where_the_last_one_ended() {
        let parts = parts([10]);
        let mut cursor = Cursor::new(&parts);
        cursor.advance(4);
        assert_eq!(at(cursor.part()), Some((0x1004, 6)));
        assert_eq!((cursor.done(), cursor.remaining()), (4, 6));
    }

    #[test]
    fn bytes_are_skipped_across_buffers_and_never_beyond_the_last() {
        let parts = parts([4, 4, 4]);
        let mut cursor = Cursor::new(&parts);
        cursor.skip(6);
        assert_eq!(at(cursor.part()), Some((0x2002, 2)));
        cursor.skip(100);
        assert_eq!((cursor.done(), cursor.remaining()), (12, 0));
    }

    #[test]
    fn a_call_that_has_moved_bytes_does_not_fail() {
        let parts = parts([4]);
        let mut cursor = Cursor::new(&parts);
        assert_eq!(cursor.done_or(libc::EAGAIN), Outcome::Fail(libc::EAGAIN));
        cursor.advance(1);
        assert_eq!(cursor.done_or(libc::EAGAIN), Outcome::Done(1));
    }

    #[test]
    fn only_an_untouched_single_buffer_is_single() {
        let one = parts([4]);
        let mut cursor = Cursor::new(&one);
        assert_eq!(at(cursor.single()), Some((0x1000, 4)));
        cursor.advance(1);
        assert_eq!(at(cursor.single()), None);
        assert!(Cursor::new(&parts([0])).single().is_none());
        assert!(Cursor::new(&parts([1, 1])).single().is_none());
    }

    #[test]
    fn the_rest_is_copied_without_empty_buffers_as_far_as_there_is_room() {
        let parts = parts([4, 0, 4, 4]);
        let mut cursor = Cursor::new(&parts);
        cursor.skip(1);
        let nowhere = iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let mut rest = [nowhere; 2];
        assert_eq!(cursor.copy_rest(&mut rest), 2);
        let copied = rest.map(|part| (part.iov_base.addr(), part.iov_len));
        assert_eq!(copied, [(0x1001, 3), (0x3000, 4)]);
    }

    #[test]
    fn what_is_left_of_each_buffer_is_told_in_order() {
        let parts = parts([4, 2]);
        let mut cursor = Cursor::new(&parts);
        cursor.advance(3);
        let rest: Vec<_> = cursor.rest().map(|part| at(Some(part))).collect();
        assert_eq!(rest, [Some((0x1003, 1)), Some((0x2000, 2))]);
    }

    #[test]
    fn lengths_that_cannot_be_added_up_are_the_most_there_is() {
        assert_eq!(total(&parts([usize::MAX, 2])), usize::MAX);
        assert_eq!(total(&[]), 0);
    }
}
