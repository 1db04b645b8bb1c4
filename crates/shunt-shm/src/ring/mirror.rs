//! A ring that is copied to another host: what a sender posts, and what a receiver makes of it.
//!
//! The sender's ring is the original, the receiver's a *view*: memory of the same size in which the same frames stand at the
//! same offsets. A NIC places payload there in any order. So the header of a frame does not come by the NIC: the receiver
//! writes it, once the frame's payload is known to be there. A [`Consumer`](super::Consumer) of the view needs no rule of its own.
//!
//! ```text
//! sender   │ header 1 │ payload 1 │ header 2 │ payload 2 │ 0 │
//!                      └──────────── run ───────────────┘       one write; with header 1 behind it, if it has several frames
//! view     │ header 1 │ payload 1 │ header 2 │ payload 2 │ 0 │
//!           by Arrivals, last      └ as sent               by Arrivals, first
//! ```

use super::{Fault, HEADER, Kind, Memory, Position, header};
use crate::atomic::Ordering;

/// The most bytes of one run behind its first header; a single frame may be longer.
pub const RUN: u32 = 16 << 10;

/// What is sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// One frame: the header is at `offset`, and `length` payload bytes follow it.
    Frame {
        /// Of the header, a multiple of 8.
        offset: u32,
        /// Of the payload; at least 1.
        length: u32,
    },
    /// Several frames without a gap: the first header is at `offset`, and the `length` bytes that follow it end with the last
    /// payload (rounded up to 8). The first header is sent last, behind them.
    Frames {
        /// Of the first header, a multiple of 8.
        offset: u32,
        /// Bytes between the first header and its copy; a multiple of 8.
        length: u32,
    },
    /// A jump that another jump follows: nothing is sent but the offset.
    Jump {
        /// Where it leads, a multiple of 8.
        offset: u32,
    },
}

/// The sender's side: which frames of its ring have been posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    at: Position,
    /// A jump led there, and no run has said so yet.
    jumped: bool,
}

impl Default for Runs {
    fn default() -> Self {
        Self::new()
    }
}

impl Runs {
    /// Of a ring that begins.
    #[must_use]
    pub fn new() -> Self {
        Self {
            at: Position { lap: 0, offset: 0 },
            jumped: false,
        }
    }

    /// The next run of what is written up to `write` (the word of [`Sending::write`](crate::slot::Sending::write)); the ones before
    /// have been posted. `None`: there is none.
    ///
    /// # Errors
    /// [`Fault`] if the ring has no frames there.
    pub fn next(&mut self, ring: Memory, write: u64) -> Result<Option<Run>, Fault> {
        let write = Position::unpack(write);
        while self.at != write {
            match frame(ring, self.at)? {
                (Kind::Data, length) => {
                    self.jumped = false;
                    return self.run(ring, length, write).map(Some);
                }
                (Kind::Jump, target) => {
                    let untold = self.jumped.then_some(self.at.offset);
                    self.at = Position {
                        lap: self.at.lap.wrapping_add(1),
                        offset: target,
                    };
                    self.jumped = true;
                    if let Some(offset) = untold {
                        return Ok(Some(Run::Jump { offset }));
                    }
                }
                (Kind::Back, _) => return Err(Fault),
            }
        }
        Ok(None)
    }

    /// The run that begins with a frame of that length.
    fn run(&mut self, ring: Memory, length: u32, write: Position) -> Result<Run, Fault> {
        let first = self.at.offset;
        let mut end = behind(first, length);
        let mut frames = 1;
        let here = |offset| Position { offset, ..self.at };
        while here(end) != write {
            let (Kind::Data, next) = frame(ring, here(end))? else {
                break;
            };
            let further = behind(end, next);
            if further - first - HEADER > RUN {
                break;
            }
            end = further;
            frames += 1;
        }
        self.at = here(end);
        let run = if frames == 1 {
            Run::Frame {
                offset: first,
                length,
            }
        } else {
            Run::Frames {
                offset: first,
                length: end - first - HEADER,
            }
        };
        Ok(run)
    }
}

