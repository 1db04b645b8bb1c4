//! Control messages between libshunt, `shunt` and shuntd: one fixed-size
//! record per `SOCK_SEQPACKET` datagram, in the host's byte order. (Rows of a list may share one:
//! [`crate::detail::FLAG_TOGETHER`].)
//!
//! ```text
//! client                               shuntd
//!   Hello  ───────────────────────────>
//!          <─────────────────────────── Welcome (+ board fd)
//!   Counters (+ region fd) ───────────>         what the process counts
//!   Statistics (+ file fd) ───────────>         where its line goes if it is killed
//!   Spare  (+ arena fd) ──────────────>         memory for a link to come, of the size asked for
//!   Listen / Unlisten ────────────────>         directory of listeners
//!   Claim  ───────────────────────────>         "descriptor 7, cookie c"
//!          <─────────────────────────── Cores (+ page), before the first link, and the first one with another group
//!          <─────────────────────────── Paired (+ peer's arena fd on a new link)
//!          <─────────────────────────── Unpaired (the answer when Claim asked for one)
//!   Report ───────────────────────────>         path or reason, for `shunt ss`, where that changes
//!   Release ──────────────────────────>         the connection is closed here
//!          <─────────────────────────── NeedSpare, Gone
//!          <─────────────────────────── Abroad (+ socket, to call peers elsewhere or be called by them)
//!   Abroad ───────────────────────────>         "so many more of these"; the last of the answer has no socket
//!   Retire ───────────────────────────>         "a forked child of mine has this link's memory"
//!   Lend ─────────────────────────────>         "the other end's descriptor, for a moment"
//!          <─────────────────────────── Lent (+ that descriptor, or an offer to send by it)
//!   Resend (+ file of bytes) ─────────>         "send these by the other end"
//!          <─────────────────────────── Resent
//!          <─────────────────────────── Downgrade (`shunt downgrade` or a changed policy wishes it)
//!   Where ────────────────────────────>         "where is the other end?", for the statistics
//!          <─────────────────────────── Where
//!          <─────────────────────────── Meet      the other end is on another host
//!   Word ─────────────────────────────>         to the process at the other end of a link between hosts
//!          <─────────────────────────── Word
//!   Hosts ────────────────────────────>         `shunt host` asks what is known of other hosts
//!          <─────────────────────────── Host, …, End
//! ```
//!
//! A message whose length or kind is not known is ignored by a client and ends
//! the connection at shuntd.

use std::borrow::Cow;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs)] // Named as in the picture above.
pub enum Kind {
    Hello = 1,
    Welcome = 2,
    Spare = 3,
    Listen = 4,
    Unlisten = 5,
    Claim = 6,
    Paired = 7,
    Unpaired = 8,
    Report = 9,
    Release = 10,
    NeedSpare = 11,
    /// The peer process of a link is dead, nobody has used the link for a while, or a relative of
    /// one side has its memory: no new connection will use it.
    Gone = 12,
    /// A client asks for the descriptor of a connection's other end.
    Lend = 13,
    /// It is attached; or there is none.
    Lent = 14,
    /// A connection is to go back to TCP: `shunt downgrade` says so to the daemon, and
    /// that to the holders of both ends.
    Downgrade = 15,
    /// The client's counters region, see [`crate::counters`].
    Counters = 16,
    /// The statistics file, open for appending: shuntd writes the client's line to it if
    /// the client dies without.
    Statistics = 17,
    /// A client asks why a connection stays on TCP, where it does not know itself; the answer.
    Where = 18,
    /// A client asks whether it alone has a socket; and the answer.
    Alone = 19,
    /// `shunt ss` asks for every connection.
    List = 20,
    /// One connection.
    Row = 21,
    /// The list is complete.
    End = 22,
    /// One listener.
    Listener = 23,
    /// Another process has memory of this link since a fork: no new connection may use it.
    Retire = 24,
    /// A datagram socket of the network namespace in which clients of different ones call each other; or
    /// the wish for more.
    Abroad = 25,
    /// Counters of the connection of the row before, see [`crate::detail`].
    Detail = 26,
    /// A client has bytes that are to be sent to it by the other end of its connection, which it is not lent.
    Resend = 27,
    /// They are sent, or will not be.
    Resent = 28,
    /// A connection's other end is on another host, and has been claimed there, too.
    Meet = 29,
    /// From one process to another on another host, with which it has a link.
    Word = 30,
    /// `shunt host` asks for every other host that is known.
    Hosts = 31,
    /// One of them.
    Host = 32,
    /// The process at the other end of a connection between hosts has died.
    Died = 33,
    /// The page of the cores, see [`crate::cores`].
    Cores = 34,
}

