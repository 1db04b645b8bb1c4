//! What begins each direction of a connection: whose stream it is and how it
//! will go.

use crate::random::Random;

const MAGIC: u64 = u64::from_le_bytes(*b"shntsoak");

/// Bytes of the header that begins each direction.
pub(super) const HEADER: usize = 64;
const LARGEST: u64 = 8 << 20;

/// Ends with a half close.
pub(super) const HALF_CLOSE: u64 = 1;
/// The answer shall end with one.
const REPLY_HALF_CLOSE: u64 = 2;
/// The client may be gone before it has the whole answer.
pub(super) const LEAVES_EARLY: u64 = 4;
/// The server's direction.
pub(super) const ANSWERS: u64 = 8;

/// What a direction announces of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header {
    pub(super) seed: u64,
    pub(super) length: u64,
    pub(super) pid: u32,
    pub(super) flags: u64,
    /// The client's: how long the answer shall be.
    pub(super) reply: u64,
    /// Nobody sends further than this beyond what it has received; 0 = no limit.
    pub(super) window: u64,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let words = [
            MAGIC,
            self.seed,
            self.length,
            u64::from(self.pid),
            self.flags,
            self.reply,
            self.window,
            !MAGIC,
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(word)
        };
        (word(0) == MAGIC && word(7) == !MAGIC).then(|| Self {
            seed: word(1),
            length: word(2),
            pid: u32::try_from(word(3)).unwrap_or(0),
            flags: word(4),
            reply: word(5),
            window: word(6),
        })
    }

    pub(super) fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// A client's choice.
    pub(super) fn choose(random: &mut Random) -> Self {
        let length = |random: &mut Random| {
            if random.one_in(12) {
                0
            } else {
                random.magnitude(1, LARGEST)
            }
        };
        let window = if random.one_in(3) {
            random.magnitude(1, 32 << 10)
        } else {
            0
        };
        // In lockstep small windows make many turns: keep them bounded.
        let limit = if window == 0 {
            LARGEST
        } else {
            (window * 2000).min(LARGEST)
        };
        let mut flags = 0;
        for (flag, odds) in [(HALF_CLOSE, 2), (REPLY_HALF_CLOSE, 2), (LEAVES_EARLY, 10)] {
            flags |= if random.one_in(odds) { flag } else { 0 };
        }
        Self {
            seed: random.next(),
            length: length(random).min(limit),
            pid: std::process::id(),
            flags,
            reply: length(random).min(limit),
            window,
        }
    }

    pub(super) fn answer(&self) -> Self {
        Self {
            seed: self.seed ^ 0x5555_5555,
            length: self.reply,
            pid: std::process::id(),
            flags: ANSWERS
                | if self.has(REPLY_HALF_CLOSE) {
                    HALF_CLOSE
                } else {
                    0
                },
            reply: 0,
            window: self.window,
        }
    }
}
