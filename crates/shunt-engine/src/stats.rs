//! What sockets have done, and the line that each process appends to the statistics file as it ends. Of a process that is killed,
//! also by a signal of its own, shuntd appends it (`shuntd/src/account.rs`).

use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_abi::message::Role;

use crate::config::{self, LIVES_AFTER};
use crate::region::line_file;
use crate::socket::{SOCKETS, Socket, Stage};
use crate::{control, region, sys, tcp, thread};

/// Makes this process known to the daemon, which writes its line of statistics if it is killed.
/// Done at the start, so that no process is missed.
pub(crate) fn announce() {
    if line_file::is_on() && !config::is_confined() {
        control::ensure();
    }
}

/// Makes a forked child known to the daemon. The child does not sleep for that.
pub(crate) fn announce_child() {
    if line_file::is_on() && !config::is_confined() {
        control::ensure_without_waiting();
    }
}

/// A data call on a socket that the kernel serves.
#[inline]
pub(crate) fn kernel_call(socket: &'static Socket) {
    if line_file::is_on() {
        let calls = socket.rx.kernel_calls.fetch_add(1, Ordering::Relaxed);
        if calls < 16 || calls.is_multiple_of(16) {
            look(socket);
            if !config::is_confined() {
                control::inquire(socket, calls);
            }
        }
    }
}

/// Notes what the kernel has carried: nobody can ask it any more once the process has
/// been killed.
pub(crate) fn look(socket: &Socket) {
    if line_file::is_on() && !config::is_confined() {
        let (sent, received) = tcp::carried(socket.fd());
        socket.tx.kernel_bytes.store(sent, Ordering::Relaxed);
        socket.rx.kernel_bytes.store(received, Ordering::Relaxed);
        note_plain_peer(socket);
    }
}

/// A peer under Shunt claims its end once it has made a handful of calls. A peer that has sent more messages, and has
/// not, stays on TCP; should its claim come after all, the pairing says so.
fn note_plain_peer(socket: &Socket) {
    const SURELY: u32 = 2 * LIVES_AFTER;
    if socket.stage() == Stage::Claimed
        && socket.role() == Role::Acceptor
        && socket.reason() == Reason::Pending
        && tcp::messages_received(socket.fd()) >= SURELY
    {
        socket.set_reason(Reason::PeerPlain);
    }
}

/// Adds what a socket has done to the sums, at the end of its life.
pub(crate) fn add(socket: &Socket) {
    if line_file::is_on()
        && let Some(header) = region::header()
    {
        if !config::is_confined() {
            note_plain_peer(socket);
        }
        let (shunted, carried) = (has_been_shunted(socket), carried(socket));
        header.add(&socket.record, shunted, carried);
    }
}

/// Adds to the sums what a connection has done that began in its rings and never left them: the kernel has carried nothing.
fn add_in_rings(socket: &Socket) {
    if line_file::is_on()
        && let Some(header) = region::header()
    {
        header.add(&socket.record, has_been_shunted(socket), (0, 0));
    }
}

/// Adds to the sums what a connection has done whose socket the next connection gets, and begins to count anew.
pub(crate) fn add_and_begin(socket: &Socket) {
    let (record, o) = (&socket.record, Ordering::Relaxed);
    let is_again = socket.origin.is_again();
    let (sent, received) = if is_again {
        add_in_rings(socket);
        (record.tx.before.load(o), record.rx.before.load(o))
    } else {
        add(socket);
        let asks = line_file::is_on() && !config::is_confined();
        if asks {
            tcp::carried(socket.fd())
        } else {
            (0, 0)
        }
    };
    record.since.store(0, o);
    record.connected.store(0, o);
    socket.note_whole(false);
    record.tx.clear();
    record.rx.clear();
    record.tx.before.store(sent, o);
    record.rx.before.store(received, o);
}

/// Payload that the kernel carried (sent, received).
fn carried(socket: &Socket) -> (u64, u64) {
    // What has never been connected, nor used here, does not count.
    let counts = socket.is_connected() || socket.rx.kernel_calls.load(Ordering::Relaxed) != 0;
    if config::is_confined() || !counts {
        return (0, 0);
    }
    let (sent, received) = tcp::carried(socket.fd());
    (socket.tx.payload(sent), socket.rx.payload(received))
}