impl Kind {
    /// The kind with this number, if there is one.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Spare,
            4 => Self::Listen,
            5 => Self::Unlisten,
            6 => Self::Claim,
            7 => Self::Paired,
            8 => Self::Unpaired,
            9 => Self::Report,
            10 => Self::Release,
            11 => Self::NeedSpare,
            12 => Self::Gone,
            13 => Self::Lend,
            14 => Self::Lent,
            15 => Self::Downgrade,
            16 => Self::Counters,
            17 => Self::Statistics,
            18 => Self::Where,
            19 => Self::Alone,
            20 => Self::List,
            21 => Self::Row,
            22 => Self::End,
            23 => Self::Listener,
            24 => Self::Retire,
            25 => Self::Abroad,
            26 => Self::Detail,
            27 => Self::Resend,
            28 => Self::Resent,
            29 => Self::Meet,
            30 => Self::Word,
            31 => Self::Hosts,
            32 => Self::Host,
            33 => Self::Died,
            34 => Self::Cores,
            _ => return None,
        })
    }
}

/// Which end of a TCP connection a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// It called `connect`.
    Connector = 0,
    /// It called `accept`.
    Acceptor = 1,
}

/// The one record every message uses. Fields that a kind does not name are zero.
///
/// | kind | fields |
/// |---|---|
/// | Hello | `protocol`, `name` (the process's `comm`) |
/// | Welcome | `protocol`, `status` (0, or a [`crate::Reason`] number), `index` (mail counter), `flags` bit 8: as the board's [`crate::board::CROSSES_AT`] |
/// | Counters, Statistics, Cores | descriptor attached |
/// | Spare | `arena` (the client's number for it), `slot` (as NeedSpare says); descriptor attached, or a `status` |
/// | Listen, Unlisten | `cookie`, `port` |
/// | Claim | `cookie`, `fd`, `role`, `flags` bit 0: answer even if nothing matches; bit 3: the client has not made it, `index` of its descriptors name it; bit 4: its peer has gone elsewhere; bit 10: it may be met on another host; bit 12: it is a trial, to `port` |
/// | Paired | `cookie`, `fd` (as claimed), `link`, `slot`, `generation`, `arena` (own, always); `flags` bit 1: new link, then the peer's arena is attached; bit 8: the other end is in another network namespace |
/// | Abroad | from the daemon: a socket attached, `role`: 0, to call by, or 1, to be called at; or none, `flags`: [`FLAG_ANSWER`]: the answer is complete, `index`: of how many sockets to be called at it consisted; to it: `index`: how many of these are wanted |
/// | Gone | `link`; `flags` bit 5: nobody has had a slot of it for a while, so it may be unmapped at once; bit 10: it is between hosts, whose handles are counted apart; bit 11: the peer process has died, which may be said behind a first Gone that does not say so |
/// | Retire | `link` |
/// | Unpaired | `cookie`, `fd` (as claimed), `status`: 0 (nobody claims the other end yet; `flags` bit 6: somebody does, and the pairing comes later) or a reason; with `PEER_LEFT` the `link`, `slot` and `generation` of which the other end was let go unused |
/// | Report | `cookie`, `fd`, `role`, `family`, `ports`, `addresses`, `status`: 0 (shunted) or a reason; `flags` bit 7: it has been shunted. That a connection is shunted for the first time is said by the counters region; without one, by this |
/// | Release | `cookie`; `flags` bit 7: both ends have been attached, so the other one waits for nobody |
/// | NeedSpare | `slot`: how many slots the arena is to have |
/// | List | `flags`: [`crate::detail::FLAG_DETAILS`], [`crate::detail::FLAG_TOGETHER`], `index`: how many together, at most; 0: [`crate::detail::TOGETHER`] |
/// | End | – |
/// | Lend | `cookie`, `fd`: the client's own end |
/// | Lent | `cookie`, `status`: 0 and the other end's descriptor attached, or a reason; `flags` bit 9: the client may not have it, but the daemon sends by it (Resend) |
/// | Resend | `cookie`, `fd`: the client's own end; a memory file attached, in which the bytes are. Whoever sets its seal `F_SEAL_SEAL` first decides: the daemon, and sends them, or the client, and they are not sent |
/// | Resent | `cookie`, `status`: 0, or a reason, and nothing was sent |
/// | Alone | to the daemon: `cookie`, `fd`, `index` of its descriptors name it, `generation` (the question's number); from it: `cookie`, `fd`, `generation`, `status`: 0, or a reason |
/// | Downgrade | from the daemon: `cookie`, `fd`, `status`: 0, or the reason of a changed policy; to it: `family`, `ports`, `addresses`, answered by an End with the `index` of holders told |
/// | Where | `cookie`, `fd`, `status`: the reason so far, `family`, `ports` and `addresses`; from the daemon: `cookie`, `fd`, `index`: the reason so far, `status`: 0 or the reason in its place |
/// | Row | `family`, `addresses`, `pids`, `name`, `peer_name`, `status`, `flags` bit 2: shunted, `bytes`; [`Message::containers`] |
/// | Meet | `cookie`, `fd` (as claimed), `link` (a handle of the link's for this client), `slot`, `generation`, `role`: 0 if this host's name is the smaller one; `flags` bit 1: new link; the first of `bytes`: what the process may still pin, in bytes |
/// | Word | `link`; [`Message::text`] |
/// | Died | `cookie`, `fd` (as claimed), `link`, `slot`, `generation`; the first of `bytes`: how much it had received and sent through the rings |
/// | Hosts | – |
/// | Host | the first of `family` and `addresses`; `status`: 0, or the reason for connections there; `index`: connections that were met; `slot`: claims there that wait; `link`: seconds since that is so |
/// | Listener | the first of `family`, `addresses`, `ports`, `pids` and [`Message::containers`]; `name` |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Message {
    /// [`Kind`] as a number.
    pub kind: u16,
    /// [`crate::PROTOCOL`] of the sender, in every message.
    pub protocol: u16,
    /// Descriptor number in the client.
    pub fd: i32,
    /// `SO_COOKIE` of the socket in question: the kernel's name for it.
    pub cookie: u64,
    /// Identifies the link between two processes, unique in a daemon's life.
    pub link: u64,
    /// Slot in both arenas of the link, or how many of them an arena is to have.
    pub slot: u32,
    /// Changes each time a slot is handed out, never zero.
    pub generation: u32,
    /// The client's own number for one of its arenas.
    pub arena: u32,
    /// Mail counter of the client, a number of descriptors, or a [`crate::Reason`] as a number.
    pub index: u32,
    /// TCP port in host order.
    pub port: u16,
    /// [`Role`] as a number.
    pub role: u8,
    /// Zero or a [`crate::Reason`] as a number.
    pub status: u8,
    /// See the table.
    pub flags: u32,
    /// Process ids: [holder of the first address, holder of the second]; 0 = unknown.
    pub pids: [u32; 2],
    /// `AF_INET` or `AF_INET6`.
    pub family: u16,
    /// Ports of [first, second] end, host order.
    pub ports: [u16; 2],
    /// Zero.
    pub reserved: u16,
    /// Addresses of [first, second] end, network order; IPv4 in the first four bytes.
    pub addresses: [[u8; 16]; 2],
    /// `comm` of the process, zero padded.
    pub name: [u8; 16],
    /// `comm` of the peer, zero padded.
    pub peer_name: [u8; 16],
    /// Payload sent by the [first, second] end: [through rings, through the kernel].
    pub bytes: [[u64; 2]; 2],
}

