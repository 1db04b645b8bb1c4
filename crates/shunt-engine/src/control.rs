//! The connection to shuntd: rare, never waited for on an application's path
//! except where said, and safe to lose at any moment.

use std::mem::{MaybeUninit, size_of};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::message::{self, Kind, MESSAGE_BYTES, Message, Role};
use shunt_abi::{PROTOCOL, Reason, board, layout};
use shunt_shm::arena::Arena;
use zerocopy::IntoBytes;

use crate::link::{Link, Pair};
use crate::socket::{Socket, Stage};
use crate::table::{self, Entry};
use crate::thread::Lock;
use crate::{sys, upgrade};

/// After a failure, this long until the next try.
const RETRY_NS: u64 = 1_000_000_000;
/// The longest that a daemon's answer is waited for, where one is.
const PATIENCE_MS: i64 = 50;
/// A listener looks this often (in ticks) whether the daemon has changed.
const LOOK_TICKS: u64 = 1 << 28;

static LOCK: Lock = Lock::new();
static FD: AtomicI32 = AtomicI32::new(-1);
static BOARD: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static MAILBOX: AtomicU32 = AtomicU32::new(board::NO_MAIL);
static SEEN: AtomicU32 = AtomicU32::new(0);
static RETRY_AT: AtomicU64 = AtomicU64::new(0);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
static NEXT_ARENA: AtomicU32 = AtomicU32::new(1);
/// Inode of the control socket: if the number names anything else, the program
/// has closed it behind our back.
static INODE: AtomicU64 = AtomicU64::new(0);
/// Why there is no daemon, as a reason number.
static WHY_NOT: AtomicU32 = AtomicU32::new(Reason::NoDaemon as u32);

/// Arenas that the daemon has in stock for us.
const SPARES: usize = 4;
static SPARE_NUMBERS: [AtomicU32; SPARES] = [const { AtomicU32::new(0) }; SPARES];
static SPARE_ARENAS: [AtomicPtr<u8>; SPARES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SPARES];

/// Why nothing can be paired now.
pub(crate) fn why_not() -> Reason {
    Reason::from_number(WHY_NOT.load(Ordering::Relaxed) as u8).unwrap_or(Reason::NoDaemon)
}

/// Whether some process on this host accelerates connections to `port`: one
/// look at the board.
pub(crate) fn accelerates(port: u16) -> bool {
    let board = BOARD.load(Ordering::Acquire);
    if board.is_null() {
        return false;
    }
    // SAFETY: inside the board's mapping, aligned.
    let word = unsafe {
        &*board
            .add(board::PORTS_AT + port as usize / 32 * 4)
            .cast::<AtomicU32>()
    };
    word.load(Ordering::Acquire) & 1 << (port % 32) != 0
}

/// Connects if need be and the time has come. `true` if there is a daemon.
pub(crate) fn ensure() -> bool {
    if FD.load(Ordering::Acquire) >= 0 {
        return true;
    }
    if !LOCK.take() {
        return false;
    }
    // Another thread may have connected while we waited for the lock.
    let done =
        FD.load(Ordering::Acquire) >= 0 || sys::now() >= RETRY_AT.load(Ordering::Relaxed) && open();
    LOCK.give();
    done
}

/// A server's look, now and then, whether the daemon went away or came back.
pub(crate) fn look() {
    let now = sys::ticks();
    if now.wrapping_sub(LOOKED_AT.load(Ordering::Relaxed)) < LOOK_TICKS {
        return;
    }
    LOOKED_AT.store(now, Ordering::Relaxed);
    let fd = FD.load(Ordering::Acquire);
    if fd >= 0 && sys::ready(fd, libc::POLLIN) != 0 {
        drain();
    }
    ensure();
}

/// Handles what the daemon has sent since the last look: one load if nothing.
#[inline]
pub(crate) fn check_mail() {
    let board = BOARD.load(Ordering::Acquire);
    if board.is_null() {
        return;
    }
    let index = MAILBOX.load(Ordering::Relaxed);
    if index == board::NO_MAIL {
        drain();
        return;
    }
    // SAFETY: the index was checked when it came.
    let word = unsafe {
        &*board
            .add(board::MAIL_AT + index as usize * 4)
            .cast::<AtomicU32>()
    };
    let mail = word.load(Ordering::Acquire);
    if mail != SEEN.load(Ordering::Relaxed) {
        SEEN.store(mail, Ordering::Relaxed);
        drain();
    }
}

