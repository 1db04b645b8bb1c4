//! What comes to a NIC: placed word by word, in whatever order, and told.

use super::{NO_RECEIVE, REMOTE_ACCESS, RETRY_EXCEEDED, State, World};
use crate::fabric::Failure;
use crate::fabric::request::{Body, Request, Source};
use crate::transport::{Access, Completion, QueueId};

impl World {
    pub(super) fn deliver(&mut self, nic: usize, now: u64) {
        if self.placement {
            self.place_early(nic);
        }
        while let Some(number) = self.next_due(nic, now) {
            if self.placement && self.one_in(3) {
                self.place_some(number);
                if self.one_in(2) {
                    return;
                }
            } else {
                self.complete(number);
            }
        }
    }

    /// A queue pair whose first request has come.
    fn next_due(&mut self, nic: usize, now: u64) -> Option<u32> {
        let count = self.nics[nic].incoming.len();
        let start = if self.order && count > 1 {
            self.random() as usize % count
        } else {
            0
        };
        (0..count).find_map(|i| {
            let number = self.nics[nic].incoming[(start + i) % count];
            let head = self.queues[number as usize - 1].requests.front()?;
            (head.due <= now).then_some(number)
        })
    }

    /// Bytes of what has not come yet are here already.
    fn place_early(&mut self, nic: usize) {
        let count = self.nics[nic].incoming.len();
        if count > 0 && self.one_in(2) {
            let at = self.random() as usize % count;
            let number = self.nics[nic].incoming[at];
            self.place_some(number);
        }
    }

    /// Places some words of a queue pair's first request, in random order.
    fn place_some(&mut self, number: u32) {
        let Some(mut request) = self.queue(number).requests.pop_front() else {
            return;
        };
        let words = request.words();
        let mut unplaced = request
            .unplaced
            .take()
            .unwrap_or_else(|| (0..words).collect());
        for _ in 0..unplaced.len().div_ceil(2) {
            let at = self.random() as usize % unplaced.len();
            let word = unplaced.swap_remove(at);
            if self.place(&request.body, word).is_none() {
                // Told at the completion.
                unplaced.push(word);
            }
        }
        request.unplaced = Some(unplaced);
        self.queue(number).requests.push_front(request);
    }

    /// Reads a word of a write now.
    pub(in crate::fabric) fn word(&self, source: &Source, i: usize) -> Option<u64> {
        match *source {
            Source::Inline(words) => words.get(i).copied(),
            Source::Memory {
                key,
                offset,
                length,
                trailer,
            } => {
                let at = match trailer {
                    Some(trailer) if i * 8 >= length => trailer,
                    _ => offset + i * 8,
                };
                self.memory(key, Access::Source)?.load(at)
            }
        }
    }

    #[must_use]
    fn place(&self, body: &Body, i: u32) -> Option<()> {
        let Body::Write {
            source,
            bytes,
            target,
            ..
        } = body
        else {
            return Some(());
        };
        let memory = self.memory(target.key, Access::Target)?;
        let at = i as usize * 8;
        let n = (bytes - at).min(8);
        let address = target.address.checked_add(at as u64)?;
        let word = self.word(source, i as usize)?;
        memory
            .contains(address, n)
            .then(|| memory.store(address, word, n))
    }

    /// Ends a queue pair's first request, one way or another.
    fn complete(&mut self, number: u32) {
        let queue = self.queue(number);
        let (failure, peer) = (queue.failure.take(), queue.peer);
        let Some(request) = queue.requests.pop_front() else {
            return;
        };
        let receiver = self.queue(peer);
        if receiver.state != State::Connected || failure == Some(Failure::Before) {
            self.fail(number, RETRY_EXCEEDED);
            return;
        }
        if receiver.receives == 0 || receiver.is_starved {
            self.fail(number, NO_RECEIVE);
            return;
        }
        let unplaced = request
            .unplaced
            .as_ref()
            .map_or(0..request.words(), |_| 0..0);
        let rest = request.unplaced.iter().flatten().copied();
        let mut all = true;
        for (i, word) in unplaced.chain(rest).enumerate() {
            if failure == Some(Failure::Within) && i % 2 == 0 {
                continue;
            }
            all &= self.place(&request.body, word).is_some();
        }
        if !all {
            self.fail(number, REMOTE_ACCESS);
            self.fail(peer, REMOTE_ACCESS);
            return;
        }
        if !matches!(failure, Some(Failure::Within | Failure::Unannounced)) {
            self.announce(peer, &request);
        }
        if failure.is_some() {
            self.fail(number, RETRY_EXCEEDED);
        } else if let Some(tag) = request.tag {
            let queue = QueueId(number);
            self.push(
                number,
                Completion::Sent { queue, tag },
                Some(request.number),
                false,
            );
        }
    }

    /// Tells the receiver, and takes a receive of its.
    fn announce(&mut self, to: u32, request: &Request) {
        self.queue(to).receives -= 1;
        let queue = QueueId(to);
        let completion = match request.body {
            Body::Write {
                bytes, immediate, ..
            } => Completion::Written {
                queue,
                immediate,
                length: bytes as u32,
            },
            Body::Note { bytes, length } => Completion::Note {
                queue,
                bytes,
                length: length as u32,
            },
        };
        self.push(to, completion, None, true);
    }
}