/// [`Message::flags`]: the client waits for an answer to this claim; of Abroad from the daemon: this is the last message of
/// an answer.
pub const FLAG_ANSWER: u32 = 1;
/// [`Message::flags`]: the pairing opens a new link.
pub const FLAG_NEW_LINK: u32 = 2;
/// [`Message::flags`]: the connection's bytes move through shared memory.
pub const FLAG_SHUNTED: u32 = 4;

/// [`Message::flags`]: the client did not make the socket: it is paired once no other
/// process has it.
pub const FLAG_ADOPTED: u32 = 8;
/// [`Message::flags`]: who held the other end has handed it on, so the client wants
/// another slot.
pub const FLAG_AGAIN: u32 = 16;
/// [`Message::flags`]: no connection has used the link for a while.
pub const FLAG_UNUSED: u32 = 32;

/// [`Message::flags`]: the other end has been claimed too, and the pairing will come once there is
/// memory for it.
pub const FLAG_MATCHED: u32 = 64;

/// [`Message::flags`]: the connection's bytes move through shared memory, or did; of one that is
/// released: could, at both ends.
pub const FLAG_USED: u32 = 128;

/// [`Message::flags`]: the daemon finds the other end of a connection whatever its addresses; or the other end of this one
/// is in another network namespace.
pub const FLAG_CROSSES: u32 = 256;