/// Reads and handles every waiting message.
#[cold]
pub(crate) fn drain() {
    if !LOCK.try_take() {
        return;
    }
    while FD.load(Ordering::Relaxed) >= 0 && receive() {}
    LOCK.give();
}

/// Tells the daemon that this process accelerates a listener.
pub(crate) fn listen(cookie: u64, port: u16) {
    let mut m = Message::new(Kind::Listen);
    (m.cookie, m.port) = (cookie, port);
    post(&m);
}

/// Waits, within bounds, until everyone can see that `port` is accelerated, so
/// that a `connect` right behind an eager `listen` is paired too.
pub(crate) fn await_listed(port: u16) {
    let start = sys::now();
    while !accelerates(port) && sys::now() - start < PATIENCE_MS as u64 * 1_000_000 {
        sys::sched_yield();
    }
}

/// Takes it back.
pub(crate) fn unlisten(cookie: u64, port: u16) {
    let mut m = Message::new(Kind::Unlisten);
    (m.cookie, m.port) = (cookie, port);
    post(&m);
}

/// Asks for a pairing of `socket`. Returns at once.
pub(crate) fn claim(socket: &'static Socket, fd: c_int, role: Role) {
    claim_with(socket, fd, role, 0);
}

/// Asks for a pairing and waits, within bounds, for the daemon's word: so that
/// a connection whose other end has claimed it is paired when `accept` returns.
pub(crate) fn claim_now(socket: &'static Socket, fd: c_int, role: Role) {
    if !claim_with(socket, fd, role, message::FLAG_ANSWER) {
        return;
    }
    let start = sys::now();
    while socket.stage() == Stage::Claimed && !socket.answered() {
        let control = FD.load(Ordering::Acquire);
        if control < 0 {
            return;
        }
        let waited = ((sys::now() - start) / 1_000_000) as i64;
        if waited >= PATIENCE_MS {
            // It is stopped or overloaded: do without it for a while.
            close_down(Reason::NoDaemon);
            return;
        }
        sys::poll_ms(control, libc::POLLIN, PATIENCE_MS - waited);
        if !LOCK.take() {
            return;
        }
        while FD.load(Ordering::Relaxed) >= 0 && receive() {}
        LOCK.give();
    }
}

fn claim_with(socket: &'static Socket, fd: c_int, role: Role, flags: u32) -> bool {
    if !ensure() || !LOCK.take() {
        return false;
    }
    if SPARE_NUMBERS.iter().all(|n| n.load(Ordering::Relaxed) == 0) {
        stock();
    }
    let mut m = Message::new(Kind::Claim);
    (m.cookie, m.fd, m.role, m.flags) = (socket.cookie(), fd, role as u8, flags);
    fill_addresses(&mut m, fd);
    // Another thread may have been faster.
    let sent = socket.move_on(Stage::Candidate, Stage::Claimed) && send(&m, None);
    LOCK.give();
    sent
}

/// This end of a connection is closed.
pub(crate) fn release(cookie: u64) {
    let mut m = Message::new(Kind::Release);
    m.cookie = cookie;
    post(&m);
}

/// Tells what became of a connection, for `shunt ss`; `None`: it is shunted.
pub(crate) fn report(socket: &Socket, fd: c_int, reason: Option<Reason>) {
    let mut m = Message::new(Kind::Report);
    (m.cookie, m.fd, m.role) = (socket.cookie(), fd, socket.role() as u8);
    m.status = reason.map_or(0, |r| r as u8);
    fill_addresses(&mut m, fd);
    post(&m);
}

