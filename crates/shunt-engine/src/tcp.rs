//! What the kernel knows of a TCP stream's offsets (`tcp(7)`, `TCP_INFO`).

use libc::c_int;
use shunt_abi::message::Role;

use crate::sys::{self, Errno};

/// The head of the kernel's `struct tcp_info`, as far as we look.
#[derive(Clone, Copy)]
#[repr(C)]
struct Info {
    state: u8,
    bytes: [u8; 5],
    /// The shifts of the peer's windows (the low half), and of this end's.
    window_scales: u8,
    flags: u8,
    words: [u32; 24],
    pacing: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
    segments: [u32; 2],
    notsent_bytes: u32,
    min_rtt: u32,
    data_segments_in: u32,
    data_segments_out: u32,
    times: [u64; 4],
    delivered: [u32; 2],
    bytes_sent: u64,
    bytes_retrans: u64,
    later: [u32; 3],
    send_window: u32,
}

const _: () = assert!(
    std::mem::offset_of!(Info, window_scales) == 6
        && std::mem::offset_of!(Info, bytes_acked) == 120
        && std::mem::offset_of!(Info, notsent_bytes) == 144
        && std::mem::offset_of!(Info, bytes_sent) == 200
        && std::mem::offset_of!(Info, send_window) == 228
);

const SIOCOUTQ: u64 = 0x5411;
const ESTABLISHED: u8 = 1;
const FIN_WAIT1: u8 = 4;
const FIN_WAIT2: u8 = 5;

// SAFETY: a C struct of integers.
unsafe impl sys::Plain for Info {}

fn info(fd: c_int) -> Option<Info> {
    sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()
}

/// How many connections a listener's queue holds (`tcpi_sacked`; `tcp_get_info`).
pub(crate) fn backlog(listener: c_int) -> u32 {
    const SACKED: usize = 5;
    info(listener).map_or(0, |info| info.words[SACKED])
}

/// Which end it is, if the connection is established: the connecting side's count of
/// acknowledged bytes includes its SYN, its count of sent ones does not. (`None`
/// before Linux 4.19, which does not count those.)
pub(crate) fn role(fd: c_int) -> Option<Role> {
    /// A connection on which this thread always loses the race is too busy to tell.
    const TRIES: usize = 16;
    let settled = || {
        let before = info(fd)?;
        let queued = sys::ioctl_int(fd, SIOCOUTQ).ok()? as u64;
        let after = info(fd)?;
        let sent = |i: &Info| i.bytes_sent.wrapping_sub(i.bytes_retrans);
        let still = before.bytes_acked == after.bytes_acked
            && sent(&before) == sent(&after)
            && before.notsent_bytes == after.notsent_bytes
            && after.state == ESTABLISHED;
        let given = sent(&after) + u64::from(after.notsent_bytes);
        still.then(|| (after.bytes_acked + queued).wrapping_sub(given))
    };
    match (0..TRIES).find_map(|_| settled())? {
        0 => Some(Role::Acceptor),
        1 => Some(Role::Connector),
        _ => None,
    }
}

/// Payload bytes given to the kernel to send so far. The connecting side's
/// count of acknowledged bytes includes its SYN. Nobody may be sending.
pub(crate) fn written(fd: c_int, role: Role) -> Option<u64> {
    given(fd, role).map(|given| given.bytes)
}

/// [`written`] for a sender that sends nothing more by TCP. `None` unless the connection is
/// established in both directions: of a peer that was killed only the kernel can tell what became
/// of a send.
pub(crate) fn written_at_last(fd: c_int, role: Role) -> Option<u64> {
    let given = given(fd, role).filter(|given| given.state == ESTABLISHED)?;
    if given.waits {
        // Nobody sends what would push out what `MSG_MORE` holds back.
        sys::push(fd);
    }
    Some(given.bytes)
}

/// What the kernel has been given to send.
struct Given {
    /// The connection's state.
    state: u8,
    /// Payload bytes.
    bytes: u64,
    /// Some of them are not sent yet.
    waits: bool,
}

fn given(fd: c_int, role: Role) -> Option<Given> {
    // An acknowledgement between the two looks would count bytes twice.
    loop {
        let before = info(fd)?;
        let queued = sys::ioctl_int(fd, SIOCOUTQ).ok()?;
        let after = info(fd)?;
        if after.bytes_acked == before.bytes_acked {
            let syn = u64::from(role == Role::Connector);
            return Some(Given {
                state: after.state,
                bytes: (before.bytes_acked + queued as u64).checked_sub(syn)?,
                waits: after.notsent_bytes != 0,
            });
        }
    }
}

/// Payload bytes taken from the kernel so far; `None` unless the connection is
/// established in both directions. Nobody may be receiving.
pub(crate) fn consumed(fd: c_int) -> Option<u64> {
    let (state, bytes) = taken(fd)?;
    (state == ESTABLISHED).then_some(bytes)
}

/// [`consumed`], also when one or both directions have ended. `None` after a reset.
pub(crate) fn consumed_at_last(fd: c_int) -> Option<u64> {
    let (_, bytes) = taken(fd)?;
    // In this order: of a connection that is reset meanwhile the count is one less, as if a FIN were in it.
    (sys::ready(fd, 0) & libc::POLLERR == 0).then_some(bytes)
}

