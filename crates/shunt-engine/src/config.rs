//! What `shunt run` tells the library through the environment.

use shunt_shm::path;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use shunt_abi::Reason;

use crate::sys;

/// Data calls after which a connection has shown that it will live (adaptive).
/// A one-request connection makes about four at each end.
pub(crate) const LIVES_AFTER: u32 = 5;

/// Data calls after which nobody will come any more to pair a connection with.
pub(crate) const GIVEN_UP_AFTER: u32 = 1024 * LIVES_AFTER;

/// When connections are upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Upgrade {
    /// Once they show that they will live.
    Adaptive = 0,
    /// At once.
    Eager = 1,
    /// Never.
    Off = 2,
    /// Before `connect` and `accept` return, as far as that can be: for tests.
    Sync = 3,
}

/// What the program has to do with `io_uring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Rings {
    /// Nothing yet.
    None = 0,
    /// It has set one up.
    InUse = 1,
    /// It is told that the kernel has none.
    Denied = 2,
}

static RINGS: AtomicU8 = AtomicU8::new(Rings::None as u8);
static CONFINED: AtomicBool = AtomicBool::new(false);
/// Why upgrades are off where they are, as a reason number.
static AGAINST: AtomicU8 = AtomicU8::new(Reason::Disabled as u8);
/// All connections of the process go back to TCP at each of its waits whose number is a multiple of this (a test's
/// switch); 0: never.
static RESTLESS: AtomicU32 = AtomicU32::new(0);
/// Waits of the process so far; not counted while [`RESTLESS`] is 0.
static WAITS: AtomicU32 = AtomicU32::new(0);
/// One in this many steps of a change of way pauses; 0: none.
static HESITANT: AtomicU32 = AtomicU32::new(0);
/// Connections that are closed in order are put aside for the next ones (a test's switch).
static RECYCLES: AtomicBool = AtomicBool::new(false);
/// The value of `SHUNT_SOCKET`. Copied, since a program may write its title over its environment.
static SOCKET: OnceLock<([u8; SOCKET_BYTES], usize)> = OnceLock::new();
/// As long as the path in a socket's address may be (`unix(7)`), with the zero at its end.
const SOCKET_BYTES: usize = 108;
/// The value of `SHUNT_WIRE`, copied for the same reason: where to find the emulated NICs by which other hosts are
/// reached (a test's switch).
static WIRE: OnceLock<([u8; SOCKET_BYTES], usize)> = OnceLock::new();
/// In the page of [`thread::identity`](crate::thread): every start looks at it.
#[unsafe(link_section = ".data")]
static UPGRADE: AtomicU8 = AtomicU8::new(Upgrade::Adaptive as u8);

/// The environment that the process starts with.
#[derive(Clone, Copy)]
pub(crate) struct Environment(*const *const c_char);

impl Environment {
    /// # Safety
    /// The third argument of a constructor, in that constructor.
    pub(crate) unsafe fn new(strings: *const *const c_char) -> Self {
        Self(strings)
    }

    /// What follows `name`, which ends in `=`. Looked for here, since libc's
    /// `getenv` is a page that most programs need not have touched yet.
    #[unsafe(link_section = "shunt_start")]
    pub(crate) fn get(self, name: &str) -> Option<&'static CStr> {
        let mut at = self.0;
        // SAFETY: an array of strings that ends with a null pointer, unchanged since
        // the process began.
        unsafe {
            while !(*at).is_null() {
                let string = CStr::from_ptr(*at);
                if string.to_bytes().starts_with(name.as_bytes()) {
                    return Some(CStr::from_ptr((*at).add(name.len())));
                }
                at = at.add(1);
            }
        }
        None
    }

    #[inline(always)]
    fn bytes(self, name: &str) -> Option<&'static [u8]> {
        self.get(name).map(CStr::to_bytes)
    }

    #[inline(always)]
    fn number(self, name: &str) -> Option<u32> {
        let digits = std::str::from_utf8(self.bytes(name)?).ok()?;
        digits.parse::<u32>().ok()
    }
}