/// [`Message::flags`]: the daemon sends by the other end of a connection, which it does not lend.
pub const FLAG_RESENDS: u32 = 512;

/// [`Message::flags`]: the client can use a connection whose other end is on another host (Meet).
pub const FLAG_REACHES: u32 = 1024;

/// [`Message::flags`]: the process at the other end of the link has died (Gone).
pub const FLAG_DIED: u32 = 2048;

/// [`Message::flags`]: the connection is one of many short ones, and its acceptor is to claim it, too (Claim).
pub const FLAG_TRIAL: u32 = 4096;

/// Bytes of a [`Message::text`].
pub const TEXT_BYTES: usize = 96;
/// The longest name of an RDMA device, in bytes: `IB_DEVICE_NAME_MAX`.
pub const DEVICE_BYTES: usize = 64;

/// Number of sockets to be called at that a client is given with its first link to another network namespace.
pub const SOCKETS: u32 = 8;

/// The most of these sockets that one answer brings.
pub const MOST_SOCKETS: u32 = 64;

/// Size of every message.
pub const MESSAGE_BYTES: usize = size_of::<Message>();

const _: () = assert!(MESSAGE_BYTES == 160);
const _: () = assert!(std::mem::offset_of!(Message, addresses) + TEXT_BYTES == MESSAGE_BYTES);
const _: () = assert!(Message::DEVICE_AT + DEVICE_BYTES == std::mem::offset_of!(Message, bytes));
// Sixteen bytes for each.
const _: () = assert!(
    Message::CONTAINERS_AT[1] - Message::CONTAINERS_AT[0] == 16
        && std::mem::offset_of!(Message, port) - Message::CONTAINERS_AT[1] == 16
);