/// A forked child has its parent's connection: it must not speak on it.
pub(crate) fn after_fork_child() {
    LOCK.reset();
    let fd = FD.swap(-1, Ordering::AcqRel);
    if fd >= 0 {
        table::enter(fd, Entry::Other);
        sys::close(fd);
    }
    RETRY_AT.store(0, Ordering::Relaxed);
    // The stock is the parent's: its memory is not ours to write.
    for (number, arena) in SPARE_NUMBERS.iter().zip(&SPARE_ARENAS) {
        number.store(0, Ordering::Relaxed);
        arena.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// If `fd` is the control socket's number and the program wants it: moves.
pub(crate) fn make_way(fd: c_int) {
    if FD.load(Ordering::Acquire) == fd && LOCK.take() {
        if let Ok(other) = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1) {
            table::enter(other as c_int, Entry::Ours);
            FD.store(other as c_int, Ordering::Release);
        } else {
            FD.store(-1, Ordering::Release);
        }
        table::enter(fd, Entry::Other);
        LOCK.give();
    }
}

fn post(m: &Message) {
    if FD.load(Ordering::Acquire) >= 0 && LOCK.take() {
        send(m, None);
        LOCK.give();
    }
}

/// Whether the descriptor is still our socket.
fn intact(fd: c_int) -> bool {
    inode(fd) == INODE.load(Ordering::Relaxed)
}

fn inode(fd: c_int) -> u64 {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fills a stat; by number, past every hook.
    let done = unsafe { syscalls::syscall!(syscalls::Sysno::fstat, fd, stat.as_mut_ptr()) };
    if done.is_ok() {
        // SAFETY: zeroed plain data.
        unsafe { stat.assume_init() }.st_ino
    } else {
        0
    }
}

/// Sends with the lock held. A daemon that does not read is a daemon lost.
fn send(m: &Message, passed: Option<c_int>) -> bool {
    let fd = FD.load(Ordering::Relaxed);
    if fd < 0 {
        return false;
    }
    if !intact(fd) {
        table::enter(fd, Entry::Other);
        FD.store(-1, Ordering::Release);
        return false;
    }
    if transmit(fd, m, passed) {
        return true;
    }
    drop_connection(Reason::NoDaemon);
    false
}

/// Room for one passed descriptor, aligned as `cmsghdr` wants.
#[repr(C)]
struct Passed {
    header: libc::cmsghdr,
    fd: c_int,
    padding: c_int,
}

fn transmit(fd: c_int, m: &Message, passed: Option<c_int>) -> bool {
    let bytes = m.as_bytes();
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr() as *mut _,
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    // SAFETY: plain data.
    let mut control: Passed = unsafe { std::mem::zeroed() };
    if let Some(passed) = passed {
        control.header.cmsg_len = size_of::<libc::cmsghdr>() + size_of::<c_int>();
        control.header.cmsg_level = libc::SOL_SOCKET;
        control.header.cmsg_type = libc::SCM_RIGHTS;
        control.fd = passed;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of::<Passed>();
    }
    sys::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).is_ok()
}

/// Receives and handles one message, with the lock held.
fn receive() -> bool {
    let fd = FD.load(Ordering::Relaxed);
    if !intact(fd) {
        table::enter(fd, Entry::Other);
        FD.store(-1, Ordering::Release);
        return false;
    }
    match receive_from(fd) {
        Ok(Some((m, passed))) => {
            handle(&m, passed);
            if let Some(passed) = passed {
                sys::close(passed);
            }
            true
        }
        Ok(None) => false,
        Err(()) => {
            drop_connection(Reason::NoDaemon);
            false
        }
    }
}

/// `Ok(None)`: nothing there; `Err`: the daemon is gone or talks nonsense.
fn receive_from(fd: c_int) -> Result<Option<(Message, Option<c_int>)>, ()> {
    let mut bytes = [0u8; MESSAGE_BYTES + 1];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: plain data.
    let mut control: Passed = unsafe { std::mem::zeroed() };
    // SAFETY: all-zero is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Passed>();
    let n = match sys::recvmsg(
        fd,
        &raw mut header,
        libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
    ) {
        Ok(0) => return Err(()),
        Ok(n) => n,
        Err(libc::EAGAIN | libc::EINTR) => return Ok(None),
        Err(_) => return Err(()),
    };
    let carries = header.msg_controllen >= size_of::<libc::cmsghdr>() + size_of::<c_int>()
        && control.header.cmsg_type == libc::SCM_RIGHTS;
    let passed = carries.then_some(control.fd);
    match Message::parse(&bytes[..n]) {
        Some(m) => Ok(Some((m, passed))),
        None => {
            if let Some(passed) = passed {
                sys::close(passed);
            }
            Err(())
        }
    }
}

