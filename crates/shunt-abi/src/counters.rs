//! Counters region: what a process counts, in memory that outlives it.
//!
//! ```text
//! 0            Header   magic, protocol, whether the line is written, totals
//! RECORDS_AT   Record   one per socket object, SOCKETS of them
//! ```
//!
//! The file is sparse. The process, its only writer, maps it by steps of [`STEP_BYTES`], as
//! far as it has sockets. shuntd reads the file (it maps nothing, so nothing that the
//! process does to it can hurt), and believes it only about that process.

use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use zerocopy::{FromBytes, KnownLayout};

use crate::Reason;

/// First eight bytes of a region.
pub const MAGIC: u64 = u64::from_le_bytes(*b"shuntcnt");
/// Size of a record.
pub const RECORD_BYTES: usize = size_of::<Record>();
/// Offset of the first record.
pub const RECORDS_AT: usize = 16 * RECORD_BYTES;
/// Bytes of the file that are mapped at a time: whole records, and whole pages of any size.
pub const STEP_BYTES: usize = 1024 * RECORD_BYTES;
/// Steps of a region.
pub const STEPS: usize = 256;
/// Size of a region.
pub const SIZE: usize = STEPS * STEP_BYTES;
/// Socket objects that have a record in it.
pub const SOCKETS: usize = (SIZE - RECORDS_AT) / RECORD_BYTES;

const _: () = assert!(RECORD_BYTES == 192 && size_of::<Header>() <= RECORDS_AT);
const _: () = assert!(STEP_BYTES.is_multiple_of(64 << 10));

const RELAXED: Ordering = Ordering::Relaxed;

/// How far a socket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Not in use.
    Free = 0,
    /// Made by `socket`.
    Fresh = 1,
    /// It listens.
    Listener = 2,
    /// Connected (or connecting), not yet claimed.
    Candidate = 3,
    /// The daemon has been asked to pair it.
    Claimed = 4,
    /// Memory is there; not used yet.
    Paired = 5,
    /// The rings are honoured.
    Attached = 6,
    /// On kernel TCP for good; the reason says why.
    Plain = 7,
    /// The program has closed it in order; its base socket is kept for the next connection.
    Aside = 8,
}

impl Stage {
    /// The stage with this number; an unknown one is free.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Fresh,
            2 => Self::Listener,
            3 => Self::Candidate,
            4 => Self::Claimed,
            5 => Self::Paired,
            6 => Self::Attached,
            7 => Self::Plain,
            8 => Self::Aside,
            _ => Self::Free,
        }
    }
}

/// Counts of one direction; written under its token (or, before the upgrade,
/// by whoever calls).
#[derive(Debug, Default, FromBytes, KnownLayout)]
#[repr(C, align(64))]
pub struct Counts {
    /// Payload through rings.
    pub ring_bytes: AtomicU64,
    /// Payload through the kernel, when it was last asked.
    pub kernel_bytes: AtomicU64,
    /// Calls answered without a system call.
    pub user_calls: AtomicU64,
    /// Calls that the kernel answered.
    pub kernel_calls: AtomicU64,
    /// Waits that went to sleep.
    pub sleeps: AtomicU64,
    /// Bytes that the kernel had carried when this process began to count: its parent's.
    pub before: AtomicU64,
    /// Zero.
    pub reserved: [AtomicU64; 2],
}

impl Counts {
    /// Starts over.
    pub fn clear(&self) {
        for count in [
            &self.ring_bytes,
            &self.kernel_bytes,
            &self.user_calls,
            &self.kernel_calls,
            &self.sleeps,
            &self.before,
        ] {
            count.store(0, RELAXED);
        }
    }

    /// How much of `carried`, the bytes that the kernel has carried, is payload of this process.
    #[must_use]
    pub fn payload(&self, carried: u64) -> u64 {
        carried.saturating_sub(self.before.load(RELAXED))
    }

    fn add(&self, counts: &Self, carried: u64) {
        self.ring_bytes
            .fetch_add(counts.ring_bytes.load(RELAXED), RELAXED);
        self.kernel_bytes.fetch_add(carried, RELAXED);
        self.user_calls
            .fetch_add(counts.user_calls.load(RELAXED), RELAXED);
        self.kernel_calls
            .fetch_add(counts.kernel_calls.load(RELAXED), RELAXED);
        self.sleeps.fetch_add(counts.sleeps.load(RELAXED), RELAXED);
    }
}

