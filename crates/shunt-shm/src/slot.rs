//! The control lines of one connection in one arena.
//!
//! ```text
//! line  name       written by                          read by the peer
//! 0     face       calls of both directions, by bits   after every publication (stays in its cache)
//! 1     progress   the receiver                        by its sender, when the ring looks full
//! 2     output     the sender                          by its receiver, where a direction changes its way
//! 3, 4  sending    the sender (shared by fork)         `token` and `way` alone, where a direction goes back to TCP
//! 5     receiving  the receiver (shared by fork)       `token`, `way`, `read` and `left` alone, likewise
//! 6     options    setsockopt, fork, a call that       `forked` alone, by a sender that waits for room; `turn` where a
//!                  meets an error; close, connect      connection ends or begins
//!                  and accept (`turn`)
//! 7     recall     the receiver (its recall), the      when this side has recalled the stream, or is asked to
//!                  sender (its answer)                 send again
//! ```
//!
//! *The sender* and *the receiver* are the threads that hold the token of that direction. All of a slot is written by
//! one side only: a peer maps it read-only and checks everything it reads.
//!
//! # Where each word of a peer's is checked
//!
//! A hostile peer may write anything into its own arena. This side reads these of its words; none of them says where to read or
//! write, or how much, before it is checked:
//!
//! ```text
//! word                            checked in                        what a wrong one comes to
//! face.generation, state          slot/life.rs `state`              of another life: no state; unknown bits: ignored
//! face.again                      path/life.rs                      counts only if it is the next life
//! face.wait                       engine stream/tell.rs `tell`      bits are asked for; the group is cut to 6 bits
//! face.epoch                      engine stream/tell.rs `call_once` compared only: one call too many or too few, to the peer
//! face.core                       engine stream/spin.rs `compare`   compared only
//! face.caller                     engine stream/meet.rs             no core of this thread's: nothing; else the thread moves there, and
//!                                                                   waits for its turn, once in 10 ms at most, if it knows of strangers itself
//! face.data, room                 engine wake/call.rs               a datagram to a name; the channel there hears none
//!                                                                   without its own word (wake/datagram.rs `listen_for`)
//! progress.read                   ring/producer.rs `is_possible`    `Fault`: the connection ends
//! progress.bytes                  engine stream/conn.rs `in_flight` counts for how much may be in flight, never for where
//! output.switch_at, back_at       path/switch.rs, path/recall.rs    compared with what has come by TCP, never an offset in the ring
//! output.bytes                    engine stream/recv/bytes.rs       a count for `FIONREAD`, a ring at most
//! output.room_at                  engine stream/tell.rs             compared only: when the peer is told of room
//! sending.token, receiving.token  engine stream/owed/look.rs        waited for within bounds, and while the kernel says that
//!                                                                   the holder runs
//! sending.way, receiving.way      `Way::load`                       any other number is `TcpAgain`
//! receiving.read, left            path/unread.rs `lies_in`          no place in this side's ring: the ring is broken
//! options.forked                  engine stream/owed/look.rs        compared only
//! options.turn                    recycle.rs `read`, `from_number`  of another life or unknown: nothing is offered
//! options.offered_at              engine recycle/open.rs            compared only: which of several is accepted first
//! recall.stage                    path/recall.rs `look`             `Nonsense`: the connection ends
//! recall.answered                 path/recall.rs                    compared with the two answers
//! beside the slots:
//! a header of the ring            ring/consumer.rs `frame`          `Fault`: the connection ends
//! payload                         never                             the program's own business; copied once, by length of `frame`
//! an entry of a log               wake.rs `Log::next`               a bounded number of looks; a slot that is none is skipped
//!                                                                   (engine link.rs `socket`)
//! a door: sleepers, epoch, address engine stream/tell.rs `tell`     as those of `face`
//! the arena: its size and seals   arena.rs `open`                   the link is refused
//! the arena: crowded until        engine stream/crowd.rs `learn`    no time soon: ignored; else this side sleeps sooner
//! the arena: PID namespace        engine link.rs `shares_numbers`   compared only: whether a token's number is believed
//! ```
//!
//! Bits are plain constants, and no type of flags: every word is an atomic that is changed by `fetch_or` and read, on the
//! peer's side, by one load whose other bits may be anything; so a type would be made and taken apart at each of these places,
//! and would add no check.

#[cfg(not(model))]
use std::mem::offset_of;

use crate::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, full, heavy};
use crate::publish;
use crate::token::Token;
use crate::wake::Address;

mod life;

pub use life::{first_life, next_life, recycled_life};

