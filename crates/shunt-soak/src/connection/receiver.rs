//! The receiving half, which checks every byte.

use super::header::{ANSWERS, HALF_CLOSE, HEADER, Header};
use super::{CHUNK, Failure, Step, failure};
use crate::call;
use crate::random::{Random, fill};
use crate::watch::Watch;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) struct Receiver {
    fd: RawFd,
    head: [u8; HEADER],
    pub(super) header: Option<Header>,
    pub(super) received: u64,
    ended: bool,
    buffer: Vec<u8>,
    expected: Vec<u8>,
    random: Random,
    watch: Arc<Watch>,
}

impl Receiver {
    pub(super) fn new(fd: RawFd, random: Random, watch: Arc<Watch>) -> Self {
        Self {
            fd,
            head: [0; HEADER],
            header: None,
            received: 0,
            ended: false,
            buffer: Vec::new(),
            expected: Vec::new(),
            random,
            watch,
        }
    }

    pub(super) fn complete(&self) -> bool {
        self.header
            .is_some_and(|header| self.received == HEADER as u64 + header.length)
    }

    /// Everything received, and the end seen if it was announced.
    pub(super) fn finished(&self) -> bool {
        self.complete() && (self.ended || self.header.is_some_and(|header| !header.has(HALF_CLOSE)))
    }

    /// One call and the check of what it brought. With `waits` it may wait for
    /// a full buffer.
    pub(super) fn step(&mut self, waits: bool) -> Result<Step, Failure> {
        let rest = match self.header {
            Some(header) => HEADER as u64 + header.length - self.received,
            None => HEADER as u64 - self.received,
        };
        let smallest = self.header.map_or(1, |header| header.length / 4096);
        let mut size = self.random.magnitude(smallest, CHUNK);
        let all = waits && rest > 0;
        if all {
            size = size.min(rest);
        }
        self.buffer.resize(usize::try_from(size).unwrap_or(1), 0);
        let count = match call::receive(self.fd, &mut self.buffer, all, &mut self.random) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Blocked),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Step::Moved),
            Err(error) => return Err(failure("receive", &error)),
        };
        if count == 0 {
            if !self.complete() {
                return Err(Failure::Broken(format!(
                    "end of stream after {} bytes",
                    self.received
                )));
            }
            self.ended = true;
            return Ok(Step::Moved);
        }
        self.check(count)?;
        Ok(Step::Moved)
    }

    /// Where the stream goes wrong, and where in it the wrong bytes belong.
    fn describe(&self, header: &Header, offset: u64, got: &[u8]) -> String {
        let at = got
            .iter()
            .zip(&self.expected)
            .position(|(a, b)| a != b)
            .unwrap_or(0);
        let mut text = format!(
            "wrong byte at offset {} of {}, {at} bytes into a piece of {}",
            offset + at as u64,
            header.length,
            got.len()
        );
        let wrong = &got[at..got.len().min(at + 16)];
        let mut whole = vec![0; usize::try_from(header.length).unwrap_or(0)];
        fill(header.seed, 0, &mut whole);
        match whole
            .windows(wrong.len())
            .position(|window| window == wrong)
        {
            Some(place) if wrong.len() >= 8 => text += &format!("; its bytes belong at {place}"),
            _ => text += &format!("; got {wrong:02x?}"),
        }
        text += &format!(
            "; window {}, peer is {}",
            header.window,
            if header.flags & ANSWERS == 0 {
                "client"
            } else {
                "server"
            }
        );
        text
    }

    fn check(&mut self, count: usize) -> Result<(), Failure> {
        let mut start = 0;
        if self.received < HEADER as u64 {
            let from = usize::try_from(self.received).unwrap_or(0);
            start = (HEADER - from).min(count);
            self.head[from..from + start].copy_from_slice(&self.buffer[..start]);
            if from + start == HEADER {
                let Some(header) = Header::parse(&self.head) else {
                    return Err(Failure::Wrong(format!("not a header: {:02x?}", self.head)));
                };
                self.watch.set_peer(header.pid);
                self.header = Some(header);
            }
        }
        if let Some(header) = self.header {
            let offset = self.received + start as u64 - HEADER as u64;
            let got = &self.buffer[start..count];
            if offset + got.len() as u64 > header.length {
                return Err(Failure::Wrong(format!(
                    "more bytes than the {} announced",
                    header.length
                )));
            }
            self.expected.resize(got.len(), 0);
            fill(header.seed, offset, &mut self.expected);
            if got != self.expected {
                return Err(Failure::Wrong(self.describe(
                    &header,
                    offset,
                    &self.buffer[start..count],
                )));
            }
        }
        self.received += count as u64;
        self.watch.received.store(self.received, Ordering::Relaxed);
        Ok(())
    }
}