/// One socket of the process.
#[derive(Debug, Default, FromBytes, KnownLayout)]
#[repr(C, align(64))]
pub struct Record {
    /// `SO_COOKIE`, or 0 if not asked yet.
    pub cookie: AtomicU64,
    /// One of its descriptors.
    pub fd: AtomicI32,
    /// The port that a listener listens on.
    pub port: AtomicU32,
    /// [`Stage`] as a number.
    pub stage: AtomicU8,
    /// [`Reason`] as a number.
    pub reason: AtomicU8,
    /// [`crate::message::Role`] as a number.
    pub role: AtomicU8,
    /// 1: `connect` came back, or `accept` made it: totals count it.
    pub connected: AtomicU8,
    /// 1: a direction went back to TCP.
    pub downgraded: AtomicU8,
    /// 1: since the rings are honoured no direction has gone back to TCP (but by a record, from or to another host), and one process has
    /// had this end. If both ends say so, what
    /// the one has sent through its ring and the other has not received there is unread.
    pub whole: AtomicU8,
    /// When the process got the connection, in seconds of the monotonic clock, or 0.
    pub since: AtomicU32,
    /// The slot's generation, …
    pub generation: AtomicU32,
    /// … and its link, or 0: it has had none. Both ends say the same.
    pub link: AtomicU64,
    /// Sent.
    pub tx: Counts,
    /// Received.
    pub rx: Counts,
}

impl Record {
    /// Starts over.
    pub fn clear(&self) {
        self.cookie.store(0, RELAXED);
        self.fd.store(0, RELAXED);
        self.port.store(0, RELAXED);
        self.since.store(0, RELAXED);
        self.generation.store(0, RELAXED);
        self.link.store(0, RELAXED);
        for byte in [
            &self.stage,
            &self.reason,
            &self.role,
            &self.connected,
            &self.downgraded,
            &self.whole,
        ] {
            byte.store(0, RELAXED);
        }
        self.tx.clear();
        self.rx.clear();
    }

    /// Its stage.
    #[must_use]
    pub fn stage(&self) -> Stage {
        Stage::from_number(self.stage.load(RELAXED))
    }

    /// Whether payload has moved through a ring.
    #[must_use]
    pub fn has_used_rings(&self) -> bool {
        self.tx.ring_bytes.load(RELAXED) != 0 || self.rx.ring_bytes.load(RELAXED) != 0
    }

    /// Whether it is, or was, a connection of this process or one that it moved bytes on.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.stage() != Stage::Free
    }
}

/// Why a connection that was put aside was not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum GivenUp {
    /// It was kept for as long as one is.
    Time = 0,
    /// The listener that had accepted it was closed.
    Listener = 1,
    /// The process forked, changed its rights or its network.
    Process = 2,
    /// Its base socket had ended, or led elsewhere.
    Lost = 3,
}

impl GivenUp {
    /// What the statistics call each.
    pub const NAMES: [&str; 4] = ["time", "listener", "process", "lost"];
}

/// What the process as a whole has counted: connections that have ended are in the sums.
#[derive(Debug, FromBytes, KnownLayout)]
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`crate::PROTOCOL`].
    pub protocol: AtomicU32,
    /// Not 0: the process has written its own line.
    pub written: AtomicU32,
    /// How many records have ever been in use.
    pub used: AtomicU32,
    /// The process, by its number in its own PID namespace.
    pub pid: AtomicU32,
    /// `comm` of the process.
    pub comm: [AtomicU8; 16],
    /// Connections.
    pub total: AtomicU64,
    /// Of these, shunted.
    pub shunted: AtomicU64,
    /// Of these, back on TCP.
    pub downgraded: AtomicU64,
    /// Readiness calls answered without a system call.
    pub ready_user: AtomicU64,
    /// Readiness calls answered with one.
    pub ready_kernel: AtomicU64,
    /// Readiness calls that slept.
    pub ready_sleeps: AtomicU64,
    /// Calls of sleeping sets sent, and received.
    pub calls: [AtomicU64; 2],
    /// By the number of the reason.
    pub reasons: [AtomicU64; 64],
    /// Sent.
    pub tx: Counts,
    /// Received.
    pub rx: Counts,
    /// Who serves the process.
    pub served: Served,
    /// Ends of connections that were put aside when they were closed, ...
    pub put_aside: AtomicU64,
    /// ... those of them that were used again, ...
    pub used_again: AtomicU64,
    /// ... and that were given up, by [`GivenUp`].
    pub given_up: [AtomicU64; GivenUp::NAMES.len()],
}

