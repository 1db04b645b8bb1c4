//! The sending half.
//!
//! Its private state lies in its arena, where relatives write it, too, that share the connection since a fork. So
//! each word is checked that says where to write or how often to look: a wrong one ends the connection, and does no
//! harm outside of the ring.

use super::{BadBuffer, Fault, HEADER, Kind, Memory, Position, SMALL, Stopped, WORTHWHILE, header};
use crate::atomic::{AtomicU64, Ordering};
use crate::publish;
use crate::slot::{Output, Progress, Sending};

/// Always kept free behind the write position: a `Back` frame with its payload
/// and the header after it.
const RESERVE: u32 = 24;

/// Offsets from here on, in no ring.
const FAR: u32 = 1 << 31;

/// A ring whose consumer keeps pace starts over past this offset, to stay in
/// the cache.
const LARGE: u32 = 256 << 10;

/// A large copy is published in steps of this many bytes, so that both sides copy at once.
pub const STEP: usize = 16 << 10;

/// The sending half. Holding one means holding the sending token.
#[derive(Debug)]
pub struct Producer<'a, P> {
    /// Our ring.
    pub memory: Memory,
    /// Our private state.
    pub sending: &'a Sending,
    /// Our published counts.
    pub output: &'a Output,
    /// The peer's progress: written by the peer, not trusted.
    pub peer: &'a Progress,
    /// Backs the ring with memory up to this number of bytes; `false` if it cannot.
    pub populate: P,
}

