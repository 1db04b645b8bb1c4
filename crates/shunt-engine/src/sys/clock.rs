//! Which time is it?

/// Ticks of the time-stamp counter: only for bounds, never shown.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads the virtual counter, which user space may.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        // The counter runs slower than a core; bounds are in core ticks.
        ticks * 32
    }
}

/// What time it is, as the control message of `SO_TIMESTAMP` or the like says it: in seconds, and
/// micro- or nanoseconds.
pub(crate) fn wall_clock(option: libc::c_int) -> [i64; 2] {
    const SO_TIMESTAMP_NEW: libc::c_int = 63;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec`, for which there is room.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    let is_coarse = matches!(option, libc::SO_TIMESTAMP | SO_TIMESTAMP_NEW);
    [time.tv_sec, time.tv_nsec / if is_coarse { 1000 } else { 1 }]
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec`, for which there is room.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
