//! The receiving half.
//!
//! Its private state lies in this side's arena, where relatives that share the connection since a fork write it, too.
//! So it is checked like what the peer writes: a wrong word ends the connection.

use super::{BadBuffer, Fault, HEADER, Kind, Memory, Position, Stopped, WORTHWHILE, header};
use crate::atomic::{Ordering, light};
use crate::publish;
use crate::slot::{Progress, Receiving};

/// Laps without a byte in them: as many as can be in flight.
const MOST_JUMPS: u32 = 4;

/// What reading found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// This many bytes, at least one.
    Bytes(usize),
    /// Nothing.
    Empty,
    /// The ring has ended; the stream goes on over TCP at this offset.
    Back(u64),
}

/// The receiving half. Holding one means holding the receiving token.
#[derive(Debug)]
pub struct Consumer<'a> {
    /// The peer's ring: not trusted.
    pub memory: Memory,
    /// Our private state.
    pub receiving: &'a Receiving,
    /// Our published credit.
    pub progress: &'a Progress,
}

impl Consumer<'_> {
    /// How far the stream is read, and what is left of the frame there: the place of a header, or
    /// payload that lies in the ring with a header behind it.
    #[inline(always)]
    fn at(&self) -> Result<(Position, u32), Fault> {
        let r = self.receiving;
        let at = Position::unpack(r.read.load(Ordering::Relaxed));
        let left = r.left.load(Ordering::Relaxed);
        let end = u64::from(at.offset) + u64::from(left);
        let is_place = end <= u64::from(self.memory.size() - HEADER)
            && (left != 0 || at.offset.is_multiple_of(8));
        is_place.then_some((at, left)).ok_or(Fault)
    }

    /// Copies up to `length` bytes to `target` (nowhere if it is null) and
    /// takes them from the stream unless `peek`.
    ///
    /// # Errors
    /// If the peer wrote an impossible frame, or the target is bad.
    ///
    /// # Safety
    /// As [`Memory::copy_out`] demands of the target, unless it is null.
    #[inline]
    pub unsafe fn read(
        &self,
        target: *mut u8,
        length: usize,
        peek: bool,
    ) -> Result<Found, Stopped> {
        // SAFETY: the caller's promise.
        unsafe { self.read_parts([(target, length)], peek) }
    }

    /// [`Self::read`] into several buffers, filled in order. A frame that does not fit whole into a
    /// bad buffer stays in the stream.
    ///
    /// # Errors
    /// As for [`Self::read`]; a bad buffer only if nothing came before it.
    ///
    /// # Safety
    /// As for [`Self::read`], of every part.
    #[inline]
    pub unsafe fn read_parts(
        &self,
        parts: impl IntoIterator<Item = (*mut u8, usize)>,
        peek: bool,
    ) -> Result<Found, Stopped> {
        let (mut at, mut left) = self.at()?;
        let before = self.progress.bytes.load(Ordering::Relaxed);
        let mut advanced = (at, left);
        let mut done = 0;
        let mut parts = parts.into_iter();
        let (mut target, mut length) = (std::ptr::null_mut::<u8>(), 0);
        // Up to here all frames are whole: where a bad buffer takes us back to.
        let mut whole = (at, left, 0);
        loop {
            if length == 0 {
                let Some(part) = parts.next() else {
                    break;
                };
                (target, length) = part;
                continue;
            }
            if left == 0 {
                match self.next(&mut at)? {
                    Next::Data(n) => left = n,
                    Next::Back(offset) if done == 0 => return Ok(Found::Back(offset)),
                    Next::None | Next::Back(_) => break,
                }
            }
            let n = (left as usize).min(length);
            if !target.is_null() {
                // SAFETY: `frame` checked that the payload lies in the ring; the
                // caller vouches for the target.
                if unsafe { self.memory.copy_out(at.offset, target, n) } == Err(BadBuffer) {
                    (at, left, done) = whole;
                    if done == 0 {
                        return Err(Stopped::BadBuffer(0));
                    }
                    break;
                }
                target = target.wrapping_add(n);
            }
            done += n;
            length -= n;
            at.offset += n as u32;
            left -= n as u32;
            if left == 0 {
                at.offset = at.offset.next_multiple_of(8);
                whole = (at, left, done);
            }
            if !peek && length > 0 {
                // Free a large frame as it is read, so that the producer goes on.
                self.advance(at, left, before + done as u64);
                advanced = (at, left);
            }
        }
        if !peek && advanced != (at, left) {
            self.advance(at, left, before + done as u64);
        }
        Ok(if done == 0 {
            Found::Empty
        } else {
            Found::Bytes(done)
        })
    }

    /// Takes bytes from one frame, in few instructions, where these fill the buffer or
    /// nothing follows. `None`, as if the buffer is bad: nothing has happened.
    ///
    /// # Safety
    /// As for [`Self::read`], of a target that is not null.
    #[inline(always)]
    pub unsafe fn read_short(
        &self,
        target: *mut u8,
        length: usize,
    ) -> Option<Result<usize, BadBuffer>> {
        let r = self.receiving;
        let mut at = Position::unpack(r.read.load(Ordering::Relaxed));
        let mut left = r.left.load(Ordering::Relaxed);
        // As in `at`, in fewer instructions.
        let last = self.memory.size() - HEADER;
        if left == 0 {
            if at.offset & 7 != 0 || at.offset > last {
                return None;
            }
            // SAFETY: a multiple of 8 in the ring.
            let word = unsafe { self.memory.word_within(at.offset) }.load(Ordering::Acquire);
            left = self.payload(at, word)?;
            at.offset += HEADER;
        } else if u64::from(at.offset) + u64::from(left) > u64::from(last) {
            return None;
        }
        let n = (left as usize).min(length);
        let mut next = Position {
            offset: at.offset + n as u32,
            ..at
        };
        left -= n as u32;
        if left == 0 {
            next.offset = (next.offset + 7) & !7;
            // SAFETY: behind a frame there is a header.
            let behind = || unsafe { self.memory.word_within(next.offset) };
            if n < length && behind().load(Ordering::Relaxed) != 0 {
                return None;
            }
        }
        // SAFETY: the payload lies in the ring; the caller vouches for the target.
        if let Err(bad) = unsafe { self.memory.copy_out_within(at.offset, target, n) } {
            return Some(Err(bad));
        }
        let before = self.progress.bytes.load(Ordering::Relaxed);
        self.advance(next, left, before + n as u64);
        Some(Ok(n))
    }

    /// Length of the payload behind the header `word` at `at`, if that is one of a
    /// payload that lies in the ring, with a header behind it.
    #[inline(always)]
    fn payload(&self, at: Position, word: u64) -> Option<u32> {
        let length = word.wrapping_sub(header(Kind::Data, 0));
        let most = self.memory.size().saturating_sub(at.offset + 2 * HEADER);
        (length.wrapping_sub(1) < u64::from(most)).then_some(length as u32)
    }

    /// Hands over up to `most` bytes where they lie in the ring; `take` says how
    /// many it has taken, or why none. `Ok(Ok(0))`: there are none, or the ring has ended.
    ///
    /// # Errors
    /// If the peer wrote an impossible frame.
    #[cfg(not(model))]
    pub fn drain<E>(
        &self,
        most: usize,
        take: impl FnOnce(*const u8, usize) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, Fault> {
        let r = self.receiving;
        let (mut at, mut left) = self.at()?;
        let mut jumps = 0;
        while left == 0 {
            match self.frame(at)? {
                Frame::None | Frame::Back(_) => return Ok(Ok(0)),
                Frame::Data(n) => {
                    left = n;
                    at.offset += HEADER;
                }
                Frame::Jump(_) if jumps == MOST_JUMPS => return Err(Fault),
                Frame::Jump(offset) => {
                    jumps += 1;
                    at = Position {
                        lap: at.lap.wrapping_add(1),
                        offset,
                    };
                }
            }
        }
        let offered = most.min(left as usize);
        r.unsure.store(1, Ordering::Relaxed);
        light();
        let taken = take(self.memory.at(at.offset), offered);
        light();
        let n = match taken {
            Ok(n) => n.min(offered),
            Err(refused) => {
                r.unsure.store(0, Ordering::Relaxed);
                return Ok(Err(refused));
            }
        };
        at.offset += n as u32;
        left -= n as u32;
        if left == 0 {
            at.offset = at.offset.next_multiple_of(8);
        }
        let bytes = self.progress.bytes.load(Ordering::Relaxed) + n as u64;
        self.advance(at, left, bytes);
        light();
        r.unsure.store(0, Ordering::Relaxed);
        Ok(Ok(n))
    }

    /// Takes everything up to `at` from the stream: final with the store of `mark`,
    /// and what follows that is for [`Self::repair`] to finish if need be.
    #[inline(always)]
    fn advance(&self, at: Position, left: u32, bytes: u64) {
        let r = self.receiving;
        r.total.store(bytes, Ordering::Relaxed);
        light();
        r.mark.store(mark(at, left), Ordering::Relaxed);
        light();
        self.advance_to(at, left, bytes);
    }

    #[inline(always)]
    fn advance_to(&self, at: Position, left: u32, bytes: u64) {
        self.progress.bytes.store(bytes, Ordering::Relaxed);
        self.receiving.left.store(left, Ordering::Relaxed);
        self.receiving.read.store(at.pack(), Ordering::Relaxed);
        publish::word(&self.progress.read, at.pack());
    }

    /// Finishes what another process had begun with the receiving token when it died:
    /// what it had taken is gone with it, and all the rest is still there. `false`: it
    /// was handing bytes on, and nobody knows how many.
    #[must_use]
    pub fn repair(&self) -> bool {
        let r = self.receiving;
        let last = Position::unpack(self.progress.read.load(Ordering::Relaxed));
        let word = r.mark.load(Ordering::Relaxed);
        let (at, left) = unmark(word, last.lap);
        // Published last, so otherwise all of it is done. What `total` says is not yet
        // true if the mark has not moved.
        if at != last {
            self.advance_to(at, left, r.total.load(Ordering::Relaxed));
        }
        r.unsure.swap(0, Ordering::Relaxed) == 0
    }

    /// Whether there is something to read or the ring has ended; mostly a look at
    /// one word. Needs no token: a look that loses a race is only early.
    #[inline(always)]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.receiving.left.load(Ordering::Relaxed) != 0 || self.next_kind() != 0
    }

    /// Bytes to read in the frame at hand: never none while [`Self::is_ready`] has
    /// payload to offer. Needs no token, like that.
    #[inline]
    #[must_use]
    pub fn at_hand(&self) -> u32 {
        match self.receiving.left.load(Ordering::Relaxed) {
            0 => match self.next_header() {
                (1, length) => length,
                _ => 0,
            },
            left => left,
        }
    }

    /// Whether the ring has ended here: the next frame sends us back to TCP.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.receiving.left.load(Ordering::Relaxed) == 0 && self.next_kind() == Kind::Back as u32
    }

    /// How far the stream is read, for [`Self::is_past`].
    #[inline]
    #[must_use]
    pub fn position(&self) -> u64 {
        self.receiving.read.load(Ordering::Relaxed)
    }

    /// The place behind all that is there, or behind the first of many frames. Needs
    /// no token.
    #[must_use]
    pub fn end(&self) -> u64 {
        const FRAMES: u32 = 16;
        let last = Position::unpack(self.receiving.read.load(Ordering::Relaxed));
        // One word, while another thread may be reading.
        let (mut at, left) = unmark(self.receiving.mark.load(Ordering::Relaxed), last.lap);
        at.offset = (at.offset + left).next_multiple_of(8);
        for _ in 0..FRAMES {
            if at.offset >= self.memory.size() {
                break;
            }
            match self.frame(at) {
                Ok(Frame::Data(n)) => at.offset = (at.offset + HEADER + n).next_multiple_of(8),
                Ok(Frame::Jump(offset)) => {
                    at = Position {
                        lap: at.lap.wrapping_add(1),
                        offset,
                    };
                }
                _ => break,
            }
        }
        at.pack()
    }

    /// Whether something has come since this was the end. Needs no token.
    #[inline]
    #[must_use]
    pub fn is_past(&self, end: u64) -> bool {
        let (read, end) = (Position::unpack(self.position()), Position::unpack(end));
        let laps = read.lap.wrapping_sub(end.lap) as i32;
        laps > 0 || laps == 0 && read.offset > end.offset || self.header_at(end.offset).0 != 0
    }

    /// Kind of the next frame that is no jump, 0 if it is not there yet: a jump
    /// alone is nothing to read.
    #[inline(always)]
    fn next_kind(&self) -> u32 {
        self.next_header().0
    }

    /// Kind and length of that frame.
    #[inline(always)]
    fn next_header(&self) -> (u32, u32) {
        self.header_at(Position::unpack(self.position()).offset)
    }

    #[inline(always)]
    fn header_at(&self, mut offset: u32) -> (u32, u32) {
        for _ in 0..=MOST_JUMPS {
            if !offset.is_multiple_of(8) || offset >= self.memory.size() {
                return (0, 0);
            }
            let word = self.memory.word(offset).load(Ordering::Acquire);
            let kind = (word >> 32) as u32;
            if kind != Kind::Jump as u32 {
                return (kind, word as u32);
            }
            offset = word as u32;
        }
        (0, 0)
    }

    /// The frame at `at` that is no jump. `at` moves past jumps, and past the header of a payload.
    #[inline(always)]
    fn next(&self, at: &mut Position) -> Result<Next, Fault> {
        for _ in 0..=MOST_JUMPS {
            match self.frame(*at)? {
                Frame::None => return Ok(Next::None),
                Frame::Data(n) => {
                    at.offset += HEADER;
                    return Ok(Next::Data(n));
                }
                Frame::Back(offset) => return Ok(Next::Back(offset)),
                Frame::Jump(offset) => {
                    at.lap = at.lap.wrapping_add(1);
                    at.offset = offset;
                }
            }
        }
        Err(Fault)
    }

    /// Reads and checks the header at `at`; the acquire pairs with the
    /// producer's publication of it. [`Fault`]: the producer wrote nonsense, and the connection ends like a reset.
    #[inline]
    fn frame(&self, at: Position) -> Result<Frame, Fault> {
        let size = self.memory.size();
        let word = self.memory.word(at.offset).load(Ordering::Acquire);
        if word == 0 {
            return Ok(Frame::None);
        }
        let (kind, length) = ((word >> 32) as u32, word as u32);
        let room = size - at.offset - HEADER;
        match kind {
            1 => self.payload(at, word).map(Frame::Data).ok_or(Fault),
            2 if length % 8 == 0 && length <= size - WORTHWHILE => Ok(Frame::Jump(length)),
            3 if room >= 16 => Ok(Frame::Back(
                self.memory.word(at.offset + HEADER).load(Ordering::Relaxed),
            )),
            _ => Err(Fault),
        }
    }
}

enum Frame {
    None,
    Data(u32),
    Jump(u32),
    Back(u64),
}

/// A frame that is no jump.
enum Next {
    None,
    Data(u32),
    Back(u64),
}

const MARK_BITS: u32 = 24;
const MARK_MASK: u32 = (1 << MARK_BITS) - 1;
const _: () = assert!(shunt_abi::layout::RING_BYTES < MARK_MASK as usize);

/// A place in the stream in one word: the low bits of the lap, what is left of the
/// frame, and the offset.
#[inline(always)]
fn mark(at: Position, left: u32) -> u64 {
    u64::from(at.lap) << (2 * MARK_BITS) | u64::from(left) << MARK_BITS | u64::from(at.offset)
}

/// The place, which is at most a few laps after `lap`.
fn unmark(word: u64, lap: u32) -> (Position, u32) {
    let steps = ((word >> (2 * MARK_BITS)) as u16).wrapping_sub(lap as u16);
    let at = Position {
        lap: lap.wrapping_add(u32::from(steps)),
        offset: word as u32 & MARK_MASK,
    };
    (at, (word >> MARK_BITS) as u32 & MARK_MASK)
}