impl Message {
    /// A message of this kind with all other fields zero.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        let mut message = Self::new_zeroed();
        message.kind = kind as u16;
        message.protocol = crate::PROTOCOL;
        message
    }

    /// The message in `bytes`, if they are exactly one.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok()
    }

    /// Where a row has the containers of its processes, zero padded: in the place of what names sockets,
    /// slots and arenas.
    const DEVICE_AT: usize = std::mem::offset_of!(Self, addresses);
    const CONTAINERS_AT: [usize; 2] = [
        std::mem::offset_of!(Self, cookie),
        std::mem::offset_of!(Self, slot),
    ];

    /// The containers of a row's [first, second] process, if they are in one and the asker may know that.
    #[must_use]
    pub fn containers(&self) -> [Option<Cow<'_, str>>; 2] {
        Self::CONTAINERS_AT.map(|at| {
            let name = self.as_bytes()[at..].first_chunk();
            name.map(comm_text).filter(|name| !name.is_empty())
        })
    }

    /// Names the container of the first (0) or second (1) process of a row.
    pub fn set_container(&mut self, process: usize, name: &[u8; 16]) {
        let at = Self::CONTAINERS_AT[process];
        self.as_mut_bytes()[at..at + name.len()].copy_from_slice(name);
    }

    /// What a Word says: it is in the place of addresses, names and counts.
    #[must_use]
    pub fn text(&self) -> [u8; TEXT_BYTES] {
        let mut text = [0; TEXT_BYTES];
        text.copy_from_slice(&self.as_bytes()[MESSAGE_BYTES - TEXT_BYTES..]);
        text
    }

    /// Has it say that.
    pub fn set_text(&mut self, text: &[u8; TEXT_BYTES]) {
        self.as_mut_bytes()[MESSAGE_BYTES - TEXT_BYTES..].copy_from_slice(text);
    }

    /// The RDMA device that a Meet names; empty: any. It is in the place of addresses and names.
    #[must_use]
    pub fn device(&self) -> String {
        let bytes = &self.as_bytes()[Self::DEVICE_AT..][..DEVICE_BYTES];
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// Names it. What is longer than [`DEVICE_BYTES`] is no device's name.
    pub fn set_device(&mut self, name: &str) {
        let place = &mut self.as_mut_bytes()[Self::DEVICE_AT..][..DEVICE_BYTES];
        place.fill(0);
        for (to, from) in place.iter_mut().zip(name.bytes()) {
            *to = from;
        }
    }

    /// What it is, if known.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.kind)
    }
}

/// A `comm` as text, for display.
#[must_use]
pub fn comm_text(name: &[u8; 16]) -> Cow<'_, str> {
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meeting_names_its_device_and_keeps_its_count() {
        let mut meet = Message::new(Kind::Meet);
        meet.bytes[0][0] = 7;
        assert_eq!(meet.device(), "");
        let longest = "d".repeat(DEVICE_BYTES);
        for name in ["mlx5_0", &longest, "rxe0"] {
            meet.set_device(name);
            assert_eq!((meet.device().as_str(), meet.bytes[0][0]), (name, 7));
        }
    }

    #[test]
    fn a_word_has_its_text_and_nothing_else_changes() {
        let mut word = Message::new(Kind::Word);
        word.link = 7;
        let text = std::array::from_fn(|i| i as u8);
        word.set_text(&text);
        assert_eq!(word.text(), text);
        assert_eq!((word.kind(), word.link), (Some(Kind::Word), 7));
        assert_eq!(word.addresses[0][1], 1);
    }

    #[test]
    fn a_row_names_the_containers_of_its_processes_and_nothing_else_changes() {
        let mut row = Message::new(Kind::Row);
        assert_eq!(row.containers(), [None, None]);
        row.set_container(1, b"0123456789ab\0\0\0\0");
        assert_eq!(row.containers(), [None, Some("0123456789ab".into())]);
        row.set_container(0, b"sixteen-letters!");
        assert_eq!(row.containers()[0].as_deref(), Some("sixteen-letters!"));
        let before = Message::new(Kind::Row);
        assert_eq!((row.fd, row.port), (before.fd, before.port));
        assert_eq!((row.kind, row.protocol), (before.kind, before.protocol));
    }
}