/// The receiver's side: where the next header is expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    at: u32,
}

impl Arrivals {
    /// Of a view that begins: it is empty.
    #[must_use]
    pub fn begin(ring: Memory) -> Self {
        ring.word(0).store(0, Ordering::Release);
        Self { at: 0 }
    }

    /// The payload of a frame is there: shows it to readers.
    ///
    /// # Errors
    /// [`Fault`] if the ring has no place for it.
    pub fn frame(&mut self, ring: Memory, offset: u32, length: u32) -> Result<(), Fault> {
        let end = end_of(ring, offset, length)?;
        ring.word(end).store(0, Ordering::Relaxed);
        self.show(ring, offset, header(Kind::Data, length));
        self.at = end;
        Ok(())
    }

    /// Several frames are there, and a copy of the first header behind them: shows them to readers.
    ///
    /// # Errors
    /// [`Fault`] if the ring has no place for them, or the copy is no header of theirs.
    pub fn frames(&mut self, ring: Memory, offset: u32, length: u32) -> Result<(), Fault> {
        let end = end_of(ring, offset, length)?;
        // Written by the NIC before it said so, and checked here, once.
        let first = ring.word(end).load(Ordering::Relaxed);
        let inner = u64::from(first as u32) + u64::from(HEADER);
        if first >> 32 != Kind::Data as u64
            || first as u32 == 0
            || inner > u64::from(length)
            || !length.is_multiple_of(8)
        {
            return Err(Fault);
        }
        ring.word(end).store(0, Ordering::Relaxed);
        self.show(ring, offset, first);
        self.at = end;
        Ok(())
    }

    /// The stream goes on at `offset`, with another jump.
    ///
    /// # Errors
    /// [`Fault`] if that is no place for a header.
    pub fn jump(&mut self, ring: Memory, offset: u32) -> Result<(), Fault> {
        end_of(ring, offset, 1)?;
        self.show(ring, offset, 0);
        self.at = offset;
        Ok(())
    }

    /// Puts a header to its place, and leads readers there.
    fn show(&self, ring: Memory, offset: u32, word: u64) {
        // Release: pairs with the acquire of the reader that finds the header, here or by the jump.
        ring.word(offset).store(word, Ordering::Release);
        if offset != self.at {
            let jump = header(Kind::Jump, offset);
            ring.word(self.at).store(jump, Ordering::Release);
        }
    }
}

/// Where the header behind a frame stands.
fn behind(offset: u32, length: u32) -> u32 {
    offset + HEADER + length.next_multiple_of(8)
}

/// The end of a frame, if the ring has room for the frame and a header behind it.
fn end_of(ring: Memory, offset: u32, length: u32) -> Result<u32, Fault> {
    let size = ring.size();
    let is_place = offset.is_multiple_of(8) && offset < size && (1..=size).contains(&length);
    if !is_place {
        return Err(Fault);
    }
    let end = behind(offset, length);
    if end <= size - HEADER {
        Ok(end)
    } else {
        Err(Fault)
    }
}

/// The frame whose header is at that place in this side's own ring, checked all the same.
fn frame(ring: Memory, at: Position) -> Result<(Kind, u32), Fault> {
    if !at.offset.is_multiple_of(8) || at.offset >= ring.size() {
        return Err(Fault);
    }
    let word = ring.word(at.offset).load(Ordering::Relaxed);
    let argument = word as u32;
    match word >> 32 {
        1 => end_of(ring, at.offset, argument).map(|_| (Kind::Data, argument)),
        2 => Ok((Kind::Jump, argument)),
        3 => Ok((Kind::Back, argument)),
        _ => Err(Fault),
    }
}

#[cfg(all(test, not(model)))]
mod tests;