/// `Face::state`: this side honours the ring: its peer may switch to it.
pub const READY: u32 = 1;
/// `Face::state`: this side stays on TCP for good.
pub const REFUSED: u32 = 2;
/// `Face::state`: this side shut down its sending half on purpose.
pub const SHUT_WR: u32 = 4;
/// `Face::state`: this side closed the connection.
pub const CLOSED: u32 = 8;
/// `Face::state`: this side closed with data unread, which resets the connection.
pub const UNREAD: u32 = 16;
/// `Face::state`: this side leaves its ring.
pub const LEAVING: u32 = 32;
/// `Face::state`: this side shut down its receiving half; the peer need not know.
pub const SHUT_RD: u32 = 64;
/// `Face::state`: this side's last descriptor is closed, but a thread still sleeps in a
/// call on it; the kernel may end the base socket before that call has read.
pub const LINGERS: u32 = 128;
/// `Face::state`: this side reads the peer's ring no more; what it has not read,
/// and what follows, is to come over TCP ([`Recall`]).
pub const RECALLED: u32 = 256;
/// `Face::state`: this side is about to send again over TCP what the peer has not
/// read, unless the peer is receiving; a receiver that sees it waits.
pub const WITHDRAWING: u32 = 512;
/// `Face::state`: this side sends it again; `Output::back_at` says from where on.
pub const WITHDRAWN: u32 = 1024;
/// `Face::state`, beside [`REFUSED`]: another program or process will have this end,
/// and may be paired in its place.
pub const HANDED_ON: u32 = 4096;
/// `Face::state`, in this process's view of a peer on another host: shuntd has said that it has died, and how far it had come.
pub const DIED: u32 = 8192;

/// `Face::state`, beside [`SHUT_WR`]: the kernel has not been told of this end; the peer finds it here, behind what is in the ring.
pub const ENDED: u32 = 16384;

/// `Options::forked`: no fork has copied the connection.
pub const UNFORKED: u32 = 0;
/// `Options::forked`: several processes of this side may have it.
pub const SHARED: u32 = 1;
/// `Options::forked`: one process has it, but relatives may have others of the same link.
pub const INHERITED: u32 = 2;

/// `Face::wait`: a thread sleeps until something arrives.
pub const WAIT_RX: u32 = 1;
/// `Face::wait`: a thread sleeps until the ring has room.
pub const WAIT_TX: u32 = 2;
/// `Face::wait`: the connection is in an epoll set: log what happens to it in
/// the group given by bits 8–13.
pub const WATCHED: u32 = 4;
/// `Face::wait`: an epoll set wants to know when the ring has room again.
pub const WANT_TX: u32 = 8;
/// `Face::wait`: the receiver sleeps without a heavy barrier. It issued one when it set this bit; since then its peer passes a
/// full barrier after each publication.
pub const FENCED: u32 = 16;
/// `Face::wait`, in this process's view of a peer on another host: what is published goes there by a NIC.
pub const MIRRORED: u32 = 32;
/// Shift of the group in `Face::wait`.
pub const GROUP_SHIFT: u32 = 8;
/// All bits of the group and its flag.
pub const WATCH_MASK: u32 = WATCHED | (0x3f << GROUP_SHIFT);

/// What a peer looks at after each publication.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Face {
    /// Life of the slot (0: none yet): the generation of its pairing, and how often the
    /// connection has come back to its rings since ([`first_life`], [`Slot::begin_again`]).
    pub generation: AtomicU32,
    /// [`READY`] and its like.
    pub state: AtomicU32,
    /// [`WAIT_RX`] and its like, and the group.
    pub wait: AtomicU32,
    /// Counts the times a thread went to sleep here: a waker calls once for each.
    pub epoch: AtomicU32,
    /// 1 + the core on which a thread last waited for something to arrive, or called the peer, so that a
    /// peer that waits on the same one makes way for it at once; 0: not known.
    pub core: AtomicU32,
    /// The life for which this side is ready: in the one before it both directions are the
    /// kernel's, and it does nothing there any more.
    pub again: AtomicU32,
    /// The address at which a thread is called that sleeps until something arrives.
    pub data: Address,
    /// The address at which a thread is called that sleeps until the ring has room.
    pub room: Address,
    /// 1 + the core from which a thread last called the peer, if it has called nobody else lately and strangers have had time slices of its
    /// process's; 0: otherwise.
    pub caller: AtomicU32,
}

impl Face {
    /// The wait word for a sender that has published, and that has read `wait` in it since. If [`FENCED`] is set there, the
    /// sender passes a full barrier and reads the word once more.
    #[inline]
    #[must_use]
    pub fn look_again(&self, wait: u32) -> u32 {
        if wait & FENCED == 0 {
            return wait;
        }
        // Pairs with the sleeper's, between its word and its look at the ring.
        full();
        self.wait.load(Ordering::Relaxed)
    }

