//! What a NIC does for one process: registers memory, makes queue pairs, sends writes and notes, and says what has come.
//!
//! | rule | where it comes from |
//! |---|---|
//! | of one queue pair, everything arrives in the order of its posts | reliable connections |
//! | within one write, bytes are placed in any order, at any time before its completion | the same |
//! | a write with immediate and a note take one receive each, in order | the same |
//! | a queue pair that has failed delivers nothing more, and says so once or more | the same |
//! | a write's memory is read at any time between its post and its completion | the same |

use std::os::fd::RawFd;

use crate::endpoint::Endpoint;

/// The most bytes of a note.
pub const NOTE_BYTES: usize = 64;
/// Receives that each queue pair has; as many writes and notes may be on their way to it.
pub const RECEIVES: u16 = 256;
/// Places in the send queue of each queue pair: as many as the peer can have receives for, and those that are done and have not
/// been signalled.
pub const SENDS: u16 = 384;
/// At least one in this many posts is signalled.
pub const SIGNALLED: u32 = 64;
/// Completions taken at once.
pub const BATCH: usize = 16;

/// Names a queue pair among those of one [`Transport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u32);

/// What a region is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This side's NIC reads it.
    Source,
    /// The peer's NIC writes it.
    Target,
}

/// Memory of the peer's that this side's NIC may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// As the peer's NIC calls it.
    pub key: u32,
    /// Of its first byte, as the peer's NIC counts.
    pub address: u64,
}

/// A write with immediate.
#[derive(Debug)]
pub struct Write<'a, R> {
    /// Where the bytes are.
    pub region: &'a R,
    /// Of the first byte, in the region.
    pub offset: u32,
    /// How many; none is fine.
    pub length: u32,
    /// Where eight bytes more are in the region, which go behind them.
    pub trailer: Option<u32>,
    /// Where they go.
    pub target: Target,
    /// What the peer is told with the completion.
    pub immediate: u32,
}

/// One work request.
#[derive(Debug)]
pub enum Post<'a, R> {
    /// Bytes go to the peer's memory.
    Write(Write<'a, R>),
    /// At most [`NOTE_BYTES`] go to the peer's receive.
    Note(&'a [u8]),
}

/// Something has come, or has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The post with this tag, and all before it, are in the peer's memory.
    Sent {
        /// On which it was posted.
        queue: QueueId,
        /// As given to [`Transport::post`].
        tag: u64,
    },
    /// The peer has written. Its receive has been posted anew.
    Written {
        /// By which it came.
        queue: QueueId,
        /// The peer's word.
        immediate: u32,
        /// Bytes written, the trailer's included.
        length: u32,
    },
    /// A note. Its receive has been posted anew.
    Note {
        /// By which it came.
        queue: QueueId,
        /// The note, zeroes behind.
        bytes: [u8; NOTE_BYTES],
        /// How many of them are the note.
        length: u32,
    },
    /// The queue pair has failed: nothing comes or goes by it any more.
    Failed {
        /// Which.
        queue: QueueId,
        /// The NIC's own word for why (`enum ibv_wc_status`).
        status: u32,
    },
}

/// A NIC, the kernel or a limit has refused something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What was asked for.
    pub what: &'static str,
    /// `errno` as it was said; 0: it was not.
    pub errno: i32,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let error = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "{} was refused: {error}", self.what)
    }
}

impl std::error::Error for Refused {}

/// Registered memory; given back by `Drop`, after which no write of the peer's reaches it.
pub trait Region {
    /// Where the peer writes to reach its first byte.
    fn target(&self) -> Target;
}

/// One NIC as one process has it. A forked child must not use its parent's.
pub trait Transport {
    /// Registered memory.
    type Region: Region;
    /// A queue pair with its receives; ended by `Drop`.
    type Queue;

    /// Pins memory and makes it known to the NIC.
    ///
    /// # Errors
    /// [`Refused`], with `ENOMEM` where `RLIMIT_MEMLOCK` is too small.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped; nobody has a `&mut` or `&[u8]` to it. It is aligned to 8.
    unsafe fn register(
        &self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Self::Region, Refused>;

    /// Makes a queue pair with [`RECEIVES`] receives posted.
    ///
    /// # Errors
    /// [`Refused`].
    fn queue(&self) -> Result<Self::Queue, Refused>;

    /// Its name in completions.
    fn id(&self, queue: &Self::Queue) -> QueueId;

    /// What the peer must know to connect to it.
    fn endpoint(&self, queue: &Self::Queue) -> Endpoint;

    /// Connects it to the peer's. It receives from then on. It may send once the peer has done the same.
    ///
    /// # Errors
    /// [`Refused`].
    fn connect(&self, queue: &Self::Queue, peer: &Endpoint) -> Result<(), Refused>;

    /// Ends a queue pair: nothing goes out by it or comes in any more, and both sides hear of that as of a failure.
    fn end(&self, queue: &Self::Queue);

    /// Posts a write or a note. `tag`: its completion is wanted.
    ///
    /// # Errors
    /// [`Refused`]: the send queue is full, or the queue pair has failed.
    fn post(
        &self,
        queue: &Self::Queue,
        post: &Post<'_, Self::Region>,
        tag: Option<u64>,
    ) -> Result<(), Refused>;

    /// Takes completions in their order, and posts receives anew for those that took one. Returns how many there are. One thread at
    /// a time calls it.
    ///
    /// # Errors
    /// [`Refused`]: the device is gone.
    fn poll(&self, into: &mut [Completion; BATCH]) -> Result<usize, Refused>;

    /// From now on the next completion makes [`Self::events`] readable. Who sleeps polls once more after this.
    ///
    /// # Errors
    /// [`Refused`]: the device is gone.
    fn arm(&self) -> Result<(), Refused>;

    /// A descriptor that is readable when a completion has come since [`Self::arm`].
    fn events(&self) -> RawFd;

    /// Takes what made it readable. Does not wait.
    fn take_events(&self);
}
