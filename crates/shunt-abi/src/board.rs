//! The board: pages that shuntd writes and every client of one network namespace maps read-only.
//!
//! ```text
//! 0     header: magic, protocol, daemon pid, whether connections cross namespaces
//! 4096  ports:  65,536 bits, one per TCP port with an accelerated listener, or behind which
//!               one has been found that is elsewhere, or has another port there
//! 12288 mail:   one u32 per client, raised after each message sent to it
//! 77824 trials: 65,536 bits, one per TCP port to which a connection is about to be made, or has been made, that is tried
//!               in shared memory though it may be short
//! ```
//!
//! A `connect` looks at one bit; a call on a connection that awaits its pairing
//! looks at one word. Neither makes a system call.

/// First eight bytes of a board.
pub const MAGIC: u64 = u64::from_le_bytes(*b"shuntbrd");
/// Offset of the magic (u64).
pub const MAGIC_AT: usize = 0;
/// Offset of the protocol version (u32).
pub const PROTOCOL_AT: usize = 8;
/// Offset of the daemon's process id (u32).
pub const PID_AT: usize = 12;
/// Offset of a word that is 1 if shuntd finds the other end of a connection whatever its addresses
/// (u32): then it may be asked also for one that seems to leave the host.
pub const CROSSES_AT: usize = 16;
/// Offset of the port bitmap: bit `port % 32` of the u32 at `port / 32`.
pub const PORTS_AT: usize = 4096;
/// Offset of the mail counters (u32 each).
pub const MAIL_AT: usize = PORTS_AT + 65_536 / 8;
/// Number of mail counters; a client whose index would not fit gets none and
/// is told [`NO_MAIL`].
pub const MAIL_SLOTS: usize = 16_384;
/// Mailbox index of a client without a mail counter: it looks at its control
/// socket instead.
pub const NO_MAIL: u32 = u32::MAX;
/// Offset of the bitmap of ports at which a connector has claimed a short connection whose acceptor is to claim it, too
/// ([`crate::message::FLAG_TRIAL`]); bits as at [`PORTS_AT`].
pub const TRIALS_AT: usize = MAIL_AT + MAIL_SLOTS * 4;
/// Size of the whole board.
pub const SIZE: usize = TRIALS_AT + 65_536 / 8;