    /// Who waits on the connection waits for other things, too.
    #[inline]
    pub fn forget_core(&self) {
        // The peer has the line in its cache: written only where need be.
        if self.core.load(Ordering::Relaxed) != 0 {
            self.core.store(0, Ordering::Relaxed);
        }
    }

    /// Says that a thread sleeps until something arrives. The caller holds the receiving token, and looks at the ring
    /// after this. `soon`: the thread will sleep again before long, so a full barrier of the peer's with each publication costs less
    /// than a heavy one of ours with each sleep ([`FENCED`]). `true`: this issued a heavy barrier.
    pub fn say_asleep(&self, soon: bool) -> bool {
        let fenced = if soon {
            // What a peer publishes after the heavy barrier it looks at with `FENCED`.
            publish::set_bits(&self.wait, WAIT_RX | FENCED) & FENCED != 0
        } else {
            publish::clear_bits(&self.wait, FENCED);
            publish::set_bits(&self.wait, WAIT_RX);
            false
        };
        if fenced {
            full();
        } else {
            heavy();
        }
        !fenced
    }
}

/// How far this side has read its peer's ring.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Progress {
    /// [`crate::ring::Position`] of the next unread byte: the credit.
    pub read: AtomicU64,
    /// Stream bytes read from the ring so far.
    pub bytes: AtomicU64,
}

/// How far this side has written.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Output {
    /// Zero, or 1 + the TCP stream offset from which the ring carries the stream.
    pub switch_at: AtomicU64,
    /// Zero, or 1 + the TCP stream offset from which TCP carries the stream again.
    /// Published before any such byte is sent.
    pub back_at: AtomicU64,
    /// Stream bytes published in the ring so far.
    pub bytes: AtomicU64,
    /// Valid while this side waits for room: how many stream bytes the peer is to
    /// have read from the ring before it tells.
    pub room_at: AtomicU64,
}

/// This side's own state of its sending half; guarded by the token.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Sending {
    /// Who sends.
    pub token: Token,
    /// Where the next frame goes.
    pub write: AtomicU64,
    /// The peer's credit as last seen.
    pub credit: AtomicU64,
    /// Stream bytes once the frame under way is published.
    pub total: AtomicU64,
    /// A `Way`: where bytes go.
    pub way: AtomicU32,
    /// Ring bytes known to be backed by memory.
    pub allocated: AtomicU32,
    /// Offset from which it is worth looking whether the ring can start over.
    pub check: AtomicU32,
    /// Offset up to which the write position may move without a look at anything:
    /// free, backed by memory, and below `check`. 0: not known.
    pub clear: AtomicU32,
    /// The peer's `epoch` in which this side has called the peer's thread that waits for data.
    pub called: AtomicU32,
    /// The peer's `epoch` in which this side has called the peer's thread that waits for room.
    pub called_for_room: AtomicU32,
    /// Threads of this side's processes inside real calls that send on the attached
    /// connection. One that is killed there counts for ever.
    pub in_kernel: AtomicU32,
    /// Segments in flight: start and end offset of lap `n` at `n % 4`.
    pub segments: [AtomicU64; 4],
}

/// This side's own state of its receiving half; guarded by the token.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Receiving {
    /// Who receives.
    pub token: Token,
    /// Where the next byte is.
    pub read: AtomicU64,
    /// Bytes taken from the base socket.
    pub kernel_bytes: AtomicU64,
    /// Payload bytes left in the frame at `read`.
    pub left: AtomicU32,
    /// A `Way`: where bytes come from.
    pub way: AtomicU32,
    /// 1: this side has recalled the stream, and does not know yet that TCP carries it on.
    pub awaits: AtomicU32,
    /// Threads asleep on this connection until something arrives (low half) or
    /// there is room (high half).
    pub sleepers: AtomicU32,
    /// 1 while bytes are handed on from where they lie in the ring: if the process
    /// dies then, nobody knows how many were taken.
    pub unsure: AtomicU32,
    /// `left` and `read` in one word, moved first: a process that repairs them after a death goes by it.
    pub mark: AtomicU64,
    /// `Progress::bytes` there, said before `mark` moves.
    pub total: AtomicU64,
}

/// Options of the socket that all holders of the connection share.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Options {
    /// `O_NONBLOCK` (0 or 1).
    pub nonblock: AtomicU32,
    /// Most bytes in flight, from `SO_SNDBUF` if the program set it; 0: no limit.
    pub most: AtomicU32,
    /// Whether a fork has shared the connection while attached ([`UNFORKED`],
    /// [`SHARED`], [`INHERITED`]): no direction switches while it is shared.
    pub forked: AtomicU32,
    /// An error of the base socket that its holders have not been told yet; 0: none.
    pub error: AtomicI32,
    /// The error for a peer that died with data unread has been given (0 or 1).
    pub reset_told: AtomicU32,
    /// Whether this side puts the connection aside for the next one ([`crate::recycle::Side`]).
    pub turn: AtomicU64,
    /// When this side has last offered the next connection (nanoseconds of the monotonic clock). `turn` publishes it.
    pub offered_at: AtomicU64,
}