/// Payload bytes taken so far: at least the `counted` ones of which the caller knows, since others may have taken more.
/// With them the error of a connection that has ended by one, once all bytes have been taken: the kernel tells that error
/// once, and has now told it. `was_reset`: a former call was told of it, and no FIN had come before.
pub(crate) fn consumed_since(fd: c_int, counted: u64, was_reset: bool) -> (u64, Option<Errno>) {
    const CLOSE: u8 = 7;
    match taken(fd) {
        Some((CLOSE, bytes)) if was_reset => ((bytes + 1).max(counted), None),
        // Its count does not say whether a FIN is in it; an error that it still has to tell says that
        // there is none.
        Some((CLOSE, bytes)) => {
            let mut byte = 0;
            match sys::recv(fd, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
                Err(errno) => ((bytes + 1).max(counted), Some(errno)),
                Ok(_) if bytes <= counted => (counted, None),
                Ok(_) => (bytes + 1, None),
            }
        }
        Some((_, bytes)) => (bytes.max(counted), None),
        None => (counted, None),
    }
}

/// Payload bytes that have come so far, taken or not.
pub(crate) fn received(fd: c_int) -> Option<u64> {
    payload(&info(fd)?)
}

/// How many payload bytes are still to come until `until` have come in all: none behind a FIN or a reset.
pub(crate) fn to_come(fd: c_int, until: u64) -> u64 {
    let open = info(fd).filter(may_receive);
    open.map_or(0, |info| until.saturating_sub(info.bytes_received))
}

/// A FIN counts among those received.
fn payload(info: &Info) -> Option<u64> {
    info.bytes_received
        .checked_sub(u64::from(!may_receive(info)))
}

fn may_receive(info: &Info) -> bool {
    matches!(info.state, ESTABLISHED | FIN_WAIT1 | FIN_WAIT2)
}

/// The connection's state, and the payload bytes taken. A FIN does not count among those
/// that wait.
fn taken(fd: c_int) -> Option<(u8, u64)> {
    loop {
        let before = info(fd)?;
        let waiting = sys::ioctl_int(fd, libc::FIONREAD).ok()?;
        let after = info(fd)?;
        if after.bytes_received == before.bytes_received && after.state == before.state {
            let taken = payload(&after)?.checked_sub(waiting as u64)?;
            return Some((after.state, taken));
        }
    }
}

/// What changes whenever the kernel may have an event to report.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    state: u8,
    acked: u64,
    received: u64,
}

/// How far a connection is now; `None`: there is none any more.
pub(crate) fn mark(fd: c_int) -> Option<Mark> {
    let info = info(fd)?;
    Some(Mark {
        state: info.state,
        acked: info.bytes_acked,
        received: info.bytes_received,
    })
}

/// How many segments with payload have come: about as many as the peer has sent messages.
pub(crate) fn messages_received(fd: c_int) -> u32 {
    info(fd).map_or(0, |info| info.data_segments_in)
}

/// Whether it sends segments that are smaller than those of the loopback interface (64 KiB, or half of
/// that as long as the peer's window is small).
pub(crate) fn has_small_segments(fd: c_int) -> bool {
    const LEAST: c_int = 16 << 10;
    let size = sys::getsockopt::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG);
    size.is_ok_and(|size| size < LEAST)
}

/// How much the peer's receive buffer takes, as it last said (zero before Linux 5.4), and the most
/// that it can ever say on this connection.
pub(crate) fn send_window(fd: c_int) -> (u32, u32) {
    info(fd).map_or((0, u32::MAX), |info| {
        (info.send_window, 0xffff << (info.window_scales & 0xf))
    })
}

/// All payload that the kernel has carried: (sent, received), for statistics. One
/// look, since every connection pays for it when it ends: what was put on the wire
/// for the first time, and what waits for that. (Zero before Linux 4.19.)
pub(crate) fn carried(fd: c_int) -> (u64, u64) {
    info(fd).map_or((0, 0), |i| {
        let first = i.bytes_sent.saturating_sub(i.bytes_retrans);
        (first + u64::from(i.notsent_bytes), i.bytes_received)
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// The accepted end, and the connecting one.
    fn connection() -> [TcpStream; 2] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [listener.accept().unwrap().0, connector]
    }

    #[test]
    fn each_end_knows_which_it_is_and_counts_no_syn() {
        let ends = connection();
        let roles = [Role::Acceptor, Role::Connector];
        for (mut end, is) in ends.iter().zip(roles) {
            assert_eq!(role(end.as_raw_fd()), Some(is));
            assert_eq!(written(end.as_raw_fd(), is), Some(0));
            end.write_all(b"bytes").unwrap();
            assert_eq!(role(end.as_raw_fd()), Some(is));
            assert_eq!(written(end.as_raw_fd(), is), Some(5));
        }
    }

    #[test]
    fn a_fin_is_no_byte_of_the_stream() {
        let [mut one, mut other] = connection();
        let fd = other.as_raw_fd();
        one.write_all(b"abc").unwrap();
        assert_ne!(sys::poll_ms(fd, libc::POLLIN, 10_000), 0);
        assert_eq!((received(fd), consumed(fd)), (Some(3), Some(0)));
        one.shutdown(Shutdown::Write).unwrap();
        assert_ne!(sys::poll_ms(fd, libc::POLLRDHUP, 10_000), 0);
        // A stream that has ended is not counted for a ring.
        assert_eq!((received(fd), consumed(fd)), (Some(3), None));
        assert_eq!(consumed_at_last(fd), Some(0));
        other.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(consumed_at_last(fd), Some(3));
    }
}
