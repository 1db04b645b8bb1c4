//! What daemons of two hosts say to each other, inside TLS.
//!
//! ```text
//! 0      2      3
//! ┌──────┬──────┬───────────────┐
//! │length│ kind │ as its kind is │   length: of kind and rest, 1 to 1,024; numbers in network order
//! └──────┴──────┴───────────────┘
//!
//! Hello  1   "SHNT", version u16, host 16 bytes      first, from both; the same in all versions
//! Ping   2   number u32                              answered at once
//! Pong   3   the same number
//! Claim  4   see [`Claim`]
//! Drop   5   end u64                                 the claim is void
//! Seat   6   to u64, from u64, slot u32, generation u32   a pair of ends has this slot
//! Word   7   to u64, from u64, 96 bytes              from a process to its peer
//! Gone   8   process u64                             it has ended
//! Died   9   to u64, from u64, received u64, sent u64   the process that had an end has died
//! ```
//!
//! What is not exactly one of these ends the conversation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The version that is spoken here. Others are told in their Hello that this is not theirs.
pub const VERSION: u16 = 2;
/// The longest frame behind its length.
pub const MOST: usize = 1024;
/// The length of the text of a [`Frame::Word`].
pub const WORD: usize = 96;
const MAGIC: [u8; 4] = *b"SHNT";

/// A daemon on a host, as long as it lives: drawn at random when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// Of a caller that only asks whether a host is there: no daemon is known by it.
    pub const NOBODY: Self = Self([0; 16]);

    /// A new one.
    ///
    /// # Errors
    /// When the kernel has no random bytes to give.
    pub fn draw() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        // As few bytes as these come at once, or none (`getrandom(2)`).
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self(bytes))
    }
}

/// Which end of a connection an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// It called `connect`.
    Connector,
    /// It came out of a listener.
    Acceptor,
}

impl Side {
    /// The side of the other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

/// With which sequence numbers the handshake has ended at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// Of the first byte that it sends.
    pub sent: u32,
    /// Of the first byte that it receives.
    pub received: u32,
}

impl Numbers {
    /// Those of the other end.
    #[must_use]
    pub const fn mirrored(self) -> Self {
        Self {
            sent: self.received,
            received: self.sent,
        }
    }
}

/// A process of the sender's host claims an end of a connection, and the sender has seen that it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The sender's number for the end: never used twice.
    pub end: u64,
    /// The sender's number for the process: never used for another one.
    pub process: u64,
    /// Which end it is.
    pub side: Side,
    /// Its sequence numbers, where the sender's kernel tells them.
    pub numbers: Option<Numbers>,
    /// Its own address.
    pub local: SocketAddr,
    /// The other end's address, as this end sees it.
    pub peer: SocketAddr,
    /// Zero, or the number of the reason for which this end stays on TCP.
    pub obstacle: u8,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Who speaks, and which version.
    Hello {
        /// See [`VERSION`].
        version: u16,
        /// Who.
        host: HostId,
    },
    /// Asks for a [`Frame::Pong`].
    Ping(u32),
    /// The answer, with the number of the question.
    Pong(u32),
    /// A process claims an end.
    Claim(Claim),
    /// The end of that number is claimed no more.
    Drop(u64),
    /// The receiver's end and the sender's are the two of a connection, and have this slot of the link between their
    /// processes. The host whose name is the smaller one says so.
    Seat {
        /// The receiver's number of its end.
        to: u64,
        /// The sender's number of its end.
        from: u64,
        /// Which slot.
        slot: u32,
        /// Changes each time the slot is given. Zero: there is none left.
        generation: u32,
    },
    /// From a process to one with which it has a link.
    Word {
        /// The receiver's number of the process that is to have it.
        to: u64,
        /// The sender's number of the process that says it.
        from: u64,
        /// Means nothing here.
        text: [u8; WORD],
    },
    /// The sender's process of that number has ended.
    Gone(u64),
    /// The process that had one of two ends with a slot has died.
    Died {
        /// The receiver's number of its end.
        to: u64,
        /// The sender's number of the end of the dead.
        from: u64,
        /// How many bytes that had received through the receiver's ring.
        received: u64,
        /// How many it had sent through its own.
        sent: u64,
    },
}

/// It is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

const HELLO: u8 = 1;
const PING: u8 = 2;
const PONG: u8 = 3;
const CLAIM: u8 = 4;
const DROP: u8 = 5;
const SEAT: u8 = 6;
const WORDS: u8 = 7;
const GONE: u8 = 8;
const DIED: u8 = 9;