fn has_been_shunted(socket: &Socket) -> bool {
    use shunt_shm::slot::Way;
    let on_ring = |pair: &crate::link::Pair| {
        Way::load(&pair.own.sending.way) == Way::Ring
            || Way::load(&pair.own.receiving.way) == Way::Ring
    };
    socket
        .pair()
        .is_some_and(|pair| on_ring(pair) || socket.record.has_used_rings())
}

/// A forked child counts for itself, in a region that is empty yet. What it has inherited
/// is the parent's to count, unless the child moves bytes on it.
pub(crate) fn after_fork_child() {
    line_file::show_file();
    for socket in SOCKETS.each().filter(|s| s.is_live()) {
        socket.show();
        if line_file::is_on() {
            let (sent, received) = tcp::carried(socket.fd());
            socket.tx.before.store(sent, Ordering::Relaxed);
            socket.rx.before.store(received, Ordering::Relaxed);
        }
    }
}

/// A fixed buffer to format into; no allocator at the end of a process.
struct Line {
    bytes: [u8; 4096],
    length: usize,
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.length..];
        let n = text.len().min(room.len());
        room[..n].copy_from_slice(&text.as_bytes()[..n]);
        self.length += n;
        Ok(())
    }
}

/// Appends the line if there has been any connection.
pub(crate) fn write_if_any() {
    let any = SOCKETS.each().any(|s| s.is_live() && s.is_connected());
    let Some(header) = region::header().filter(|_| is_own()) else {
        return;
    };
    if any || header.total.load(Ordering::Relaxed) > 0 {
        write();
    }
    // No line is due any more: it is written, or there was no connection. The next program writes its own.
    header.written.store(1, Ordering::Release);
}

/// Appends this process's line before it ends. Where it may write no more to any
/// file (`RLIMIT_FSIZE`) it goes without: the signal for that is blocked, and the end
/// comes before it is not.
pub(crate) fn write_at_last() {
    const TOO_LARGE: u64 = 1 << (libc::SIGXFSZ - 1);
    if line_file::is_on() && !config::is_confined() {
        let mask = sys::block_signals(TOO_LARGE);
        if write() {
            sys::set_signal_mask(mask);
        }
    }
}

/// Whether this is the process whose counts these are, not a `vfork` child of it, and writes its own
/// line: of one that has given up system calls shuntd writes it, like that of one that is killed.
fn is_own() -> bool {
    line_file::is_on() && !config::is_confined() && sys::getpid() == thread::pid()
}

/// Appends this process's line, once. `false`: it may not.
fn write() -> bool {
    let Some(header) = region::header().filter(|_| is_own()) else {
        return true;
    };
    // Before the line counts as written: until then shuntd writes it, if the process is killed.
    if header.written.load(Ordering::Acquire) == 0 {
        control::await_answers();
    }
    if header.written.swap(1, Ordering::AcqRel) != 0 {
        return true;
    }
    header.set_comm(&sys::comm());
    let sums = header.copy();
    for socket in SOCKETS.each().filter(|s| s.is_live()) {
        sums.add(&socket.record, has_been_shunted(socket), carried(socket));
    }
    let mut line = Line {
        bytes: [0; 4096],
        length: 0,
    };
    let _ = sums.write_line(&mut line, thread::pid());
    let kept = line_file::file();
    let Some(fd) = kept.or_else(line_file::open) else {
        // The daemon may have the file still.
        header.written.store(0, Ordering::Release);
        return true;
    };
    // One write, so that lines of several processes do not mix.
    let written = sys::write(fd, line.bytes.as_ptr(), line.length).is_ok();
    if kept.is_none() {
        sys::close(fd);
    }
    if !written {
        header.written.store(0, Ordering::Release);
    }
    written
}

/// After an exec that failed the process goes on, and will write again.
pub(crate) fn forget_written() {
    if let Some(header) = region::header().filter(|_| is_own()) {
        header.written.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_ends_where_the_buffer_does() {
        use std::fmt::Write as _;
        let mut line = Line {
            bytes: [0; 4096],
            length: 0,
        };
        for _ in 0..1000 {
            write!(line, "12345").unwrap();
        }
        assert_eq!((line.length, line.bytes[4095]), (4096, b'1'));
    }
}
