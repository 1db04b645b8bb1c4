//! Geometry of an arena: the memory that one side of a link writes and the
//! other side maps read-only.
//!
//! ```text
//! 0        header      magic, protocol
//! 4 KiB    doors       GROUPS cache lines: "a thread of mine sleeps on group g"
//! 8 KiB    tails       GROUPS cache lines: how far the log of group g is written
//! 12 KiB   logs        GROUPS × LOG_ENTRIES u64: slots that the writer filled
//! 544 KiB  slots       SLOTS × SLOT_BYTES of per-connection state
//! 2 MiB    rings       SLOTS × RING_BYTES
//! ```
//!
//! The file is sparse: a connection touches its control lines and as much of
//! its ring as its traffic needs.

/// First eight bytes of an arena.
pub const MAGIC: u64 = u64::from_le_bytes(*b"shuntmem");
/// Offset of the magic (u64); the protocol (u64) follows.
pub const MAGIC_AT: usize = 0;
/// Size of a cache line on every machine that Shunt supports.
pub const LINE: usize = 64;
/// Number of readiness groups (epoll sets) that a process can tell apart.
pub const GROUPS: usize = 64;
/// Offset of the door words.
pub const DOORS_AT: usize = 4096;
/// Offset of the log tails.
pub const TAILS_AT: usize = DOORS_AT + GROUPS * LINE;
/// Offset of the logs.
pub const LOGS_AT: usize = TAILS_AT + GROUPS * LINE;
/// Entries in one log; a power of two.
pub const LOG_ENTRIES: usize = 1024;
/// Offset of the slots' control lines.
pub const SLOTS_AT: usize = LOGS_AT + GROUPS * LOG_ENTRIES * 8 + 8192;
/// Connections per link; a pair of processes with more of them gets more links.
pub const SLOTS: usize = 1024;
/// Bytes of control state per slot.
pub const SLOT_BYTES: usize = 512;
/// Offset of the rings.
pub const RINGS_AT: usize = 2 << 20;
/// Bytes of one ring: what kernel TCP can hold between two ends on one host
/// with default settings (measured: at least 3.98 MB), so that a program that
/// relies on that much buffering finds it here too, and so that TCP can take all
/// of it when a connection goes back there.
pub const RING_BYTES: usize = 3840 << 10;
/// Size of an arena.
pub const ARENA_BYTES: usize = RINGS_AT + SLOTS * RING_BYTES;

const _: () = assert!(SLOTS_AT + SLOTS * SLOT_BYTES <= RINGS_AT);
const _: () = assert!(SLOTS_AT.is_multiple_of(4096) && LOG_ENTRIES.is_power_of_two());

/// Offset of a slot's control lines.
#[must_use]
pub const fn slot_at(slot: u32) -> usize {
    SLOTS_AT + slot as usize * SLOT_BYTES
}

/// Offset of a slot's ring.
#[must_use]
pub const fn ring_at(slot: u32) -> usize {
    RINGS_AT + slot as usize * RING_BYTES
}
