//! Counters, and the line that each process appends to the statistics file.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};

use shunt_abi::Reason;

use crate::config::{self, Environment};
use crate::socket::{Counts, Socket, Stage};
use crate::{sys, table, tcp, thread};

/// Where the line goes: a path, copied at start because programs change their
/// environment.
static mut PATH: [u8; 4096] = [0; 4096];
static ENABLED: AtomicBool = AtomicBool::new(false);
/// The file, where it had to be opened early.
static FILE: AtomicI32 = AtomicI32::new(-1);
/// The name of the process, since then.
static COMM: [AtomicU8; 16] = [const { AtomicU8::new(0) }; 16];
/// The process whose line has been written.
static WRITTEN: AtomicI32 = AtomicI32::new(0);

static TOTAL: AtomicU64 = AtomicU64::new(0);
static SHUNTED: AtomicU64 = AtomicU64::new(0);
static DOWNGRADED: AtomicU64 = AtomicU64::new(0);
static REASONS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static TX: Sums = Sums::new();
static RX: Sums = Sums::new();
/// Readiness calls answered without, and with, a system call.
static READY_USER: AtomicU64 = AtomicU64::new(0);
static READY_KERNEL: AtomicU64 = AtomicU64::new(0);
static READY_SLEEPS: AtomicU64 = AtomicU64::new(0);
/// Calls of sleeping sets sent, and received.
static CALLS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

struct Sums {
    ring: AtomicU64,
    kernel: AtomicU64,
    user_calls: AtomicU64,
    kernel_calls: AtomicU64,
    doorbells: AtomicU64,
    sleeps: AtomicU64,
}

impl Sums {
    const fn new() -> Self {
        Self {
            ring: AtomicU64::new(0),
            kernel: AtomicU64::new(0),
            user_calls: AtomicU64::new(0),
            kernel_calls: AtomicU64::new(0),
            doorbells: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
        }
    }

    fn add(&self, counts: &Counts, carried: u64) {
        let o = Ordering::Relaxed;
        self.ring.fetch_add(counts.ring_bytes.load(o), o);
        self.kernel.fetch_add(carried, o);
        self.user_calls.fetch_add(counts.user_calls.load(o), o);
        self.kernel_calls.fetch_add(counts.kernel_calls.load(o), o);
        self.doorbells.fetch_add(counts.doorbells.load(o), o);
        self.sleeps.fetch_add(counts.sleeps.load(o), o);
    }

    fn clear(&self) {
        for sum in [
            &self.ring,
            &self.kernel,
            &self.user_calls,
            &self.kernel_calls,
            &self.doorbells,
            &self.sleeps,
        ] {
            sum.store(0, Ordering::Relaxed);
        }
    }
}

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
        ENABLED.store(true, Ordering::Release);
        thread::set_used();
    }
}

