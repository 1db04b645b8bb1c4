//! Descriptors of an emulated NIC's: at high numbers, out of the way of the program whose process it is in.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::refused;
use crate::transport::Refused;

/// From this number on, or from as many below the limit where that is lower.
const HIGH: u64 = 960;
const BELOW_LIMIT: u64 = 64;

/// The same at a high number.
pub(super) fn high<D: From<OwnedFd> + AsRawFd>(low: D) -> Result<D, Refused> {
    // SAFETY: integers only; the new descriptor is nobody's yet.
    let high = unsafe { libc::fcntl(low.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first()) };
    if high < 0 {
        return Err(refused("a high descriptor"));
    }
    // SAFETY: made above.
    Ok(unsafe { OwnedFd::from_raw_fd(high) }.into())
}

fn first() -> libc::c_int {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a place for one limit. Where that is not said, it is taken for the lowest.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur.saturating_sub(BELOW_LIMIT).min(HIGH) as libc::c_int
}
