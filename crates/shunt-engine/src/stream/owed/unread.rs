//! What has not been read of a ring, and is sent again.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_shm::ring::{Consumer, Found, Memory, Position};
use shunt_shm::slot::{Progress, Receiving, Slot};

use super::Debt;
use crate::sys;

/// Bytes given to the kernel at a time.
const STEP: usize = 256 << 10;
/// What a side had not read of its peer's ring when it read there for the last time.
pub(in crate::stream) struct Unread {
    read: u64,
    left: u32,
}

impl Unread {
    /// As this side has noted of its own ring.
    pub(super) fn noted(read: u64, left: u32) -> Self {
        Self { read, left }
    }

    /// As two words to note.
    pub(super) fn words(&self) -> (u64, u32) {
        (self.read, self.left)
    }

    /// As that side says.
    pub(in crate::stream) fn of(side: &Slot) -> Self {
        Self {
            read: side.receiving.read.load(Ordering::Acquire),
            left: side.receiving.left.load(Ordering::Acquire),
        }
    }

    /// Whether there is any in this ring.
    pub(super) fn is_any(&self, ring: Memory) -> bool {
        let there = |consumer: &Consumer| consumer.is_ready() && !consumer.has_ended();
        self.read_by(ring, there).unwrap_or(false)
    }

    /// How many bytes that is; `None`: the ring is broken.
    pub(in crate::stream) fn length(&self, ring: Memory) -> Option<u64> {
        self.read_by(ring, |consumer| length(consumer, u64::from(ring.size())))?
    }

    /// Reads it with words of its own, so that nobody's change. `None`: they name no place in
    /// this ring.
    fn read_by<T>(&self, ring: Memory, work: impl FnOnce(&Consumer) -> T) -> Option<T> {
        if !self.lies_in(ring) {
            return None;
        }
        let receiving = Receiving::default();
        receiving.read.store(self.read, Ordering::Relaxed);
        receiving.left.store(self.left, Ordering::Relaxed);
        Some(work(&Consumer {
            memory: ring,
            receiving: &receiving,
            progress: &Progress::default(),
        }))
    }

    /// Whether that side's word names a place in this ring.
    fn lies_in(&self, ring: Memory) -> bool {
        let at = Position::unpack(self.read).offset;
        if self.left == 0 {
            at.is_multiple_of(8) && at < ring.size()
        } else {
            // The next header follows it.
            at.checked_add(self.left)
                .is_some_and(|end| end <= ring.size() - 8)
        }
    }

    /// Sends it to `fd`, but for the first `sent` bytes. An error of the connection
    /// ends it: the next call on it will say what it is. `None`: the ring is broken.
    pub(in crate::stream) fn resend(
        &self,
        ring: Memory,
        mut sent: u64,
        fd: c_int,
        patience_ms: i64,
    ) -> Option<Debt> {
        // A wrong word may lead into payload, and payload round in circles.
        let most = u64::from(ring.size()).checked_sub(sent)?;
        self.read_by(ring, |consumer| {
            while sent > 0 {
                // SAFETY: to nowhere.
                match unsafe { consumer.read(std::ptr::null_mut(), sent as usize, false) } {
                    Ok(Found::Bytes(n)) => sent -= n as u64,
                    Ok(_) => return Some(Debt::Paid),
                    Err(_) => return None,
                }
            }
            drain(consumer, most, fd, patience_ms)
        })?
    }
}

/// How many bytes a consumer has to read, `most` at most; `None`: the ring is broken.
fn length(consumer: &Consumer, most: u64) -> Option<u64> {
    let mut length = 0;
    loop {
        // SAFETY: to nowhere.
        match unsafe { consumer.read(std::ptr::null_mut(), STEP, false) } {
            Ok(Found::Bytes(n)) if length + n as u64 <= most => length += n as u64,
            Ok(Found::Empty | Found::Back(_)) => return Some(length),
            _ => return None,
        }
    }
}

fn drain(consumer: &Consumer, mut most: u64, fd: c_int, patience_ms: i64) -> Option<Debt> {
    loop {
        let send = |from: *const u8, n: usize| sys::send_more(fd, from, n);
        let debt = match consumer.drain(STEP, send) {
            Ok(Ok(0)) => Some(Debt::Paid),
            Ok(Ok(n)) if n as u64 <= most => {
                most -= n as u64;
                continue;
            }
            Ok(Err(libc::EINTR)) => continue,
            // Its buffers grow while what they hold is acknowledged.
            Ok(Err(libc::EAGAIN)) if sys::poll_ms(fd, libc::POLLOUT, patience_ms) != 0 => continue,
            Ok(Err(libc::EAGAIN)) => Some(Debt::Owed),
            Ok(Err(_)) => Some(Debt::Paid),
            Ok(Ok(_)) | Err(_) => None,
        };
        sys::push(fd);
        return debt;
    }
}