/// The shuntd that a process found last. Should that one be killed, its successor at the
/// same address finds the process by this.
#[derive(Debug, FromBytes, KnownLayout)]
#[repr(C, align(64))]
pub struct Served {
    /// `SO_NETNS_COOKIE` of the connection: an address means nothing elsewhere.
    pub netns: AtomicU64,
    /// The descriptor of the statistics file, or -1.
    pub lines: AtomicI32,
    /// Zero.
    pub reserved: AtomicU32,
    /// The address ([`crate::control_name`]), zero padded.
    pub name: [AtomicU8; 40],
}

impl Served {
    /// Nobody.
    #[must_use]
    pub fn by_nobody() -> Self {
        Self {
            netns: AtomicU64::new(0),
            lines: AtomicI32::new(-1),
            reserved: AtomicU32::new(0),
            name: std::array::from_fn(|_| AtomicU8::new(0)),
        }
    }

    /// Notes who serves the process.
    pub fn set(&self, netns: u64, name: &[u8; 40]) {
        self.netns.store(netns, RELAXED);
        for (to, from) in self.name.iter().zip(name) {
            to.store(*from, RELAXED);
        }
    }

    /// Whether it is anybody.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.name.iter().any(|byte| byte.load(RELAXED) != 0)
    }

    /// Whether it is the shuntd at this address.
    #[must_use]
    pub fn is(&self, netns: u64, name: &[u8]) -> bool {
        let own = self.name.iter().map(|byte| byte.load(RELAXED));
        let name = name.iter().copied().chain(std::iter::repeat(0));
        self.netns.load(RELAXED) == netns && own.zip(name).all(|(own, other)| own == other)
    }
}

impl Header {
    /// Starts over, in the name of a process that nobody serves yet.
    pub fn begin(&self, pid: u32, comm: &[u8; 16]) {
        self.magic.store(MAGIC, RELAXED);
        self.protocol.store(u32::from(crate::PROTOCOL), RELAXED);
        self.written.store(0, RELAXED);
        self.used.store(0, RELAXED);
        self.pid.store(pid, RELAXED);
        self.set_comm(comm);
        for count in [
            &self.total,
            &self.shunted,
            &self.downgraded,
            &self.ready_user,
            &self.ready_kernel,
            &self.ready_sleeps,
        ] {
            count.store(0, RELAXED);
        }
        for count in self.calls.iter().chain(&self.reasons) {
            count.store(0, RELAXED);
        }
        for count in [&self.put_aside, &self.used_again]
            .into_iter()
            .chain(&self.given_up)
        {
            count.store(0, RELAXED);
        }
        self.tx.clear();
        self.rx.clear();
        self.served.set(0, &[0; 40]);
        self.served.lines.store(-1, RELAXED);
    }

    /// A copy of the counts, word by word.
    #[must_use]
    pub fn copy(&self) -> Self {
        let word = |from: &AtomicU64| AtomicU64::new(from.load(RELAXED));
        let counts = |from: &Counts| {
            let copy = Counts::default();
            copy.add(from, from.kernel_bytes.load(RELAXED));
            copy
        };
        Self {
            magic: word(&self.magic),
            protocol: AtomicU32::new(self.protocol.load(RELAXED)),
            written: AtomicU32::new(self.written.load(RELAXED)),
            used: AtomicU32::new(self.used.load(RELAXED)),
            pid: AtomicU32::new(self.pid.load(RELAXED)),
            comm: std::array::from_fn(|i| AtomicU8::new(self.comm[i].load(RELAXED))),
            total: word(&self.total),
            shunted: word(&self.shunted),
            downgraded: word(&self.downgraded),
            ready_user: word(&self.ready_user),
            ready_kernel: word(&self.ready_kernel),
            ready_sleeps: word(&self.ready_sleeps),
            calls: std::array::from_fn(|i| word(&self.calls[i])),
            reasons: std::array::from_fn(|i| word(&self.reasons[i])),
            tx: counts(&self.tx),
            rx: counts(&self.rx),
            served: Served::by_nobody(),
            put_aside: word(&self.put_aside),
            used_again: word(&self.used_again),
            given_up: std::array::from_fn(|i| word(&self.given_up[i])),
        }
    }

    /// Notes what the process is called.
    pub fn set_comm(&self, comm: &[u8; 16]) {
        for (to, from) in self.comm.iter().zip(comm) {
            to.store(*from, RELAXED);
        }
    }

