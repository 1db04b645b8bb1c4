//! What two processes say to each other of their queue pair, by way of the shuntds: words of [`BYTES`] bytes, which these do not read.
//!
//! ```text
//! 0      4       8              56            96
//! ┌──────┬───────┬──────────────┬─────────────┐
//! │ kind │ round │ endpoint     │ zeroes      │    numbers little endian; the endpoint in an offer only
//! └──────┴───────┴──────────────┴─────────────┘
//! ```
//!
//! A *round* is one attempt to have a queue pair between the two; both count them alike ([`crate::meeting`]).

use crate::endpoint::{self, Endpoint};

/// Bytes of a word.
pub const BYTES: usize = 96;
const ENDPOINT_AT: usize = 8;

/// One word. Each names its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Connect a queue pair to this one.
    Offer(u32, Endpoint),
    /// The sender's queue pair is connected to the receiver's, and what comes by it is taken: the receiver may send.
    Linked(u32),
    /// The sender has no queue pair of this round, and makes none by itself.
    Gone(u32),
}

const OFFER: u32 = 1;
const LINKED: u32 = 2;
const GONE: u32 = 3;

impl Word {
    /// Of which round it is.
    #[must_use]
    pub const fn round(&self) -> u32 {
        match *self {
            Self::Offer(round, _) | Self::Linked(round) | Self::Gone(round) => round,
        }
    }

    /// As bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let kind = match self {
            Self::Offer(..) => OFFER,
            Self::Linked(_) => LINKED,
            Self::Gone(_) => GONE,
        };
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.round().to_le_bytes());
        if let Self::Offer(_, endpoint) = self {
            bytes[ENDPOINT_AT..][..endpoint::BYTES].copy_from_slice(&endpoint.to_bytes());
        }
        bytes
    }

    /// From bytes of a peer; `None`: they are no word that this side can use.
    #[must_use]
    pub fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        let number = |at: usize| {
            let word = bytes[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(word)
        };
        let rest = &bytes[ENDPOINT_AT..];
        let (offered, zeroes) = rest.split_first_chunk().expect("48 bytes and 40 more");
        let is_bare = *offered == [0; endpoint::BYTES];
        let round = number(4);
        let word = match number(0) {
            OFFER => Self::Offer(round, Endpoint::parse(offered)?),
            LINKED if is_bare => Self::Linked(round),
            GONE if is_bare => Self::Gone(round),
            _ => return None,
        };
        (round != 0 && zeroes.iter().all(|&byte| byte == 0)).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: Endpoint = Endpoint {
        gid: [7; 16],
        lid: 0x1234,
        layer: endpoint::Layer::Ethernet,
        mtu: 3,
        number: 0x00ab_cdef,
        first: 0x0012_3456,
        receives: 256,
        slots: 16,
        secret: [9; 16],
    };
    const ALL: [Word; 3] = [
        Word::Offer(7, ENDPOINT),
        Word::Linked(u32::MAX),
        Word::Gone(1),
    ];

    #[test]
    fn a_word_comes_back_from_its_bytes() {
        for word in ALL {
            assert_eq!(Word::parse(&word.to_bytes()), Some(word));
        }
        let bytes = ALL[0].to_bytes();
        assert_eq!(bytes[..8], [1, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(bytes[8..24], [7; 16]);
    }

    #[test]
    fn what_is_not_exactly_a_word_is_refused() {
        for word in ALL {
            let good = word.to_bytes();
            // Kind, round, an endpoint's layer or what must be zero: by each of these something else is said.
            for at in [0, 1, 8 + 18, 56, 95] {
                let mut bytes = good;
                bytes[at] ^= 0x40;
                assert_eq!(Word::parse(&bytes), None, "byte {at} of {word:?}");
            }
            let mut bytes = good;
            bytes[4..8].fill(0);
            assert_eq!(Word::parse(&bytes), None, "{word:?} of no round");
        }
    }
}