/// How the stream comes back to TCP when its receiver recalls it: either the
/// sender sends again what the receiver has not read, or the receiver does so in
/// its name while it is in no operation.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Recall {
    /// How far this side is with recalling what the peer sends: one of
    /// [`NONE`](Recall::NONE)…[`DONE`](Recall::DONE).
    pub stage: AtomicU32,
    /// What this side has answered to the peer's recall: 0, nothing yet,
    /// [`AGREED`](Recall::AGREED) or [`REFUSED`](Recall::REFUSED).
    pub answered: AtomicU32,
    /// This side's own: payload bytes left in the frame at `owed_read`.
    pub owed_left: AtomicU32,
    /// This side's own, while its way is [`Way::Owing`]: where in its own ring begins what is sent again over TCP.
    /// How much of it has been sent the kernel knows, also when its sender was killed.
    pub owed_read: AtomicU64,
    /// This side's own: the TCP stream offset of the first of those bytes.
    pub owed_from: AtomicU64,
    /// This side's own, of what it receives: the TCP stream offset up to which TCP brings
    /// what it had not read in the ring; 0: nothing of that; [`Recall::IN_RING`].
    pub brought_until: AtomicU64,
    /// This side's own, towards another host: ring bytes before those that are sent again.
    pub owed_bytes: AtomicU64,
    /// This side's own, of what it receives from another host: 1 + the TCP stream offset behind the record by which the peer
    /// has left its ring; 0: it has not.
    pub resumed_at: AtomicU64,
    /// This side's own: ring bytes before the one that comes there.
    pub resumed_from: AtomicU64,
}

impl Recall {
    /// Nothing is recalled.
    pub const NONE: u32 = 0;
    /// The sender is to send it again.
    pub const ASKED: u32 = 1;
    /// The receiver is about to do it, unless the sender is in an operation.
    pub const TRYING: u32 = 2;
    /// The receiver does it; the sender waits.
    pub const TAKEN: u32 = 3;
    /// The receiver has, as much of it as the kernel says.
    pub const DONE: u32 = 4;

    /// What the peer has not read goes over TCP; `Output::back_at` says from where on.
    pub const AGREED: u32 = 1;
    /// It cannot: TCP has what comes behind it.
    pub const REFUSED: u32 = 2;

    /// `brought_until`: the sender has ended before TCP had brought all of it: the rest is
    /// read in the ring.
    pub const IN_RING: u64 = u64::MAX;
}

/// The control lines of one slot.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Slot {
    /// Line 0.
    pub face: Face,
    /// Line 1.
    pub progress: Progress,
    /// Line 2.
    pub output: Output,
    /// Lines 3–4.
    pub sending: Sending,
    /// Line 5.
    pub receiving: Receiving,
    /// Line 6.
    pub options: Options,
    /// Line 7.
    pub recall: Recall,
}

/// The lines are those of the table above.
#[cfg(not(model))]
const _: () = {
    const LINE: usize = 64;
    assert!(offset_of!(Slot, face) == 0);
    assert!(offset_of!(Slot, progress) == LINE);
    assert!(offset_of!(Slot, output) == 2 * LINE);
    assert!(offset_of!(Slot, sending) == 3 * LINE);
    assert!(offset_of!(Slot, receiving) == 5 * LINE);
    assert!(offset_of!(Slot, options) == 6 * LINE);
    assert!(offset_of!(Slot, recall) == 7 * LINE);
    assert!(size_of::<Slot>() == 8 * LINE);
    assert!(size_of::<Slot>() <= shunt_abi::layout::SLOT_BYTES);
};

/// Where a direction's bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Way {
    /// Kernel TCP, and may still switch to the ring.
    Tcp = 0,
    /// The ring.
    Ring = 1,
    /// Kernel TCP again, to the end of this life of the slot ([`Slot::begin_again`]).
    TcpAgain = 2,
    /// Outgoing only: kernel TCP again, but bytes of the ring are to be sent first.
    Owing = 3,
}

impl Way {
    /// Reads a way that this side stored.
    #[inline(always)]
    #[must_use]
    pub fn load(at: &AtomicU32) -> Self {
        match at.load(Ordering::Relaxed) {
            0 => Self::Tcp,
            1 => Self::Ring,
            3 => Self::Owing,
            _ => Self::TcpAgain,
        }
    }

    /// Stores it; relaxed, the token orders it.
    #[inline(always)]
    pub fn store(self, at: &AtomicU32) {
        at.store(self as u32, Ordering::Relaxed);
    }
}
