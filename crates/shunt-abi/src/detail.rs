//! What shuntd knows of a connection beyond its row: the counters of both ends.
//!
//! One follows each row of a list that was asked for with [`FLAG_DETAILS`]. It is as long as a
//! [`Message`], so that whoever does not know it can skip it.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::message::{Kind, MESSAGE_BYTES, Message};

/// [`Message::flags`] of a List: a Detail is wanted behind each Row.
pub const FLAG_DETAILS: u32 = 512;

/// [`Message::flags`] of a List: the rows of the answer, and what follows each, may come in one datagram, one behind
/// the other, up to [`TOGETHER`] of them, or as many as [`Message::index`] says if those are more.
pub const FLAG_TOGETHER: u32 = 2048;

/// The most messages of a list that one datagram holds, unless the asker says that it takes more.
pub const TOGETHER: usize = 64;

/// The most that one datagram ever holds, whatever the asker says: 40 KiB.
pub const MOST_TOGETHER: usize = 256;

/// An age or a user that is not known.
pub const UNKNOWN: u32 = u32::MAX;

/// Counters of both ends of the row before it, in the row's order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Detail {
    kind: u16,
    protocol: u16,
    /// Seconds since the first of the ends got the connection, or [`UNKNOWN`].
    pub age: u32,
    /// How often it went from shared memory to TCP, as far as shuntd was told; …
    pub left: u32,
    /// … and how many seconds ago the last time.
    pub left_ago: u32,
    /// See [`End`].
    pub ends: [End; 2],
}

/// What one end counts.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct End {
    /// Its user, or [`UNKNOWN`].
    pub uid: u32,
    /// What it says itself: 0 (shunted) or a [`crate::Reason`] as a number.
    pub status: u8,
    /// 1: the counts are known.
    pub counted: u8,
    /// Why this end went from shared memory to TCP the last time: a [`crate::Reason`] as a number; 0: it has not.
    pub left_for: u8,
    /// Zero.
    pub reserved: u8,
    /// Calls that sent: [without a system call, by one].
    pub sent: [u64; 2],
    /// Calls that received, of either end.
    pub received: [u64; 2],
    /// Waits that went to sleep.
    pub sleeps: u64,
    /// Bytes that its peer has put into the ring and it has not taken out.
    pub queued: u64,
    /// Of its process: wake-ups sent and received.
    pub wakeups: [u64; 2],
}

const _: () = assert!(size_of::<Detail>() == MESSAGE_BYTES);

impl Detail {
    /// Of which nothing is known.
    #[must_use]
    pub fn unknown() -> Self {
        let mut detail = Self::new_zeroed();
        detail.kind = Kind::Detail as u16;
        detail.protocol = crate::PROTOCOL;
        detail.age = UNKNOWN;
        for end in &mut detail.ends {
            end.uid = UNKNOWN;
        }
        detail
    }

    /// As it is sent.
    #[must_use]
    pub fn message(&self) -> Message {
        zerocopy::transmute!(*self)
    }

    /// The detail that a message is, if it is one.
    #[must_use]
    pub fn of(message: &Message) -> Option<Self> {
        (message.kind() == Some(Kind::Detail)).then(|| zerocopy::transmute!(*message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_is_a_message_of_its_kind() {
        let mut detail = Detail::unknown();
        detail.ends[1].wakeups[1] = 7;
        let message = detail.message();
        assert_eq!(message.kind(), Some(Kind::Detail));
        assert_eq!(Detail::of(&message).unwrap().ends[1].wakeups[1], 7);
        assert!(Detail::of(&Message::new(Kind::Row)).is_none());
    }
}
