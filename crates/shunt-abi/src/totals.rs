//! What all processes of a user have counted, those included that have ended: part of the answer to a List with
//! [`FLAG_TOTALS`], in as many messages as it takes. Each is as long as a [`Message`], so that whoever does not know it
//! can skip it.

use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::counters::{Counts, Header, Record};
use crate::message::{Kind, MESSAGE_BYTES, Message};

/// [`Message::flags`] of a List: Totals of each user are wanted before the End.
pub const FLAG_TOTALS: u32 = 8192;

/// The user in whose name what users without room of their own have counted is told.
pub const OTHERS: u32 = u32::MAX;

/// One of the counts; both ends of a connection count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Total {
    /// Connections that have ended, ...
    Ended = 0,
    /// ... and those of them whose bytes moved through rings.
    EndedShunted = 1,
    /// Payload sent through rings.
    SentByRings = 2,
    /// Payload that the kernel has sent, as far as it was asked.
    SentByKernel = 3,
    /// Payload received through rings.
    ReceivedByRings = 4,
    /// Payload that the kernel has received, as far as it was asked.
    ReceivedByKernel = 5,
    /// Calls answered without a system call.
    CallsByMemory = 6,
    /// Calls answered with one.
    CallsByKernel = 7,
    /// Waits that went to sleep.
    Sleeps = 8,
    /// Wake-ups sent.
    WakeupsSent = 9,
    /// Wake-ups received.
    WakeupsReceived = 10,
}

/// Where the counts by reason begin.
const REASONS_AT: usize = 11;
/// How many counts there are.
const COUNTS: usize = REASONS_AT + 64;
/// How many of them a message holds.
const PART: usize = 18;

/// The counts of one process, or of all of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals([u64; COUNTS]);

impl Default for Totals {
    fn default() -> Self {
        Self([0; COUNTS])
    }
}

impl Totals {
    /// What a process has counted but for the sockets that it has now.
    #[must_use]
    pub fn of(header: &Header) -> Self {
        let mut totals = Self::default();
        totals.put(Total::Ended, [&header.total]);
        totals.put(Total::EndedShunted, [&header.shunted]);
        let [sent, received] = &header.calls;
        totals.put(Total::WakeupsSent, [sent]);
        totals.put(Total::WakeupsReceived, [received]);
        totals.put(Total::CallsByMemory, [&header.ready_user]);
        totals.put(Total::CallsByKernel, [&header.ready_kernel]);
        totals.put(Total::Sleeps, [&header.ready_sleeps]);
        let kernel = |counts: &Counts| counts.kernel_bytes.load(Ordering::Relaxed);
        let (tx, rx) = (&header.tx, &header.rx);
        totals.add_counts(tx, rx, [kernel(tx), kernel(rx)]);
        for (to, from) in totals.0[REASONS_AT..].iter_mut().zip(&header.reasons) {
            *to = from.load(Ordering::Relaxed);
        }
        totals
    }

    /// Adds what has moved on a socket that the process has now.
    pub fn add_open(&mut self, socket: &Record) {
        let (tx, rx) = (&socket.tx, &socket.rx);
        // As `Header::add` has it: what the kernel carried for a connection of the parent's is told by whoever serves that.
        let served = socket.connected.load(Ordering::Relaxed) != 0
            || rx.kernel_calls.load(Ordering::Relaxed) != 0;
        let kernel = |counts: &Counts| {
            let carried = counts.payload(counts.kernel_bytes.load(Ordering::Relaxed));
            if served { carried } else { 0 }
        };
        self.add_counts(tx, rx, [kernel(tx), kernel(rx)]);
    }

    fn add_counts(&mut self, tx: &Counts, rx: &Counts, kernel: [u64; 2]) {
        self.put(Total::SentByRings, [&tx.ring_bytes]);
        self.put(Total::ReceivedByRings, [&rx.ring_bytes]);
        self.grow(Total::SentByKernel, kernel[0]);
        self.grow(Total::ReceivedByKernel, kernel[1]);
        self.put(Total::CallsByMemory, [&tx.user_calls, &rx.user_calls]);
        self.put(Total::CallsByKernel, [&tx.kernel_calls, &rx.kernel_calls]);
        self.put(Total::Sleeps, [&tx.sleeps, &rx.sleeps]);
    }

    fn put<const N: usize>(&mut self, total: Total, counts: [&AtomicU64; N]) {
        for count in counts {
            self.grow(total, count.load(Ordering::Relaxed));
        }
    }

    fn grow(&mut self, total: Total, by: u64) {
        let count = &mut self.0[total as usize];
        *count = count.saturating_add(by);
    }

    /// A count.
    #[must_use]
    pub fn get(&self, total: Total) -> u64 {
        self.0[total as usize]
    }

    /// Connections that ended on TCP for the reason with this number.
    #[must_use]
    pub fn reason(&self, number: u8) -> u64 {
        let count = self.0[REASONS_AT..].get(usize::from(number));
        count.copied().unwrap_or_default()
    }

