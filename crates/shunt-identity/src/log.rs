//! The log that the eBPF program writes, and how we read it meanwhile.
//!
//! ```text
//!  Head            last: the serial number of the newest record, which are counted from 1
//!  Record 0        number 1, then number CAPACITY + 1, …
//!  Record 1        number 2, …
//!  …
//! ```
//!
//! A record's own number is 0 while it is written. So who sees the same number before and after reading has read that record.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::bpf::Region;

/// How the log begins.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) last: u64,
    /// The records have lines of the cache of their own.
    _rest: [u64; 7],
}

/// One end of a connection, as the program writes it down: fields of `struct bpf_sock_ops` as they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Record {
    pub(crate) serial: u64,
    pub(crate) cookie: u64,
    pub(crate) netns: u64,
    /// `bpf_ktime_get_ns`.
    pub(crate) established: u64,
    /// `snd_nxt` and `rcv_nxt`.
    pub(crate) sent: u32,
    pub(crate) received: u32,
    /// The callback: which side it was.
    pub(crate) op: u32,
    /// A number in the order of the network.
    pub(crate) remote_port: u32,
}

/// The size of each in words, which are read one by one.
const HEAD: usize = size_of::<Head>() / 8;
const RECORD: usize = size_of::<Record>() / 8;

/// What is found in the place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Complete(Record),
    /// The kernel is about to write it.
    InWork,
    /// A newer one has taken its place.
    Gone,
}

/// Records that are counted from 1, of which the last ones are there.
pub(crate) trait Records {
    fn capacity(&self) -> u64;
    /// The number of the newest one.
    fn last(&self) -> u64;
    fn read(&self, serial: u64) -> Found;
}

#[derive(Debug)]
pub(crate) struct Log {
    region: Region,
    capacity: u32,
}

impl AsFd for Log {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

impl Log {
    /// An empty one. Its capacity is a power of two.
    pub(crate) fn new(capacity: u32) -> io::Result<Self> {
        let words = HEAD + capacity as usize * RECORD;
        let region = Region::new(c"shunt_log", words)?;
        Ok(Self { region, capacity })
    }
}

impl Records for Log {
    fn capacity(&self) -> u64 {
        self.capacity.into()
    }

    fn last(&self) -> u64 {
        self.region.word(0).load(Ordering::Acquire)
    }

    fn read(&self, serial: u64) -> Found {
        let place = (serial.wrapping_sub(1) % self.capacity()) as usize;
        let word = |number: usize| {
            // The loads are done in their order, and pair with the program's exchanges of the serial number.
            self.region
                .word(HEAD + place * RECORD + number)
                .load(Ordering::Acquire)
        };
        let words: [u64; RECORD] = std::array::from_fn(word);
        let record: Record = zerocopy::transmute!(words);
        match [record.serial, word(0)] {
            [before, after] if before == serial && after == serial => Found::Complete(record),
            [_, after] if after > serial => Found::Gone,
            _ => Found::InWork,
        }
    }
}