/// Connects, introduces itself, and waits a little for the welcome. With the lock.
fn open() -> bool {
    RETRY_AT.store(sys::now() + RETRY_NS, Ordering::Relaxed);
    // SAFETY: plain call.
    let uid = unsafe { libc::geteuid() };
    if !shunt_shm::atomic::register() {
        return false;
    }
    let Some(fd) = dial(None, uid).or_else(|| dial(Some(uid), uid)) else {
        return false;
    };
    let fd = sys::move_high(fd);
    let mut hello = Message::new(Kind::Hello);
    // SAFETY: PR_GET_NAME fills 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, hello.name.as_mut_ptr()) };
    if !transmit(fd, &hello, None) || sys::poll_ms(fd, libc::POLLIN, PATIENCE_MS) == 0 {
        sys::close(fd);
        return false;
    }
    let welcome = match receive_from(fd) {
        Ok(Some((m, passed))) if m.kind() == Some(Kind::Welcome) => (m, passed),
        _ => {
            sys::close(fd);
            return false;
        }
    };
    let (m, passed) = welcome;
    let mapped = passed.map(|b| (map_board(b), sys::close(b)).0);
    let refused = if m.protocol != PROTOCOL {
        Reason::Version as u8
    } else {
        m.status
    };
    let (0, Some(Some(board))) = (refused, mapped) else {
        WHY_NOT.store(u32::from(refused.max(1)), Ordering::Relaxed);
        sys::close(fd);
        return false;
    };
    let fits = (m.index as usize) < board::MAIL_SLOTS;
    MAILBOX.store(
        if fits { m.index } else { board::NO_MAIL },
        Ordering::Relaxed,
    );
    SEEN.store(0, Ordering::Relaxed);
    INODE.store(inode(fd), Ordering::Relaxed);
    // An old board stays mapped: another thread may be looking at it.
    BOARD.store(board, Ordering::Release);
    table::enter(fd, Entry::Ours);
    FD.store(fd, Ordering::Release);
    tell_everything();
    true
}

/// A connection to the daemon at this address, if it is one to be trusted.
fn dial(serves: Option<u32>, uid: u32) -> Option<c_int> {
    // SAFETY: plain data.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let mut name = [0u8; 40];
    let length = write_name(&mut name, serves);
    for (to, from) in address.sun_path[1..].iter_mut().zip(&name[..length]) {
        *to = *from as _;
    }
    let fd = sys::socket(
        libc::AF_UNIX,
        libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
    )
    .ok()?;
    let reached = sys::connect(fd, &address, size_of::<u16>() + 1 + length).is_ok();
    let owner = sys::getsockopt::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED);
    if reached && owner.is_ok_and(|o| o.uid == 0 || o.uid == uid) {
        return Some(fd);
    }
    sys::close(fd);
    None
}

/// [`shunt_abi::control_name`] without an allocator.
fn write_name(to: &mut [u8; 40], serves: Option<u32>) -> usize {
    use std::io::Write as _;
    let mut cursor = std::io::Cursor::new(&mut to[..]);
    let _ = match serves {
        Some(uid) => write!(cursor, "shunt/{PROTOCOL}/user/{uid}"),
        None => write!(cursor, "shunt/{PROTOCOL}/host"),
    };
    cursor.position() as usize
}

fn map_board(fd: c_int) -> Option<*mut u8> {
    // SAFETY: a new read-only shared mapping; its size is checked before use.
    let at = unsafe {
        let size = syscalls::syscall!(syscalls::Sysno::lseek, fd, 0, libc::SEEK_END).ok()?;
        if size < board::SIZE {
            return None;
        }
        syscalls::syscall!(
            syscalls::Sysno::mmap,
            0,
            board::SIZE,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd,
            0
        )
        .ok()? as *mut u8
    };
    // SAFETY: inside the mapping, aligned.
    let magic = unsafe { at.add(board::MAGIC_AT).cast::<u64>().read_volatile() };
    (magic == board::MAGIC).then_some(at)
}

/// A new daemon knows nothing: tell it of listeners and unpaired connections.
fn tell_everything() {
    for number in &SPARE_NUMBERS {
        number.store(0, Ordering::Relaxed);
    }
    table::each(|fd, entry| {
        let Entry::Socket(socket) = entry else { return };
        match socket.stage() {
            Stage::Listener => {
                let mut m = Message::new(Kind::Listen);
                (m.cookie, m.port) = (socket.cookie(), socket.port());
                send(&m, None);
            }
            Stage::Attached => {
                let mut m = Message::new(Kind::Report);
                (m.cookie, m.fd, m.role) = (socket.cookie(), fd, socket.role() as u8);
                fill_addresses(&mut m, fd);
                send(&m, None);
            }
            // Claims are made again by the next call on the connection.
            Stage::Claimed => {
                socket.move_on(Stage::Claimed, Stage::Candidate);
            }
            _ => {}
        }
    });
}