    /// Whether nothing has been counted.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Adds others. What does not fit stays at the largest number.
    pub fn add(&mut self, other: &Self) {
        self.each(other, u64::saturating_add);
    }

    /// Takes away what others had when they were smaller.
    #[must_use]
    pub fn since(mut self, other: &Self) -> Self {
        self.each(other, u64::saturating_sub);
        self
    }

    /// Raises each count to what others have.
    pub fn raise(&mut self, other: &Self) {
        self.each(other, u64::max);
    }

    fn each(&mut self, other: &Self, change: impl Fn(u64, u64) -> u64) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own = change(*own, other);
        }
    }

    /// As it is sent for a user. What is zero is left out, but that there is such a user is said.
    pub fn messages(&self, uid: u32) -> impl Iterator<Item = Message> {
        let parts = (0..COUNTS).step_by(PART).zip(self.0.chunks(PART));
        let told = parts.filter(|(first, counts)| *first == 0 || counts.iter().any(|&n| n != 0));
        told.map(move |(first, counts)| {
            let mut part = Part::new_zeroed();
            (part.kind, part.protocol) = (Kind::Totals as u16, crate::PROTOCOL);
            (part.uid, part.first) = (uid, first as u32);
            part.counts[..counts.len()].copy_from_slice(counts);
            zerocopy::transmute!(part)
        })
    }

    /// Whose counts a message tells, if it tells any.
    #[must_use]
    pub fn user_of(message: &Message) -> Option<u32> {
        Part::of(message).map(|part| part.uid)
    }

    /// Puts down what a message tells.
    pub fn note(&mut self, message: &Message) {
        let Some(part) = Part::of(message) else {
            return;
        };
        let places = self.0.iter_mut().skip(part.first as usize);
        for (to, from) in places.zip(part.counts) {
            *to = from;
        }
    }
}

/// Some counts of one user.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Part {
    kind: u16,
    protocol: u16,
    uid: u32,
    /// Which of them is the first here.
    first: u32,
    reserved: u32,
    counts: [u64; PART],
}

const _: () = assert!(size_of::<Part>() == MESSAGE_BYTES);

impl Part {
    fn of(message: &Message) -> Option<Self> {
        (message.kind() == Some(Kind::Totals)).then(|| zerocopy::transmute!(*message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reason;

    fn numbered() -> Totals {
        Totals(std::array::from_fn(|i| i as u64 + 1))
    }

    #[test]
    fn what_is_sent_is_what_is_noted() {
        let mut sparse = Totals::default();
        sparse.grow(Total::Sleeps, 5);
        sparse.0[COUNTS - 1] = 6;
        for (totals, parts) in [(Totals::default(), 1), (sparse, 2), (numbered(), 5)] {
            let messages: Vec<_> = totals.messages(7).collect();
            assert_eq!(messages.len(), parts);
            let mut noted = Totals::default();
            for message in &messages {
                assert_eq!(message.kind(), Some(Kind::Totals));
                assert_eq!(Totals::user_of(message), Some(7));
                noted.note(message);
            }
            assert_eq!(noted, totals);
        }
        assert_eq!(Totals::user_of(&Message::new(Kind::Row)), None);
    }

    #[test]
    fn a_part_that_lies_beyond_the_counts_changes_nothing() {
        let mut message = numbered().messages(7).last().unwrap();
        let mut totals = numbered();
        for first in [COUNTS as u32, u32::MAX] {
            message.as_mut_bytes()[8..12].copy_from_slice(&first.to_ne_bytes());
            totals.note(&message);
        }
        assert_eq!(totals, numbered());
    }

    #[test]
    fn sums_neither_overflow_nor_become_less_than_nothing() {
        let mut most = Totals([u64::MAX; COUNTS]);
        most.add(&numbered());
        assert_eq!(most, Totals([u64::MAX; COUNTS]));
        assert!(numbered().since(&most).is_zero());
        let mut raised = numbered();
        raised.raise(&Totals::default());
        assert_eq!(raised, numbered());
    }

    #[test]
    fn a_socket_that_the_process_has_counts_with_what_has_moved_only() {
        let record = Record::default();
        record.connected.store(1, Ordering::Relaxed);
        record
            .reason
            .store(Reason::Pending as u8, Ordering::Relaxed);
        record.tx.ring_bytes.store(3, Ordering::Relaxed);
        record.tx.kernel_bytes.store(9, Ordering::Relaxed);
        record.tx.before.store(5, Ordering::Relaxed);
        record.rx.user_calls.store(2, Ordering::Relaxed);
        let mut totals = Totals::default();
        totals.add_open(&record);
        let moved = [
            Total::SentByRings,
            Total::SentByKernel,
            Total::CallsByMemory,
        ];
        assert_eq!(moved.map(|total| totals.get(total)), [3, 4, 2]);
        assert_eq!(totals.get(Total::Ended), 0);
        assert_eq!(totals.reason(Reason::Pending as u8), 0);
    }
}
