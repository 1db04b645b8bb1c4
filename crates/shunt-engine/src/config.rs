//! What `shunt run` tells the library through the environment.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

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

/// Switches upgrades off for the rest of this process's life.
pub(crate) fn disable() {
    UPGRADE.store(Upgrade::Off as u8, Ordering::Relaxed);
}