impl<P: Fn(usize) -> bool> Producer<'_, P> {
    /// Publishes as much of `source` as fits and returns how much.
    ///
    /// # Errors
    /// If the peer's credit is impossible, or the source bad.
    ///
    /// # Safety
    /// As [`Memory::copy_in`] demands of the source.
    #[inline]
    pub unsafe fn write(&self, source: *const u8, length: usize) -> Result<usize, Stopped> {
        let mut done = 0;
        while done < length {
            let (room, mut at) = self.room((length - done).min(STEP))?;
            if room == 0 {
                break;
            }
            let n = room.min(length - done).min(STEP);
            // SAFETY: `room` says that the frame fits at `at`; the source holds `length`.
            unsafe { self.memory.copy_in(at.offset + HEADER, source.add(done), n) }
                .map_err(|BadBuffer| Stopped::BadBuffer(done))?;
            self.commit(&mut at, n);
            done += n;
        }
        Ok(done)
    }

    /// Publishes a small message as one frame, in few instructions, if that needs no look at the
    /// peer's progress. `None`: it does. Then nothing has happened, nor if the source is bad.
    ///
    /// # Safety
    /// As for [`Self::write`]; a message is smaller than the ring.
    #[inline(always)]
    pub unsafe fn write_short(
        &self,
        source: *const u8,
        length: u32,
    ) -> Option<Result<(), BadBuffer>> {
        let (at, next) = self.short_frame(length)?;
        // SAFETY: the frame is there; the source is the caller's.
        let copied = unsafe {
            self.memory
                .copy_in_within(at.offset + HEADER, source, length as usize)
        };
        if copied.is_ok() {
            // SAFETY: as above.
            unsafe { self.publish_short(at, length, next) };
        }
        Some(copied)
    }

    /// [`Self::write_short`] of a message whose `length` bytes lie in these parts. `None` also if another thread has shortened
    /// them meanwhile.
    ///
    /// # Safety
    /// As for [`Self::write_short`].
    #[inline]
    pub unsafe fn write_short_list(
        &self,
        parts: &[libc::iovec],
        length: u32,
    ) -> Option<Result<(), BadBuffer>> {
        let (at, next) = self.short_frame(length)?;
        let mut done = 0;
        for part in parts {
            // Another thread may have made the part longer since.
            let n = part.iov_len.min((length - done) as usize);
            let to = at.offset + HEADER + done;
            // SAFETY: the frame is there; the source is the caller's.
            let copied = unsafe { self.memory.copy_in_within(to, part.iov_base.cast(), n) };
            if copied.is_err() {
                return Some(copied);
            }
            done += n as u32;
        }
        if done < length {
            return None;
        }
        // SAFETY: as above.
        unsafe { self.publish_short(at, length, next) };
        Some(Ok(()))
    }

    /// Where a small frame with `length` bytes of payload begins and ends, if it and the header behind it are known to
    /// be free, without a look at the peer's progress.
    #[inline(always)]
    fn short_frame(&self, length: u32) -> Option<(Position, Position)> {
        let s = self.sending;
        let at = Position::unpack(s.write.load(Ordering::Relaxed));
        // One test for two faults: no multiple of 8, or so large that the sums below would overflow.
        if at.offset & (FAR | 7) != 0 {
            return None;
        }
        let next = Position {
            offset: at.offset + HEADER + ((length + 7) & !7),
            ..at
        };
        // What ends before `clear` lies in the ring.
        let clear = s.clear.load(Ordering::Relaxed).min(self.memory.size());
        (next.offset + RESERVE <= clear).then_some((at, next))
    }

    /// # Safety
    /// [`Self::short_frame`] has told of this frame, and its payload has been written.
    #[inline(always)]
    unsafe fn publish_short(&self, at: Position, length: u32, next: Position) {
        // SAFETY: the caller's promise.
        unsafe {
            let behind = self.memory.word_within(next.offset);
            self.publish(self.memory.word_within(at.offset), behind, length, next);
        }
    }

    /// The write position, where that is a place for a frame.
    fn at(&self) -> Result<Position, Fault> {
        let at = Position::unpack(self.sending.write.load(Ordering::Relaxed));
        let is_place = at.offset.is_multiple_of(8) && at.offset < self.memory.size();
        is_place.then_some(at).ok_or(Fault)
    }

    /// Room for one frame at the write position, at least one byte and as near
    /// to `want` as can be had at once; moves the write position to where the
    /// room is. The payload goes to `position.offset + 8` in the ring.
    ///
    /// # Errors
    /// [`Fault`] if the peer's credit is impossible, or this side's own words are.
    #[inline]
    pub fn room(&self, want: usize) -> Result<(usize, Position), Fault> {
        let s = self.sending;
        let mut at = self.at()?;
        if at.offset >= s.check.load(Ordering::Relaxed) {
            at = self.start_over(at)?;
        }
        let mut credit = Position::unpack(s.credit.load(Ordering::Relaxed));
        if !self.is_possible(at, credit) {
            credit = self.refresh(at)?;
        }
        let mut extent = self.extent(at, credit);
        let mut room = self.backed(at, extent, want);
        if room < want {
            credit = self.refresh(at)?;
            extent = self.extent(at, credit);
            room = self.backed(at, extent, want);
        }
        if room < want.min(WORTHWHILE as usize)
            && let Some(target) = self.best_gap(at, credit, room)
        {
            at = self.jump(at, target);
            extent = self.extent(at, credit);
            room = self.backed(at, extent, want);
        }
        let end = at.offset + HEADER + extent as u32 + RESERVE;
        let known = s.allocated.load(Ordering::Relaxed);
        let known = known.min(s.check.load(Ordering::Relaxed));
        s.clear.store(end.min(known), Ordering::Relaxed);
        Ok((room, at))
    }

    /// Whether there is free space at the write position that the system has no memory for.
    /// Backs that space if it can.
    #[cold]
    #[must_use]
    pub fn lacks_memory(&self) -> bool {
        let look = || {
            let at = self.at()?;
            let extent = self.extent(at, self.credit(at)?);
            Ok::<_, Fault>(extent > 0 && self.backed(at, extent, 1) == 0)
        };
        look().unwrap_or(false)
    }

    /// Where the payload goes in memory, if `at` is what [`Self::room`] said.
    #[cfg(not(model))]
    #[must_use]
    pub fn place(&self, at: Position) -> *mut u8 {
        self.memory.at(at.offset + HEADER)
    }

    /// Publishes `n` payload bytes that were placed where [`Self::room`] said.
    #[inline(always)]
    pub fn commit(&self, at: &mut Position, n: usize) {
        let next = Position {
            offset: at.offset + HEADER + (n as u32).next_multiple_of(8),
            ..*at
        };
        let behind = self.memory.word(next.offset);
        self.publish(self.memory.word(at.offset), behind, n as u32, next);
        *at = next;
    }

    /// Publishes the frame of `n` bytes at `here`; what follows begins at `next`, with
    /// the header `behind`.
    #[inline(always)]
    fn publish(&self, here: &AtomicU64, behind: &AtomicU64, n: u32, next: Position) {
        behind.store(0, Ordering::Relaxed);
        // Said first, for `repair`.
        let total = self.output.bytes.load(Ordering::Relaxed) + u64::from(n);
        self.sending.total.store(total, Ordering::Relaxed);
        publish::word(here, header(Kind::Data, n));
        // After the frame: a reader that believes the count finds the bytes.
        publish::word(&self.output.bytes, total);
        self.sending.write.store(next.pack(), Ordering::Release);
    }

    /// Tells the consumer that the stream goes on over TCP at this offset.
    /// There is always room for that.
    ///
    /// # Errors
    /// [`Fault`] if this side's own words are impossible.
    pub fn leave(&self, tcp_offset: u64) -> Result<(), Fault> {
        let at = self.at()?;
        if at.offset + RESERVE > self.memory.size() {
            return Err(Fault);
        }
        self.memory
            .word(at.offset + HEADER)
            .store(tcp_offset, Ordering::Relaxed);
        self.memory
            .word(at.offset + HEADER + 8)
            .store(0, Ordering::Relaxed);
        publish::word(self.memory.word(at.offset), header(Kind::Back, 8));
        self.sending.write.store(
            Position {
                offset: at.offset + HEADER + 8,
                ..at
            }
            .pack(),
            Ordering::Relaxed,
        );
        Ok(())
    }

    /// Finishes what another process had begun with the sending token when it died.
    /// Each operation becomes final as it publishes its header; the write position
    /// moves after that. `true`: it was leaving the ring.
    pub fn repair(&self) -> bool {
        self.sending.clear.store(0, Ordering::Relaxed);
        let Ok(at) = self.at() else {
            return false; // Whoever sends next finds that out.
        };
        let word = self.memory.word(at.offset).load(Ordering::Relaxed);
        let (kind, length) = ((word >> 32) as u32, word as u32);
        let next = match kind {
            1 => {
                let total = self.sending.total.load(Ordering::Relaxed);
                publish::word(&self.output.bytes, total);
                Position {
                    offset: (at.offset + HEADER).wrapping_add(length.wrapping_add(7) & !7),
                    ..at
                }
            }
            2 => Position {
                lap: at.lap.wrapping_add(1),
                offset: length,
            },
            3 => Position {
                offset: at.offset + HEADER + 8,
                ..at
            },
            _ => at,
        };
        self.sending.write.store(next.pack(), Ordering::Release);
        kind == Kind::Back as u32
    }

    /// Whether a third of the ring is free, like `sk_stream_is_writeable` in the
    /// kernel, and not only in pieces too small to use. A look without the token.
    ///
    /// Counts what frames take, not their payload: small ones are mostly header.
    pub fn has_room(&self) -> bool {
        let look = || {
            let at = self.at()?;
            Ok::<_, Fault>(self.is_roomy(at, self.credit(at)?))
        };
        look().unwrap_or(true)
    }

    /// Whether half of the ring was free when the peer's credit was last read: no look
    /// at what the peer writes. There may be room if not.
    pub fn had_room(&self) -> bool {
        let Ok(at) = self.at() else {
            return false;
        };
        let credit = Position::unpack(self.sending.credit.load(Ordering::Relaxed));
        self.is_possible(at, credit)
            && self.taken(at, credit) <= self.memory.size() / 2
            && self.extent(at, credit) >= WORTHWHILE as usize
    }

    fn is_roomy(&self, at: Position, credit: Position) -> bool {
        let size = self.memory.size();
        self.taken(at, credit) <= size - size / 3
            && (self.extent(at, credit) >= WORTHWHILE as usize
                || self.best_gap(at, credit, 0).is_some())
    }

    /// Bytes of the ring that the peer has still to read, headers included.
    fn taken(&self, at: Position, credit: Position) -> u32 {
        let mut taken = 0;
        let mut lap = credit.lap;
        while lap != at.lap {
            let (start, end) = self.segment(lap, credit);
            taken = end.saturating_sub(start).saturating_add(taken);
            lap = lap.wrapping_add(1);
        }
        let (start, _) = self.segment(at.lap, credit);
        at.offset.saturating_sub(start).saturating_add(taken)
    }

    /// Reads the peer's credit. Acquire: pairs with the consumer's publication,
    /// so its copies out of the freed bytes are done.
    fn refresh(&self, at: Position) -> Result<Position, Fault> {
        let credit = self.credit(at)?;
        self.sending.credit.store(credit.pack(), Ordering::Relaxed);
        Ok(credit)
    }

    fn credit(&self, at: Position) -> Result<Position, Fault> {
        let credit = Position::unpack(self.peer.read.load(Ordering::Acquire));
        if self.is_possible(at, credit) {
            Ok(credit)
        } else {
            Err(Fault)
        }
    }

    fn is_possible(&self, at: Position, credit: Position) -> bool {
        let laps = at.lap.wrapping_sub(credit.lap);
        laps <= 3
            && credit.offset <= self.memory.size()
            && (laps != 0 || credit.offset <= at.offset)
    }

    /// Start and end of a lap in flight before `at`'s, as far as it is unread.
    fn segment(&self, lap: u32, credit: Position) -> (u32, u32) {
        let p = Position::unpack(self.sending.segments[lap as usize % 4].load(Ordering::Relaxed));
        let start = if lap == credit.lap {
            p.lap.max(credit.offset & !7)
        } else {
            p.lap
        };
        (start, p.offset)
    }

    /// First offset at or above `from` that is in flight in a lap before `at`'s.
    fn next_in_flight(&self, from: u32, at: Position, credit: Position) -> u32 {
        let mut end = self.memory.size();
        let mut lap = credit.lap;
        while lap != at.lap {
            let (start, _) = self.segment(lap, credit);
            if start >= from {
                end = end.min(start);
            }
            lap = lap.wrapping_add(1);
        }
        end
    }

    /// Payload bytes that fit in one frame at `at`.
    #[inline]
    fn extent(&self, at: Position, credit: Position) -> usize {
        let end = if at.lap == credit.lap {
            self.memory.size()
        } else {
            self.next_in_flight(at.offset, at, credit)
        };
        ((end - at.offset).saturating_sub(HEADER + RESERVE) & !7) as usize
    }

    /// The part of `extent`, up to `want`, that has memory behind it.
    #[inline]
    fn backed(&self, at: Position, extent: usize, want: usize) -> usize {
        let n = extent.min(want);
        let end = at.offset as usize + (HEADER + RESERVE) as usize + n.next_multiple_of(8);
        let allocated = self.sending.allocated.load(Ordering::Relaxed) as usize;
        if end <= allocated || n == 0 {
            return n;
        }
        let size = self.memory.size() as usize;
        let target = end.next_power_of_two().max(4096).min(size);
        if (self.populate)(target) {
            self.sending
                .allocated
                .store(target as u32, Ordering::Relaxed);
            return n;
        }
        let there = allocated.saturating_sub(at.offset as usize + (HEADER + RESERVE) as usize);
        n.min(there & !7)
    }

    /// Moves to offset 0 if the consumer has kept pace, otherwise says when to
    /// ask again.
    #[cold]
    fn start_over(&self, at: Position) -> Result<Position, Fault> {
        let credit = self.refresh(at)?;
        let drained = credit == at;
        let keeping_pace = at.lap == credit.lap && at.offset >= LARGE && credit.offset >= LARGE / 2;
        if drained || keeping_pace {
            let start = Position::unpack(
                self.sending.segments[at.lap as usize % 4].load(Ordering::Relaxed),
            )
            .lap;
            // Offset 0 up to here is free only if this lap began there or all is read.
            if drained || start == 0 {
                return Ok(self.jump(at, 0));
            }
        }
        let pause = if at.offset < 64 << 10 {
            SMALL
        } else {
            16 << 10
        };
        self.sending
            .check
            .store(at.offset + pause, Ordering::Relaxed);
        Ok(at)
    }

    /// The free gap that is best to jump to, if it beats staying.
    #[cold]
    fn best_gap(&self, at: Position, credit: Position, room: usize) -> Option<u32> {
        let laps = at.lap.wrapping_sub(credit.lap);
        if laps >= 3 {
            return None;
        }
        let own =
            Position::unpack(self.sending.segments[at.lap as usize % 4].load(Ordering::Relaxed))
                .lap;
        let own = (
            if laps == 0 {
                own.max(credit.offset & !7)
            } else {
                own
            },
            at.offset + HEADER,
        );
        let mut best = (room as u32 + HEADER + RESERVE).max(WORTHWHILE);
        let mut target = None;
        let mut consider = |from: u32| {
            let mut end = self.next_in_flight(from, at, credit);
            if own.0 >= from {
                end = end.min(own.0);
            }
            let inside_own = own.0 < from && from < own.1;
            let allocated = self.sending.allocated.load(Ordering::Relaxed);
            let gap = end.saturating_sub(from);
            // A gap in memory that is already there is worth more than a fresh one.
            if !inside_own && gap > best && (from < allocated || gap > WORTHWHILE) {
                best = gap;
                target = Some(from);
            }
        };
        consider(0);
        consider(own.1);
        let mut lap = credit.lap;
        while lap != at.lap {
            consider(self.segment(lap, credit).1 & !7);
            lap = lap.wrapping_add(1);
        }
        target
    }

    /// Ends this lap here and begins the next at `target`.
    fn jump(&self, at: Position, target: u32) -> Position {
        let s = self.sending;
        let this = &s.segments[at.lap as usize % 4];
        let start = Position::unpack(this.load(Ordering::Relaxed)).lap;
        this.store(
            Position {
                lap: start,
                offset: at.offset + HEADER,
            }
            .pack(),
            Ordering::Relaxed,
        );
        let next = Position {
            lap: at.lap.wrapping_add(1),
            offset: target,
        };
        let begins = Position {
            lap: target,
            offset: self.memory.size(),
        };
        s.segments[next.lap as usize % 4].store(begins.pack(), Ordering::Relaxed);
        self.memory.word(target).store(0, Ordering::Relaxed);
        s.clear.store(0, Ordering::Relaxed);
        s.check.store(target + SMALL, Ordering::Relaxed);
        publish::word(self.memory.word(at.offset), header(Kind::Jump, target));
        s.write.store(next.pack(), Ordering::Release);
        next
    }
}
