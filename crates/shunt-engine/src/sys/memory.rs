//! Pages of our own, and whether an address of the program is good.

/// New zeroed private memory, or null.
pub(crate) fn map(bytes: usize) -> *mut u8 {
    map_as(bytes, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
}

/// Memory that forked children go on sharing; null if there is none.
pub(crate) fn map_shared(bytes: usize) -> *mut u8 {
    map_as(bytes, libc::MAP_SHARED)
}

fn map_as(bytes: usize, flags: libc::c_int) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_ANONYMOUS;
    call!(mmap, 0, bytes, prot, flags, usize::MAX, 0)
        .map_or(std::ptr::null_mut(), |at| at as *mut u8)
}

/// Memory that forked children find zeroed; null if there is none.
pub(crate) fn map_wiped_on_fork(bytes: usize) -> *mut u8 {
    let at = map(bytes);
    if !at.is_null() && call!(madvise, at, bytes, libc::MADV_WIPEONFORK).is_err() {
        unmap(at, bytes);
        return std::ptr::null_mut();
    }
    at
}

/// Gives such memory back.
pub(crate) fn unmap(at: *mut u8, bytes: usize) {
    let _ = call!(munmap, at, bytes);
}

/// Whether the kernel could read the eight bytes there, which we may then read
/// without a fault.
pub fn is_readable<T>(at: *const T) -> bool {
    // The set is read before the operation, which is none, is refused.
    !at.is_null() && call!(rt_sigprocmask, usize::MAX, at, 0, 8) != Err(libc::EFAULT)
}
