//! The sending half.

use super::header::{HALF_CLOSE, HEADER, Header};
use super::{CHUNK, Failure, Step, failure};
use crate::call;
use crate::random::{Random, fill};
use crate::system;
use crate::watch::Watch;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) struct Sender {
    fd: RawFd,
    header: Header,
    pub(super) sent: u64,
    ahead: Vec<u8>,
    used: usize,
    closed: bool,
    smallest: u64,
    random: Random,
    watch: Arc<Watch>,
}

impl Sender {
    pub(super) fn new(fd: RawFd, header: Header, random: Random, watch: Arc<Watch>) -> Self {
        let smallest = header.length / 4096;
        Self {
            fd,
            header,
            sent: 0,
            ahead: Vec::new(),
            used: 0,
            closed: false,
            smallest,
            random,
            watch,
        }
    }

    pub(super) fn total(&self) -> u64 {
        HEADER as u64 + self.header.length
    }

    /// Everything sent, and the half close made if there is to be one.
    pub(super) fn finished(&self) -> bool {
        self.sent == self.total() && (self.closed || !self.header.has(HALF_CLOSE))
    }

    /// How many bytes may be sent now, the other direction having brought
    /// `received` and being `complete` or not.
    pub(super) fn allowance(&self, received: u64, complete: bool) -> u64 {
        let rest = self.total() - self.sent;
        if self.header.window == 0 || complete {
            return rest;
        }
        let limit = HEADER as u64 + received + self.header.window;
        rest.min(limit.saturating_sub(self.sent))
    }

    /// One call, or the half close.
    pub(super) fn step(&mut self, allowance: u64) -> Result<Step, Failure> {
        let allowance = allowance.min(self.total() - self.sent);
        if self.sent < self.total() && allowance == 0 {
            return Ok(Step::Blocked);
        }
        if self.sent < self.total() {
            let size = self.random.magnitude(self.smallest, CHUNK).min(allowance);
            let size = usize::try_from(size).unwrap_or(0);
            self.prepare(size);
            let end = (self.used + size).min(self.ahead.len());
            match call::send(self.fd, &self.ahead[self.used..end], &mut self.random) {
                Ok(count) => {
                    self.used += count;
                    self.sent += count as u64;
                    self.watch.sent.store(self.sent, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failure("send", &error)),
            }
        }
        if self.sent == self.total() && self.header.has(HALF_CLOSE) && !self.closed {
            system::shutdown(self.fd, libc::SHUT_WR);
            self.closed = true;
        }
        Ok(Step::Moved)
    }

    /// Makes the next `size` bytes lie ready.
    fn prepare(&mut self, size: usize) {
        if self.ahead.len() - self.used >= size {
            return;
        }
        let mut next = vec![0; size];
        let head = if self.sent < HEADER as u64 {
            HEADER - usize::try_from(self.sent).unwrap_or(0)
        } else {
            0
        };
        let head = head.min(size);
        if head > 0 {
            let from = usize::try_from(self.sent).unwrap_or(0);
            next[..head].copy_from_slice(&self.header.to_bytes()[from..from + head]);
        }
        let offset = (self.sent + head as u64).saturating_sub(HEADER as u64);
        fill(self.header.seed, offset, &mut next[head..]);
        (self.ahead, self.used) = (next, 0);
    }
}
