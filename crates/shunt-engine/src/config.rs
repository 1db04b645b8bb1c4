//! What `shunt run` tells the library through the environment.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use shunt_abi::Reason;

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
static UPGRADE: AtomicU8 = AtomicU8::new(Upgrade::Adaptive as u8);

/// Reads an environment variable without allocating.
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: called from the constructor; the environment outlives the copy that
    // callers make at once.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

/// Reads the settings.
pub(crate) fn read() {
    let mode = match variable(c"SHUNT_UPGRADE").map(CStr::to_bytes) {
        Some(b"eager") => Upgrade::Eager,
        Some(b"off") => Upgrade::Off,
        _ => Upgrade::Adaptive,
    };
    UPGRADE.store(mode as u8, Ordering::Relaxed);
    let denied = variable(c"SHUNT_IO_URING").map(CStr::to_bytes) == Some(b"deny");
    let rings = if denied { Rings::Denied } else { Rings::None };
    RINGS.store(rings as u8, Ordering::Relaxed);
}

/// When connections are upgraded.
#[inline]
pub(crate) fn upgrade() -> Upgrade {
    match UPGRADE.load(Ordering::Relaxed) {
        1 => Upgrade::Eager,
        2 => Upgrade::Off,
        _ => Upgrade::Adaptive,
    }
}

/// Why connections are not upgraded, if they are not.
pub(crate) fn against() -> Option<Reason> {
    match (upgrade(), rings()) {
        (Upgrade::Off, _) if CONFINED.load(Ordering::Relaxed) => Some(Reason::Confined),
        (Upgrade::Off, Rings::InUse) => Some(Reason::IoUring),
        (Upgrade::Off, _) => Some(Reason::Disabled),
        _ => None,
    }
}

/// Whether the program uses `io_uring`, or may.
pub(crate) fn rings() -> Rings {
    match RINGS.load(Ordering::Relaxed) {
        1 => Rings::InUse,
        2 => Rings::Denied,
        _ => Rings::None,
    }
}

/// The program uses `io_uring`: upgrades are off for the rest of its life.
pub(crate) fn use_rings() {
    if upgrade() != Upgrade::Off {
        RINGS.store(Rings::InUse as u8, Ordering::Relaxed);
        UPGRADE.store(Upgrade::Off as u8, Ordering::Relaxed);
    }
}

/// The program gives up system calls: upgrades are off for the rest of its life.
pub(crate) fn confine() {
    if upgrade() != Upgrade::Off {
        CONFINED.store(true, Ordering::Relaxed);
        UPGRADE.store(Upgrade::Off as u8, Ordering::Relaxed);
    }
}