/// Whether anybody will read the counts that cost something.
#[inline(always)]
pub(crate) fn enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// A data call on a socket that the kernel serves.
#[inline]
pub(crate) fn kernel_call(socket: &Socket) {
    if enabled() {
        socket.rx.kernel_calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// A peer's sleeping set has been called: a doorbell of another kind.
pub(crate) fn calls() {
    CALLS[0].fetch_add(1, Ordering::Relaxed);
}

/// One of ours has been.
pub(crate) fn called() {
    CALLS[1].fetch_add(1, Ordering::Relaxed);
}

/// A readiness call on shunted descriptors.
#[inline]
pub(crate) fn ready_call(by_kernel: bool) {
    if enabled() {
        if by_kernel {
            &READY_KERNEL
        } else {
            &READY_USER
        }
        .fetch_add(1, Ordering::Relaxed);
    }
}

/// A readiness call went to sleep.
pub(crate) fn ready_sleep() {
    READY_SLEEPS.fetch_add(1, Ordering::Relaxed);
}

/// Adds what a socket has done, at the end of its life or of the process.
pub(crate) fn add(socket: &Socket) {
    let o = Ordering::Relaxed;
    if !enabled() {
        return;
    }
    // What the kernel carried, less the doorbells.
    let carried = || {
        if config::is_confined() {
            return (0, 0);
        }
        let (sent, received) = tcp::carried(socket.fd());
        let less = |bytes: u64, of: &Counts| {
            bytes.saturating_sub(of.before.load(o) + of.doorbells.load(o))
        };
        (less(sent, &socket.tx), less(received, &socket.rx))
    };
    if !socket.connected.load(o) {
        // The parent's connection; what this process moved on it is its own. The kernel
        // does not say who moved what: a child that only has it leaves that to the others.
        let served = socket.rx.kernel_calls.load(o) != 0;
        let (sent, received) = if served { carried() } else { (0, 0) };
        TX.add(&socket.tx, sent);
        RX.add(&socket.rx, received);
        return;
    }
    TOTAL.fetch_add(1, o);
    let shunted = socket.pair().is_some_and(|p| {
        use shunt_shm::slot::Way;
        Way::load(&p.own.sending.way) == Way::Ring
            || Way::load(&p.own.receiving.way) == Way::Ring
            || socket.tx.ring_bytes.load(o) + socket.rx.ring_bytes.load(o) > 0
    });
    let downgraded = socket.downgraded.load(o) != 0;
    SHUNTED.fetch_add(u64::from(shunted), o);
    DOWNGRADED.fetch_add(u64::from(downgraded), o);
    if !shunted || downgraded {
        let reason = match (socket.reason(), socket.stage()) {
            (Reason::Pending, Stage::Candidate) => Reason::ShortLived,
            (reason, _) => reason,
        };
        REASONS[reason as usize].fetch_add(1, o);
    }
    let (sent, received) = carried();
    TX.add(&socket.tx, sent);
    RX.add(&socket.rx, received);
}

/// A forked child counts for itself.
pub(crate) fn after_fork_child() {
    for sum in [
        &TOTAL,
        &SHUNTED,
        &DOWNGRADED,
        &READY_USER,
        &READY_KERNEL,
        &READY_SLEEPS,
        &CALLS[0],
        &CALLS[1],
    ] {
        sum.store(0, Ordering::Relaxed);
    }
    for reason in &REASONS {
        reason.store(0, Ordering::Relaxed);
    }
    TX.clear();
    RX.clear();
    for socket in table::SOCKETS.each().filter(|s| s.is_live()) {
        socket.tx.clear();
        socket.rx.clear();
        if enabled() {
            let (sent, received) = tcp::carried(socket.fd());
            socket.tx.before.store(sent, Ordering::Relaxed);
            socket.rx.before.store(received, Ordering::Relaxed);
        }
        // It is the parent's to count, unless the child moves bytes on it.
        socket.connected.store(false, Ordering::Relaxed);
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
    let any = table::SOCKETS
        .each()
        .any(|s| s.is_live() && s.connected.load(Ordering::Relaxed));
    if any || TOTAL.load(Ordering::Relaxed) > 0 {
        write();
    }
}

/// Appends this process's line before it ends. Where it may write no more to any
/// file (`RLIMIT_FSIZE`) it goes without: the signal for that is blocked, and the end
/// comes before it is not.
pub(crate) fn write_at_last() {
    const TOO_LARGE: u64 = 1 << (libc::SIGXFSZ - 1);
    if enabled() {
        let mask = sys::block_signals(TOO_LARGE);
        if write() {
            sys::set_signal_mask(mask);
        }
    }
}

/// Appends this process's line, once. `false`: it may not.
fn write() -> bool {
    let pid = thread::pid() as i32;
    if !enabled() || sys::getpid() as i32 != pid || WRITTEN.swap(pid, Ordering::AcqRel) == pid {
        return true;
    }
    for socket in table::SOCKETS.each().filter(|s| s.is_live()) {
        add(socket);
    }
    let mut line = Line {
        bytes: [0; 4096],
        length: 0,
    };
    let _ = format(&mut line, pid);
    let kept = FILE.load(Ordering::Relaxed);
    let fd = if kept >= 0 { Some(kept) } else { open() };
    // One write, so that lines of several processes do not mix.
    let written = fd.is_none_or(|fd| sys::write(fd, line.bytes.as_ptr(), line.length).is_ok());
    if let Some(fd) = fd.filter(|&fd| fd != kept) {
        sys::close(fd);
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

/// Opens the file while the process still may.
pub(crate) fn prepare() {
    if enabled()
        && FILE.load(Ordering::Relaxed) < 0
        && let Some(fd) = open().map(sys::move_high)
    {
        table::enter(fd, table::Entry::Ours);
        for (kept, byte) in COMM.iter().zip(comm()) {
            kept.store(byte, Ordering::Relaxed);
        }
        FILE.store(fd, Ordering::Relaxed);
    }
}

/// What the kernel calls this process.
fn comm() -> [u8; 16] {
    let mut comm = [0u8; 16];
    // SAFETY: PR_GET_NAME fills 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, comm.as_mut_ptr()) };
    comm
}

/// After an exec that failed the process goes on, and will write again.
pub(crate) fn forget_written() {
    WRITTEN.store(0, Ordering::Release);
}

fn format(line: &mut Line, pid: i32) -> std::fmt::Result {
    let get = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
    // Who has prepared for less rights may have lost this one too.
    let comm = match FILE.load(Ordering::Relaxed) {
        0.. => COMM.each_ref().map(|byte| byte.load(Ordering::Relaxed)),
        _ => comm(),
    };
    write!(line, "{{\"pid\":{pid},\"comm\":\"")?;
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
        get(&TOTAL),
        get(&SHUNTED),
        get(&DOWNGRADED)
    )?;
    let mut comma = "";
    for reason in Reason::ALL {
        let n = get(&REASONS[*reason as usize]);
        if n > 0 {
            write!(line, "{comma}\"{}\":{n}", reason.name())?;
            comma = ",";
        }
    }
    let bytes = |sums: &Sums| (get(&sums.ring), get(&sums.kernel));
    let ((tr, tk), (rr, rk)) = (bytes(&TX), bytes(&RX));
    let user = get(&TX.user_calls) + get(&RX.user_calls) + get(&READY_USER);
    let kernel = get(&TX.kernel_calls) + get(&RX.kernel_calls) + get(&READY_KERNEL);
    let sleeps = get(&TX.sleeps) + get(&RX.sleeps) + get(&READY_SLEEPS);
    writeln!(
        line,
        "}},\"tx\":{{\"ring_bytes\":{tr},\"kernel_bytes\":{tk}}},\"rx\":{{\"ring_bytes\":{rr},\"kernel_bytes\":{rk}}},\
         \"calls\":{{\"user\":{user},\"kernel\":{kernel}}},\
         \"doorbells\":{{\"sent\":{},\"received\":{}}},\"sleeps\":{sleeps}}}",
        get(&TX.doorbells) + get(&CALLS[0]),
        get(&RX.doorbells) + get(&CALLS[1])
    )
}
