//! Geometry of an arena: the memory that one side of a link writes and the
//! other side maps read-only.
//!
//! ```text
//! 0        header      magic, until when the writer finds the cores crowded, its PID namespace
//! 4 KiB    doors       GROUPS cache lines: "a thread of mine sleeps on group g"
//! 8 KiB    tails       GROUPS cache lines: how far the log of group g is written
//! 12 KiB   logs        GROUPS × LOG_ENTRIES u64: slots that the writer filled
//! 532 KiB  slots       SLOT_BYTES of per-connection state for each slot
//! 2 MiB    rings       RING_BYTES for each slot
//! ```
//!
//! The file is sparse: a connection touches its control lines and as much of
//! its ring as its traffic needs. How many slots an arena has, its size says: few
//! in the first link of two processes, and more in those that follow, so that
//! addresses are reserved as connections come.

/// First eight bytes of an arena.
pub const MAGIC: u64 = u64::from_le_bytes(*b"shuntmem");
/// Offset of the magic (u64).
pub const MAGIC_AT: usize = 0;
/// Offset of the time (u64, time stamp counter) until which the writer's waits sleep at once,
/// since strangers want the cores.
pub const CROWDED_AT: usize = 8;
/// Offset of the PID namespace (u64, its inode) in which the writer's processes have the numbers that name them; 0: not known.
pub const PID_NAMESPACE_AT: usize = 16;
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
/// The most slots that an arena may have; two processes with more connections get more links.
pub const MOST_SLOTS: u32 = 1024;
/// Slots of the arenas of the first link between two processes.
pub const FIRST_SLOTS: u32 = 16;
/// One arena takes at most this fraction (one in `ADDRESSES`) of the addresses that its process is
/// allowed (`RLIMIT_AS`): a link and what is in stock take a quarter, and the program has the rest.
pub const ADDRESSES: u64 = 12;
/// Arenas that a client may have in stock at the daemon: two for a first link (of a client
/// with itself), two for one of a pair that runs short of slots, and some for other pairs.
pub const SPARES: usize = 6;
/// Bytes of control state per slot.
pub const SLOT_BYTES: usize = 512;
/// Offset of the rings.
pub const RINGS_AT: usize = 2 << 20;
/// Bytes of one ring: what kernel TCP can hold between two ends on one host
/// with default settings (measured: 3.87 MB and more), so that a program that
/// relies on that much buffering finds it here too, and so that TCP can take all
/// of it when a connection goes back there.
pub const RING_BYTES: usize = 3584 << 10;
/// Bytes of a ring between hosts, which a NIC has pinned at both ends. Such a ring lies at the
/// beginning of the place for a ring.
pub const MIRRORED_RING_BYTES: usize = 256 << 10;

const _: () = assert!(MIRRORED_RING_BYTES <= RING_BYTES);
const _: () = assert!(SLOTS_AT + MOST_SLOTS as usize * SLOT_BYTES <= RINGS_AT);
const _: () = assert!(0 < FIRST_SLOTS && FIRST_SLOTS <= MOST_SLOTS);
const _: () = assert!(SLOTS_AT.is_multiple_of(4096) && LOG_ENTRIES.is_power_of_two());

/// Size in bytes of an arena with `slots` slots.
#[must_use]
pub const fn arena_bytes(slots: u32) -> usize {
    RINGS_AT + slots as usize * RING_BYTES
}

/// How many slots an arena of this size has; `None`: no arena has this size.
#[must_use]
pub const fn slots_of(bytes: u64) -> Option<u32> {
    let Some(rings) = bytes.checked_sub(RINGS_AT as u64) else {
        return None;
    };
    let slots = rings / RING_BYTES as u64;
    if !rings.is_multiple_of(RING_BYTES as u64) || slots == 0 || slots > MOST_SLOTS as u64 {
        return None;
    }
    Some(slots as u32)
}

/// How many slots the next link of two processes is to have, where the links that they share have
/// `there` slots in all: a little more than these, so that at most half of the addresses is
/// reserved without need.
#[must_use]
pub const fn slots_beside(there: u32) -> u32 {
    if there < FIRST_SLOTS {
        FIRST_SLOTS
    } else if there >= MOST_SLOTS {
        MOST_SLOTS
    } else {
        (there + 1).next_power_of_two()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_says_how_many_slots_there_are() {
        for slots in [1, 2, FIRST_SLOTS, MOST_SLOTS] {
            let bytes = arena_bytes(slots) as u64;
            assert_eq!(slots_of(bytes), Some(slots));
            assert_eq!(slots_of(bytes - 1), None);
            assert_eq!(slots_of(bytes + 4096), None);
        }
        let too_large = arena_bytes(MOST_SLOTS + 1) as u64;
        for bytes in [0, 4096, RINGS_AT as u64, too_large, u64::MAX] {
            assert_eq!(slots_of(bytes), None);
        }
    }

    #[test]
    fn links_grow_with_what_is_there() {
        let mut there = 0;
        let mut grown = Vec::new();
        for _ in 0..9 {
            let next = slots_beside(there);
            grown.push(next);
            there += next;
        }
        assert_eq!(grown, [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        // One that was made smaller than wished, or given back, is no reason to leap.
        assert_eq!(slots_beside(17), 32);
        assert_eq!(slots_beside(u32::MAX), MOST_SLOTS);
    }
}
