//! How a direction leaves its ring for TCP, whatever has become of the NIC: by a record of 24 bytes, the first on the base socket
//! after the ring.
//!
//! ```text
//! tag (8) | X (8): ring bytes of this life before what follows | check (8); tag and check by the link's secret and the life
//! ```
//!
//! The sender names as X what its peer has said it has read, sends everything in its ring from there on, and goes on by TCP. The
//! receiver reads the ring no more, and drops what it has read beyond X. Credits only lag, so that is never negative.
//!
//! A receiver that has been told of a switch, and of whose ring nothing has been read, may find the plain stream there: the sender
//! did not hear the answer in time, and stayed. It compares byte by byte as they come, so it waits only while they are a record's.

use shunt_shm::atomic::Ordering;
use shunt_shm::path::unread::Unread;
use shunt_shm::ring::Fault;
use shunt_shm::slot::Slot;

use crate::endpoint::Endpoint;

/// Bytes of a record.
pub const BYTES: usize = 24;

/// The secret of one direction of a link: from the sender's endpoint and the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl Secret {
    /// What the two ends of a queue pair have agreed on. The other direction has another one.
    #[must_use]
    pub fn new(sender: &Endpoint, receiver: &Endpoint) -> Self {
        let [s, [r, q]] = [sender, receiver].map(|end| halves(&end.secret));
        Self([siphash(s, [r, q]), siphash(s, [q, !r])])
    }
}

/// A record, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Of the slot.
    pub life: u32,
    /// Stream bytes of the ring that come before what follows the record.
    pub from: u64,
}

/// What stands at the beginning of some bytes of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A record, at this number of stream bytes into the ring.
    Record(u64),
    /// The beginning of one: the rest is to be waited for.
    Begins,
    /// None.
    None,
}

impl Record {
    /// As bytes.
    #[must_use]
    pub fn to_bytes(self, secret: Secret) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = [self.tag(secret), self.from, self.check(secret)];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Looks for a record of that life in what has come by TCP so far.
    #[must_use]
    pub fn look(bytes: &[u8], life: u32, secret: Secret) -> Look {
        let mut record = Self { life, from: 0 };
        let word = |at: usize| {
            let word = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(word.try_into().expect("eight bytes")))
        };
        let tag = record.tag(secret).to_le_bytes();
        let n = bytes.len().min(tag.len());
        if bytes[..n] != tag[..n] {
            return Look::None;
        }
        let (Some(from), Some(check)) = (word(8), word(16)) else {
            return Look::Begins;
        };
        record.from = from;
        if check == record.check(secret) {
            Look::Record(from)
        } else {
            Look::None
        }
    }

    fn tag(self, secret: Secret) -> u64 {
        siphash(secret.0, [u64::from(self.life), TAG])
    }

    fn check(self, secret: Secret) -> u64 {
        siphash(secret.0, [u64::from(self.life), self.from])
    }
}

/// In the place of an offset that no stream reaches.
const TAG: u64 = u64::MAX;

/// What a sender sends when it leaves.
#[derive(Clone, Copy, Debug)]
pub struct Leave {
    /// First of all.
    pub record: [u8; BYTES],
    /// Ring bytes before what follows.
    pub from: u64,
    /// Then this, of its own ring.
    pub unread: Unread,
}

impl Leave {
    /// Of a direction in that life. `view`: the peer's slot as this side knows it, whose words came by one credit.
    #[must_use]
    pub fn new(life: u32, view: &Slot, secret: Secret) -> Self {
        let from = view.progress.bytes.load(Ordering::Relaxed);
        Self {
            record: Record { life, from }.to_bytes(secret),
            from,
            unread: Unread::of(view),
        }
    }
}

/// How many bytes a receiver drops of what follows a record. `own`: its slot.
///
/// # Errors
/// [`Fault`]: the record names bytes that this side has not read yet.
pub fn doubled(own: &Slot, from: u64) -> Result<u64, Fault> {
    let read = own.progress.bytes.load(Ordering::Relaxed);
    read.checked_sub(from).ok_or(Fault)
}

fn halves(bytes: &[u8; 16]) -> [u64; 2] {
    let word = u128::from_le_bytes(*bytes);
    [word as u64, (word >> 64) as u64]
}

/// SipHash-2-4 of two words (Aumasson and Bernstein, 2012).
fn siphash(key: [u64; 2], words: [u64; 2]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let length = 16 << 56;
    for word in [words[0], words[1], length] {
        v[3] ^= word;
        rounds(&mut v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    rounds(&mut v, 4);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn rounds(v: &mut [u64; 4], count: u32) {
    for _ in 0..count {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[1]);
        v[0] = v[0].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> [Secret; 2] {
        let end = |secret| Endpoint {
            secret,
            ..Endpoint::default()
        };
        let ends = [end([1; 16]), end([2; 16])];
        [
            Secret::new(&ends[0], &ends[1]),
            Secret::new(&ends[1], &ends[0]),
        ]
    }

    #[test]
    fn a_record_is_found_byte_by_byte_and_only_in_its_direction_and_life() {
        let [there, back] = secrets();
        let bytes = Record { life: 7, from: 99 }.to_bytes(there);
        for n in 0..BYTES {
            assert_eq!(Record::look(&bytes[..n], 7, there), Look::Begins, "{n}");
        }
        assert_eq!(Record::look(&bytes, 7, there), Look::Record(99));
        assert_eq!(Record::look(&bytes, 7, back), Look::None);
        assert_eq!(Record::look(&bytes, 8, there), Look::None);
        for at in 0..BYTES {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(Record::look(&wrong, 7, there), Look::None, "byte {at}");
            if at < 8 {
                let look = Record::look(&wrong[..=at], 7, there);
                assert_eq!(look, Look::None, "byte {at} is looked at at once");
            }
        }
    }

    #[test]
    fn the_check_is_siphash() {
        // The reference's vector for a message of 16 bytes 00…0f and the key 00…0f.
        let bytes = |from: u8| {
            let eight: [u8; 8] = std::array::from_fn(|i| from + i as u8);
            u64::from_le_bytes(eight)
        };
        let words = [bytes(0), bytes(8)];
        let expected = [0xdb, 0x9b, 0xc2, 0x57, 0x7f, 0xcc, 0x2a, 0x3f];
        assert_eq!(siphash(words, words).to_le_bytes(), expected);
    }

    #[test]
    fn a_record_that_names_what_was_not_read_is_a_fault() {
        let own = Slot::default();
        own.progress.bytes.store(10, Ordering::Relaxed);
        assert_eq!(doubled(&own, 10), Ok(0));
        assert_eq!(doubled(&own, 4), Ok(6));
        assert_eq!(doubled(&own, 11), Err(Fault));
    }
}