impl Frame {
    /// Appends its bytes, with the length before them.
    pub fn write(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend([0, 0]);
        match self {
            Self::Hello { version, host } => {
                to.push(HELLO);
                to.extend(MAGIC);
                to.extend(version.to_be_bytes());
                to.extend(host.0);
            }
            Self::Ping(number) => {
                to.push(PING);
                to.extend(number.to_be_bytes());
            }
            Self::Pong(number) => {
                to.push(PONG);
                to.extend(number.to_be_bytes());
            }
            Self::Claim(claim) => {
                to.push(CLAIM);
                claim.write(to);
            }
            Self::Drop(end) => {
                to.push(DROP);
                to.extend(end.to_be_bytes());
            }
            Self::Seat {
                to: end,
                from,
                slot,
                generation,
            } => {
                to.push(SEAT);
                to.extend(end.to_be_bytes());
                to.extend(from.to_be_bytes());
                to.extend(slot.to_be_bytes());
                to.extend(generation.to_be_bytes());
            }
            Self::Word {
                to: process,
                from,
                text,
            } => {
                to.push(WORDS);
                to.extend(process.to_be_bytes());
                to.extend(from.to_be_bytes());
                to.extend(text);
            }
            Self::Gone(process) => {
                to.push(GONE);
                to.extend(process.to_be_bytes());
            }
            Self::Died {
                to: end,
                from,
                received,
                sent,
            } => {
                to.push(DIED);
                for number in [end, from, received, sent] {
                    to.extend(number.to_be_bytes());
                }
            }
        }
        // No frame has more than some hundred bytes.
        let length = (to.len() - start - 2) as u16;
        to[start..start + 2].copy_from_slice(&length.to_be_bytes());
    }

    /// Takes the first frame of what has come, and says how many bytes it had. `None`: it has not come as a whole.
    ///
    /// # Errors
    /// When it can never become one.
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let Some((length, rest)) = bytes.split_first_chunk() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if !(1..=MOST).contains(&length) {
            return Err(Malformed);
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        Ok(Some((Self::parse(body)?, length + 2)))
    }

    fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input(body);
        let frame = match input.byte()? {
            HELLO => {
                if input.array()? != MAGIC {
                    return Err(Malformed);
                }
                let hello = Self::Hello {
                    version: u16::from_be_bytes(input.array()?),
                    host: HostId(input.array()?),
                };
                input.0 = &[]; // Later versions may say more.
                hello
            }
            PING => Self::Ping(u32::from_be_bytes(input.array()?)),
            PONG => Self::Pong(u32::from_be_bytes(input.array()?)),
            CLAIM => Self::Claim(Claim::read(&mut input)?),
            DROP => Self::Drop(input.long()?),
            SEAT => Self::Seat {
                to: input.long()?,
                from: input.long()?,
                slot: u32::from_be_bytes(input.array()?),
                generation: u32::from_be_bytes(input.array()?),
            },
            WORDS => Self::Word {
                to: input.long()?,
                from: input.long()?,
                text: input.array()?,
            },
            GONE => Self::Gone(input.long()?),
            DIED => Self::Died {
                to: input.long()?,
                from: input.long()?,
                received: input.long()?,
                sent: input.long()?,
            },
            _ => return Err(Malformed),
        };
        if input.0.is_empty() {
            Ok(frame)
        } else {
            Err(Malformed)
        }
    }
}

impl Claim {
    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.end.to_be_bytes());
        to.extend(self.process.to_be_bytes());
        to.push(match self.side {
            Side::Connector => 0,
            Side::Acceptor => 1,
        });
        to.push(self.numbers.is_some().into());
        let numbers = self.numbers.unwrap_or(Numbers {
            sent: 0,
            received: 0,
        });
        to.extend(numbers.sent.to_be_bytes());
        to.extend(numbers.received.to_be_bytes());
        for address in [self.local, self.peer] {
            match address.ip() {
                IpAddr::V4(ip) => {
                    to.push(4);
                    to.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    to.push(6);
                    to.extend(ip.octets());
                }
            }
            to.extend(address.port().to_be_bytes());
        }
        to.push(self.obstacle);
    }

    fn read(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let (end, process) = (input.long()?, input.long()?);
        let side = match input.byte()? {
            0 => Side::Connector,
            1 => Side::Acceptor,
            _ => return Err(Malformed),
        };
        let is_known = match input.byte()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed),
        };
        let numbers = Numbers {
            sent: u32::from_be_bytes(input.array()?),
            received: u32::from_be_bytes(input.array()?),
        };
        Ok(Self {
            end,
            process,
            side,
            numbers: is_known.then_some(numbers),
            local: input.address()?,
            peer: input.address()?,
            obstacle: input.byte()?,
        })
    }
}

/// What is left to be read of a frame.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    fn long(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    fn address(&mut self) -> Result<SocketAddr, Malformed> {
        let ip: IpAddr = match self.byte()? {
            4 => Ipv4Addr::from(self.array::<4>()?).into(),
            6 => Ipv6Addr::from(self.array::<16>()?).into(),
            _ => return Err(Malformed),
        };
        // One address, one form.
        if ip.to_canonical() != ip {
            return Err(Malformed);
        }
        Ok(SocketAddr::new(ip, u16::from_be_bytes(self.array()?)))
    }
}

#[cfg(test)]
mod tests;