fn drop_connection(why: Reason) {
    let fd = FD.swap(-1, Ordering::AcqRel);
    if fd >= 0 {
        table::enter(fd, Entry::Other);
        sys::close(fd);
    }
    WHY_NOT.store(why as u32, Ordering::Relaxed);
    RETRY_AT.store(sys::now() + RETRY_NS / 10, Ordering::Relaxed);
}

fn close_down(why: Reason) {
    if LOCK.take() {
        drop_connection(why);
        RETRY_AT.store(sys::now() + RETRY_NS, Ordering::Relaxed);
        LOCK.give();
    }
}

/// Gives the daemon an arena in stock. With the lock.
fn stock() {
    let Some(place) = SPARE_NUMBERS
        .iter()
        .position(|n| n.load(Ordering::Relaxed) == 0)
    else {
        return;
    };
    let Ok((arena, fd)) = Arena::create() else {
        let mut m = Message::new(Kind::Spare);
        m.status = Reason::NoResources as u8;
        send(&m, None);
        return;
    };
    let number = NEXT_ARENA.fetch_add(1, Ordering::Relaxed);
    let mut m = Message::new(Kind::Spare);
    m.arena = number;
    if send(&m, Some(fd)) {
        SPARE_ARENAS[place].store(arena.address() as *mut u8, Ordering::Relaxed);
        SPARE_NUMBERS[place].store(number, Ordering::Relaxed);
    } else {
        arena.unmap();
    }
    sys::close(fd);
}

fn take_spare(number: u32) -> Option<Arena> {
    let place = SPARE_NUMBERS
        .iter()
        .position(|n| number != 0 && n.load(Ordering::Relaxed) == number)?;
    SPARE_NUMBERS[place].store(0, Ordering::Relaxed);
    let base = SPARE_ARENAS[place].swap(std::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: `stock` put the address of an own arena there.
    (!base.is_null()).then(|| unsafe { Arena::from_own_address(base) })
}

fn handle(m: &Message, passed: Option<c_int>) {
    match m.kind() {
        Some(Kind::Paired) => {
            // The link serves later pairs too, so it is opened even if this
            // connection has gone.
            let link = link_of(m, passed);
            if let Some(socket) = find(m)
                && socket.stage() == Stage::Claimed
                && link.and_then(|link| paired(socket, m, link)).is_none()
            {
                upgrade::refuse(socket, Reason::NoResources);
            }
        }
        Some(Kind::Unpaired) => {
            if let Some(socket) = find(m) {
                match Reason::from_number(m.status) {
                    Some(reason) => upgrade::refuse(socket, reason),
                    None => socket.note_answer(),
                }
            }
        }
        Some(Kind::NeedSpare) => stock(),
        Some(Kind::Gone) => {
            Link::sweep();
            Link::bury(m.link);
        }
        _ => {}
    }
}

/// The socket a message is about: by its descriptor, if it still is the one.
fn find(m: &Message) -> Option<&'static Socket> {
    table::socket(m.fd)
        .filter(|s| s.cookie() == m.cookie)
        .or_else(|| {
            table::SOCKETS
                .each()
                .find(|s| s.cookie() == m.cookie && s.is_live())
        })
}

/// The link that a pairing uses; a new one is opened.
fn link_of(m: &Message, passed: Option<c_int>) -> Option<&'static Link> {
    if m.flags & message::FLAG_NEW_LINK != 0 {
        let own = take_spare(m.arena)?;
        Link::open(m.link, m.arena, own, Arena::open(passed?).ok()?)
    } else {
        Link::find(m.link, m.arena)
    }
}

fn paired(socket: &'static Socket, m: &Message, link: &'static Link) -> Option<()> {
    if m.slot as usize >= layout::SLOTS {
        return None;
    }
    let pair = Pair::new(link, m.slot, m.generation)?;
    pair.own.begin(m.generation, pair.out);
    socket.set_pair(pair);
    Some(())
}

fn fill_addresses(m: &mut Message, fd: c_int) {
    for (i, peer) in [false, true].into_iter().enumerate() {
        let Ok(name) = sys::name(fd, peer) else {
            continue;
        };
        let (family, port, address) = crate::address::parts(&name);
        (m.family, m.ports[i], m.addresses[i]) = (family, port, address);
    }
}
