//! Counters, and the line that each process appends to the statistics file.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shunt_abi::Reason;
use shunt_abi::counters::Header;
use shunt_abi::message::Role;

use crate::config::{self, Environment};
use crate::kept::Kept;
use crate::socket::{SOCKETS, Socket, Stage};
use crate::{control, region, sys, tcp, thread, upgrade};

/// Where the line goes: a path, copied at start because programs change their
/// environment.
static mut PATH: [u8; 4096] = [0; 4096];
static ENABLED: AtomicBool = AtomicBool::new(false);
/// The file, opened while the process still may.
static FILE: Kept = Kept::nothing();

/// Reads where to write.
pub(crate) fn start(environment: Environment) {
    let Some(path) = environment.get("SHUNT_STATS=").map(CStr::to_bytes_with_nul) else {
        return;
    };
    if path.len() > 1 && path.len() <= 4096 {
        // SAFETY: in the constructor, before any other thread.
        unsafe {
            (&raw mut PATH)
                .cast::<u8>()
                .copy_from_nonoverlapping(path.as_ptr(), path.len())
        };
        region::ensure();
        ENABLED.store(true, Ordering::Release);
        thread::set_used();
        if open().map(sys::move_high).is_some_and(|fd| FILE.keep(fd)) {
            show_file();
        }
    }
}

/// Says in the region which descriptor the file is: for a daemon that comes later.
fn show_file() {
    if let Some(header) = region::header() {
        let fd = file().unwrap_or(-1);
        header.served.lines.store(fd, Ordering::Relaxed);
    }
}

/// Makes this process known to the daemon, which writes its line should it be killed.
/// At start and in each forked child, so that none is missed.
pub(crate) fn announce() {
    if enabled() && !config::is_confined() {
        control::ensure();
    }
}

/// The file, if the program has not closed it behind our back.
pub(crate) fn file() -> Option<i32> {
    FILE.get()
}

/// The program wants this number: ours moves.
pub(crate) fn make_way(fd: i32) {
    FILE.make_way(fd);
    show_file();
}

/// Whether anybody will read the counts that cost something.
#[inline(always)]
pub(crate) fn enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Adds one to a count of the whole process.
fn count(which: impl FnOnce(&Header) -> &AtomicU64) {
    if let Some(header) = region::header() {
        which(header).fetch_add(1, Ordering::Relaxed);
    }
}

/// A data call on a socket that the kernel serves.
#[inline]
pub(crate) fn kernel_call(socket: &'static Socket) {
    if enabled() {
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
    if enabled() && !config::is_confined() {
        let (sent, received) = tcp::carried(socket.fd());
        socket.tx.kernel_bytes.store(sent, Ordering::Relaxed);
        socket.rx.kernel_bytes.store(received, Ordering::Relaxed);
        note_plain_peer(socket);
    }
}

/// A peer under Shunt claims its end once it has made a handful of calls. Who has sent more
/// messages, and has not, stays on TCP; should its claim come after all, the pairing says so.
fn note_plain_peer(socket: &Socket) {
    const SURELY: u32 = 2 * upgrade::LIVES_AFTER;
    if socket.stage() == Stage::Claimed
        && socket.role() == Role::Acceptor
        && socket.reason() == Reason::Pending
        && tcp::messages_received(socket.fd()) >= SURELY
    {
        socket.set_reason(Reason::PeerPlain);
    }
}

/// A peer that sleeps has been called.
pub(crate) fn calls() {
    count(|header| &header.calls[0]);
}

/// One of ours has been.
pub(crate) fn called() {
    count(|header| &header.calls[1]);
}

/// A readiness call on shunted descriptors.
#[inline]
pub(crate) fn ready_call(by_kernel: bool) {
    if enabled() {
        if by_kernel {
            count(|header| &header.ready_kernel);
        } else {
            count(|header| &header.ready_user);
        }
    }
}

/// A readiness call went to sleep.
pub(crate) fn ready_sleep() {
    count(|header| &header.ready_sleeps);
}

/// Adds what a socket has done to the sums, at the end of its life.
pub(crate) fn add(socket: &Socket) {
    if enabled()
        && let Some(header) = region::header()
    {
        if !config::is_confined() {
            note_plain_peer(socket);
        }
        let (shunted, carried) = (has_been_shunted(socket), carried(socket));
        header.add(&socket.record, shunted, carried);
    }
}

/// A connection that has been counted with one reason had another.
pub(crate) fn recount(former: Reason, reason: Reason) {
    if let Some(header) = region::header() {
        let count = |reason: Reason| &header.reasons[reason as usize];
        let one_less = |n: u64| n.checked_sub(1);
        let o = Ordering::Relaxed;
        if count(former).fetch_update(o, o, one_less).is_ok() {
            count(reason).fetch_add(1, o);
        }
    }
}

/// Payload that the kernel carried (sent, received).
fn carried(socket: &Socket) -> (u64, u64) {
    if config::is_confined() {
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
    show_file();
    for socket in SOCKETS.each().filter(|s| s.is_live()) {
        socket.show();
        if enabled() {
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
    // Nobody need write a line for a process that has none until it is another program.
    header.written.store(1, Ordering::Release);
}

/// Appends this process's line before it ends. Where it may write no more to any
/// file (`RLIMIT_FSIZE`) it goes without: the signal for that is blocked, and the end
/// comes before it is not.
pub(crate) fn write_at_last() {
    const TOO_LARGE: u64 = 1 << (libc::SIGXFSZ - 1);
    if enabled() && !config::is_confined() {
        let mask = sys::block_signals(TOO_LARGE);
        if write() {
            sys::set_signal_mask(mask);
        }
    }
}

/// Whether this is the process whose counts these are, not a `vfork` child of it, and writes its own
/// line: of one that has given up system calls shuntd writes it, like that of one that is killed.
fn is_own() -> bool {
    enabled() && !config::is_confined() && sys::getpid() == thread::pid()
}

/// Appends this process's line, once. `false`: it may not.
fn write() -> bool {
    let Some(header) = region::header().filter(|_| is_own()) else {
        return true;
    };
    // Not in between: shuntd writes the line of who is killed meanwhile.
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
    let kept = file();
    let Some(fd) = kept.or_else(open) else {
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

fn open() -> Option<i32> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // PATH was written in the constructor and is NUL-terminated.
    let path = (&raw const PATH) as usize;
    // SAFETY: a valid path; a new descriptor of our own.
    unsafe { syscalls::syscall!(syscalls::Sysno::openat, libc::AT_FDCWD, path, flags, 0o666) }
        .ok()
        .map(|fd| fd as i32)
}

/// After an exec that failed the process goes on, and will write again.
pub(crate) fn forget_written() {
    if let Some(header) = region::header().filter(|_| is_own()) {
        header.written.store(0, Ordering::Release);
    }
}