    /// Adds a socket to the sums. `kernel`: payload that the kernel carried (sent, received).
    pub fn add(&self, socket: &Record, shunted: bool, kernel: (u64, u64)) {
        if socket.connected.load(RELAXED) == 0 {
            // The parent's connection; what this process moved on it is its own. The kernel
            // does not say who moved what: a child that only has it leaves that to the others.
            let served = socket.rx.kernel_calls.load(RELAXED) != 0;
            let (sent, received) = if served { kernel } else { (0, 0) };
            self.tx.add(&socket.tx, sent);
            self.rx.add(&socket.rx, received);
            return;
        }
        let downgraded = socket.downgraded.load(RELAXED) != 0;
        self.total.fetch_add(1, RELAXED);
        self.shunted.fetch_add(u64::from(shunted), RELAXED);
        self.downgraded.fetch_add(u64::from(downgraded), RELAXED);
        if !shunted || downgraded {
            let mut reason = socket.reason.load(RELAXED);
            if reason == Reason::Pending as u8 {
                reason = match socket.stage() {
                    Stage::Candidate => Reason::ShortLived as u8,
                    Stage::Attached => Reason::Unused as u8,
                    _ => reason,
                };
            }
            if let Some(count) = self.reasons.get(usize::from(reason)) {
                count.fetch_add(1, RELAXED);
            }
        }
        self.tx.add(&socket.tx, kernel.0);
        self.rx.add(&socket.rx, kernel.1);
    }

    /// Adds a socket of a process that has died: what is not known of the kernel's
    /// part is taken from its last look.
    pub fn add_dead(&self, socket: &Record) {
        let part = |counts: &Counts| counts.payload(counts.kernel_bytes.load(RELAXED));
        let kernel = (part(&socket.tx), part(&socket.rx));
        self.add(socket, socket.has_used_rings(), kernel);
    }

    /// The line of the statistics file.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write_line(&self, line: &mut impl fmt::Write, pid: u32) -> fmt::Result {
        let get = |sum: &AtomicU64| sum.load(RELAXED);
        let sum = |sums: &[&AtomicU64]| sums.iter().fold(0_u64, |n, s| n.wrapping_add(get(s)));
        write!(line, "{{\"pid\":{pid},\"comm\":\"")?;
        let comm = self.comm.each_ref().map(|byte| byte.load(RELAXED));
        for &byte in comm.iter().take_while(|&&b| b != 0) {
            match byte {
                b'"' | b'\\' => write!(line, "\\{}", byte as char)?,
                0x20..0x7f => write!(line, "{}", byte as char)?,
                _ => write!(line, "\\u{byte:04x}")?,
            }
        }
        write!(
            line,
            "\",\"connections\":{{\"total\":{},\"shunted\":{},\"downgraded\":{}}},\"reasons\":{{",
            get(&self.total),
            get(&self.shunted),
            get(&self.downgraded)
        )?;
        let mut comma = "";
        for reason in Reason::ALL {
            let n = get(&self.reasons[*reason as usize]);
            if n > 0 {
                write!(line, "{comma}\"{}\":{n}", reason.name())?;
                comma = ",";
            }
        }
        let bytes = |counts: &Counts| (get(&counts.ring_bytes), get(&counts.kernel_bytes));
        let ((tr, tk), (rr, rk)) = (bytes(&self.tx), bytes(&self.rx));
        let (tx, rx) = (&self.tx, &self.rx);
        let user = sum(&[&tx.user_calls, &rx.user_calls, &self.ready_user]);
        let kernel = sum(&[&tx.kernel_calls, &rx.kernel_calls, &self.ready_kernel]);
        let sleeps = sum(&[&tx.sleeps, &rx.sleeps, &self.ready_sleeps]);
        write!(line, "}}")?;
        if get(&self.put_aside) > 0 {
            let (kept, used) = (get(&self.put_aside), get(&self.used_again));
            write!(
                line,
                ",\"recycled\":{{\"put_aside\":{kept},\"used_again\":{used},\"given_up\":{{"
            )?;
            let mut comma = "";
            for (why, count) in GivenUp::NAMES.iter().zip(&self.given_up) {
                write!(line, "{comma}\"{why}\":{}", get(count))?;
                comma = ",";
            }
            write!(line, "}}}}")?;
        }
        writeln!(
            line,
            ",\"tx\":{{\"ring_bytes\":{tr},\"kernel_bytes\":{tk}}},\"rx\":{{\"ring_bytes\":{rr},\"kernel_bytes\":{rk}}},\
             \"calls\":{{\"user\":{user},\"kernel\":{kernel}}},\
             \"doorbells\":{{\"sent\":{},\"received\":{}}},\"sleeps\":{sleeps}}}",
            get(&self.calls[0]),
            get(&self.calls[1])
        )
    }
}