/// Reads the settings.
#[unsafe(link_section = "shunt_start")]
pub(crate) fn read(environment: Environment) {
    let (variable, number) = (
        |name| environment.bytes(name),
        |name| environment.number(name),
    );
    let mode = match variable("SHUNT_UPGRADE=") {
        Some(b"eager") => Upgrade::Eager,
        Some(b"sync") => Upgrade::Sync,
        Some(b"off") => Upgrade::Off,
        _ => Upgrade::Adaptive,
    };
    // What is so already is not written, which would take a page.
    if mode != Upgrade::Adaptive {
        UPGRADE.store(mode as u8, Ordering::Relaxed);
    }
    if let Some(waits) = number("SHUNT_RESTLESS=") {
        RESTLESS.store(waits, Ordering::Relaxed);
    }
    if let Some(steps) = number("SHUNT_HESITANT=") {
        HESITANT.store(steps, Ordering::Relaxed);
        path::pause_with(hesitate);
    }
    if number("SHUNT_RECYCLE=").is_some_and(|on| on != 0) {
        RECYCLES.store(true, Ordering::Relaxed);
    }
    let path = |name| variable(name).filter(|path| !path.is_empty());
    if let Some(socket) = path("SHUNT_SOCKET=") {
        keep(&SOCKET, socket);
        // Only there: a test has daemons of its own.
        path("SHUNT_WIRE=")
            .into_iter()
            .for_each(|wire| keep(&WIRE, wire));
    }
    if variable("SHUNT_IO_URING=") == Some(b"deny") {
        RINGS.store(Rings::Denied as u8, Ordering::Relaxed);
    }
}

fn keep(place: &OnceLock<([u8; SOCKET_BYTES], usize)>, path: &[u8]) {
    let mut copy = [0; SOCKET_BYTES];
    if let Some(room) = copy.get_mut(..path.len()) {
        room.copy_from_slice(path);
    }
    let _ = place.set((copy, path.len()));
}

/// Where emulated NICs are, if other hosts are to be reached by them.
pub(crate) fn wire() -> Option<&'static Path> {
    let (path, length) = WIRE.get()?;
    Some(Path::new(OsStr::from_bytes(path.get(..*length)?)))
}

/// Has them there, as the environment does.
#[cfg(test)]
pub(crate) fn set_wire(directory: &Path) {
    keep(&WIRE, directory.as_os_str().as_bytes());
}

/// The file at which the host's daemon listens, if `SHUNT_SOCKET` names one. A path that fits no address is kept, as
/// one that no daemon has: a user who names a file trusts no other daemon.
pub(crate) fn socket() -> Option<&'static [u8]> {
    let (path, length) = SOCKET.get()?;
    Some(path.get(..*length).unwrap_or(path))
}

/// A thread is about to wait. `true`: a test wishes all connections to change their way.
#[inline]
pub(crate) fn is_restless() -> bool {
    let every = RESTLESS.load(Ordering::Relaxed);
    every != 0 && WAITS.fetch_add(1, Ordering::Relaxed).is_multiple_of(every)
}

/// Whether connections that are closed in order are put aside for the next ones: a test wishes it.
#[inline]
pub(crate) fn recycles() -> bool {
    RECYCLES.load(Ordering::Relaxed) && upgrade() != Upgrade::Off
}

/// Turns that on or off, as the environment does.
#[cfg(test)]
pub(crate) fn set_recycles(on: bool) {
    RECYCLES.store(on, Ordering::Relaxed);
}

/// Called between two steps of a change of way, where another thread or process may act: to make
/// that likely, a test has this thread pause at one in [`HESITANT`] of these steps.
#[inline]
pub(crate) fn hesitate() {
    #[cfg(test)]
    meanwhile::act();
    let one_of = HESITANT.load(Ordering::Relaxed);
    if one_of != 0 {
        pause_at(one_of);
    }
}

