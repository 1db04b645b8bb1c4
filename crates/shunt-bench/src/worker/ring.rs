//! The floor: Shunt's ring between two processes, without a socket or a sleep.
#![allow(unsafe_code)]

use std::fs::File;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};
use shunt_shm::ring::{Consumer, Found, Memory, Producer, SMALL, begin};
use shunt_shm::slot::{Output, Progress, Receiving, Sending};

use super::channel::Channel;
use crate::sys;

/// What each direction has to itself in the file.
#[derive(Default)]
#[repr(C, align(4096))]
struct Direction {
    sending: Sending,
    output: Output,
    receiving: Receiving,
    progress: Progress,
    ended: AtomicU32,
}

const RING: usize = 1 << 20;
const BYTES: usize = 2 * (size_of::<Direction>() + RING);

/// Both directions of a connection.
pub(super) struct Duplex {
    out: (&'static Direction, Memory),
    inward: (&'static Direction, Memory),
    /// Whether the peer needs our core.
    yields: bool,
}

impl Duplex {
    pub(super) fn create(path: &str, yields: bool) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        file.set_len(BYTES as u64)?;
        let mut both = Self::map(&file, yields)?;
        for (direction, memory) in [both.out, both.inward] {
            begin(memory, &direction.sending);
            direction.sending.check.store(SMALL, Ordering::Relaxed);
        }
        std::mem::swap(&mut both.out, &mut both.inward);
        Ok(both)
    }

    pub(super) fn open(path: &str, yields: bool) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        // Both have it: its memory shall go with them.
        std::fs::remove_file(path)?;
        Self::map(&file, yields)
    }

    fn map(file: &File, yields: bool) -> Result<Self> {
        let base = sys::map(file, BYTES)?;
        let direction = |n: usize| {
            let at = base.wrapping_add(n * (size_of::<Direction>() + RING));
            // SAFETY: inside the mapping, which is never undone; zeroed memory is a
            // valid `Direction`, of which every part is atomic.
            unsafe {
                let words = at.add(size_of::<Direction>()).cast();
                (&*at.cast::<Direction>(), Memory::new(words, RING as u32))
            }
        };
        Ok(Self {
            out: direction(0),
            inward: direction(1),
            yields,
        })
    }

    #[inline]
    fn pause(&self) {
        if self.yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

impl Channel for Duplex {
    #[inline]
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let (direction, memory) = self.out;
        let producer = Producer {
            memory,
            sending: &direction.sending,
            output: &direction.output,
            peer: &direction.progress,
            populate: |_| true,
        };
        let mut done = 0;
        while done < bytes.len() {
            let left = &bytes[done..];
            // SAFETY: a slice is readable as far as its length; one process sends.
            match unsafe { producer.write(left.as_ptr(), left.len()) } {
                Ok(0) => self.pause(),
                Ok(n) => done += n,
                Err(stopped) => bail!("{stopped:?}"),
            }
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let (direction, memory) = self.inward;
        let consumer = Consumer {
            memory,
            receiving: &direction.receiving,
            progress: &direction.progress,
        };
        loop {
            let ended = direction.ended.load(Ordering::Acquire) != 0;
            // SAFETY: a slice is writable as far as its length; one process receives.
            match unsafe { consumer.read(buffer.as_mut_ptr(), buffer.len(), false) } {
                Ok(Found::Bytes(n)) => return Ok(n),
                Ok(Found::Empty) if ended => return Ok(0),
                Ok(Found::Empty) => self.pause(),
                other => bail!("{other:?}"),
            }
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.out.0.ended.store(1, Ordering::Release);
        Ok(())
    }
}