/// What a test has happen at the next step at which this thread would pause.
#[cfg(test)]
pub(crate) mod meanwhile {
    use std::cell::Cell;

    thread_local! {
        static NEXT: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    pub(crate) fn set(action: fn()) {
        NEXT.set(Some(action));
    }

    /// Whether it has happened.
    pub(crate) fn is_over() -> bool {
        NEXT.get().is_none()
    }

    pub(super) fn act() {
        if let Some(action) = NEXT.take() {
            action();
        }
    }
}

#[cold]
fn pause_at(one_of: u32) {
    const LONGEST_US: u64 = 400;
    // The last digits of the time-stamp counter are as good as random, spread over the word.
    let random = sys::ticks().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    if random.is_multiple_of(one_of.into()) {
        // Not by yields: beside busy programs one takes some hundred milliseconds.
        sys::nap((random >> 24) % LONGEST_US * 1000);
    }
}

/// When connections are upgraded.
#[inline]
pub(crate) fn upgrade() -> Upgrade {
    match UPGRADE.load(Ordering::Relaxed) {
        1 => Upgrade::Eager,
        2 => Upgrade::Off,
        3 => Upgrade::Sync,
        _ => Upgrade::Adaptive,
    }
}

/// Whether a connection is claimed when it is made.
pub(crate) fn claims_at_once() -> bool {
    matches!(upgrade(), Upgrade::Eager | Upgrade::Sync)
}

/// Why connections are not upgraded, if they are not.
pub(crate) fn against() -> Option<Reason> {
    let number = AGAINST.load(Ordering::Relaxed);
    (upgrade() == Upgrade::Off).then(|| Reason::from_number(number).unwrap_or(Reason::Disabled))
}

/// Upgrades are off for the rest of the process's life.
fn turn_off(why: Reason) {
    AGAINST.store(why as u8, Ordering::Relaxed);
    UPGRADE.store(Upgrade::Off as u8, Ordering::Relaxed);
}

/// Whether the program uses `io_uring`, or may.
pub(crate) fn rings() -> Rings {
    match RINGS.load(Ordering::Relaxed) {
        1 => Rings::InUse,
        2 => Rings::Denied,
        _ => Rings::None,
    }
}

/// The program uses `io_uring`: no more upgrades.
pub(crate) fn use_rings() {
    if upgrade() != Upgrade::Off {
        RINGS.store(Rings::InUse as u8, Ordering::Relaxed);
        turn_off(Reason::IoUring);
    }
}

/// The process shares its table of descriptors with another one: no more upgrades.
pub(crate) fn share_table() {
    if upgrade() != Upgrade::Off {
        turn_off(Reason::SharedTable);
    }
}

/// The program gives up system calls: no more upgrades.
pub(crate) fn confine() {
    CONFINED.store(true, Ordering::Relaxed);
    turn_off(Reason::Confined);
}

/// Whether it has. Then a system call of the library's that the program would not make itself may end the process.
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(strings: &[&CStr], name: &str) -> Option<&'static [u8]> {
        let mut pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(std::ptr::null());
        // SAFETY: it is only asked, and what it names outlives this test.
        let environment = unsafe { Environment::new(pointers.as_ptr()) };
        environment.get(name).map(CStr::to_bytes)
    }

    #[test]
    fn a_variable_is_what_follows_its_name() {
        assert_eq!(
            found(&[c"A=1", c"SHUNT_X=two"], "SHUNT_X="),
            Some(&b"two"[..])
        );
        assert_eq!(found(&[c"SHUNT_X="], "SHUNT_X="), Some(&b""[..]));
    }

    #[test]
    fn a_longer_name_is_another_variable() {
        assert_eq!(found(&[c"SHUNT_XY=1", c"OLD_SHUNT_X=2"], "SHUNT_X="), None);
        assert_eq!(found(&[], "SHUNT_X="), None);
    }

    #[test]
    fn the_first_of_two_counts() {
        assert_eq!(found(&[c"A=1", c"A=2"], "A="), Some(&b"1"[..]));
    }
}
