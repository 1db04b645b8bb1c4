//! Pages of our own, and whether an address of the program is good.

/// New zeroed private memory, or null.
pub(crate) fn map(bytes: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    map_as(std::ptr::null_mut(), bytes, flags)
}

/// Puts zeroed memory that forked children go on sharing in the place of what is at `at`, which is
/// ours. `false`: there is none, and what is there stays.
pub(crate) fn map_shared_at(at: *mut u8, bytes: usize) -> bool {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    !map_as(at, bytes, flags).is_null()
}

fn map_as(at: *mut u8, bytes: usize, flags: libc::c_int) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_ANONYMOUS;
    call!(mmap, at, bytes, prot, flags, usize::MAX, 0)
        .map_or(std::ptr::null_mut(), |at| at as *mut u8)
}

/// Memory that forked children find zeroed; null if there is none.
pub(crate) fn map_wiped_on_fork(bytes: usize) -> *mut u8 {
    let at = map(bytes);
    if !at.is_null() && !wipe_on_fork(at, bytes, true) {
        unmap(at, bytes);
        return std::ptr::null_mut();
    }
    at
}

/// Whether forked children find such memory zeroed, or as it is. `false`: the kernel knows nothing of that.
pub(crate) fn wipe_on_fork(at: *mut u8, bytes: usize, wiped: bool) -> bool {
    let advice = if wiped {
        libc::MADV_WIPEONFORK
    } else {
        libc::MADV_KEEPONFORK
    };
    call!(madvise, at, bytes, advice).is_ok()
}

/// The end of what a program can address that does not ask for more (`TASK_SIZE` in the
/// kernel, which keeps the last page to itself on x86-64).
pub(crate) const USER_END: usize = if cfg!(target_arch = "aarch64") {
    1 << 48
} else {
    (1 << 47) - 4096
};

/// Gives such memory back.
pub(crate) fn unmap(at: *mut u8, bytes: usize) {
    let _ = call!(munmap, at, bytes);
}

/// Whether the kernel could read the eight bytes there, which we may then read
/// without a fault.
pub fn is_readable<T>(at: *const T) -> bool {
    let first = at as usize;
    let last = first.wrapping_add(7);
    // A page can be read, or not, as a whole.
    !at.is_null() && has_word(first) && (first & !4095 == last & !4095 || has_word(last))
}

/// Whether the kernel could read the aligned word that holds this byte.
fn has_word(at: usize) -> bool {
    let word = at & !3;
    // The kernel compares the word with the last argument, then wakes nobody and moves
    // nobody. That is a call without any effect, which tools that stand in for the
    // kernel (valgrind) know, too.
    let operation = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    call!(futex, word, operation, 0, 0, word, 0) != Err(libc::EFAULT)
}

/// A part of a file's memory, shared, at a place of ours if `at` is not null; or null.
pub(crate) fn map_file(at: *mut u8, fd: libc::c_int, bytes: usize, offset: usize) -> *mut u8 {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | fixed;
    call!(mmap, at, bytes, prot, flags, fd as usize, offset)
        .map_or(std::ptr::null_mut(), |at| at as *mut u8)
}

/// Whether files may be so large here: else making one would raise SIGXFSZ.
pub(crate) fn may_grow_to(bytes: u64) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    call!(prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit).is_ok() && limit.rlim_cur >= bytes
}

/// A new memory file of this size.
pub(crate) fn memory_file(name: &std::ffi::CStr, bytes: usize) -> Option<libc::c_int> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let fd = call!(memfd_create, name.as_ptr(), flags).ok()? as libc::c_int;
    if call!(ftruncate, fd, bytes).is_ok() {
        return Some(fd);
    }
    super::close(fd);
    None
}

/// From now on nobody can resize a memory file.
pub(crate) fn seal_size(fd: libc::c_int) -> bool {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    super::fcntl(fd, libc::F_ADD_SEALS, seals as usize).is_ok()
}

/// Whether a file has this size, and nobody can make it smaller.
pub(crate) fn is_sealed(fd: libc::c_int, bytes: usize) -> bool {
    let seals = super::fcntl(fd, libc::F_GET_SEALS, 0).unwrap_or(0);
    seals & libc::F_SEAL_SHRINK as usize != 0 && call!(lseek, fd, 0, libc::SEEK_END) == Ok(bytes)
}

/// Sets the last seal of a memory file. `false`: somebody else has.
pub(crate) fn seal(fd: libc::c_int) -> bool {
    super::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SEAL as usize).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_good_if_all_eight_bytes_there_are() {
        let page = map(8192);
        assert!(is_readable(page) && is_readable(page.wrapping_add(4092)));
        unmap(page.wrapping_add(4096), 4096);
        assert!(is_readable(page.wrapping_add(4088)) && !is_readable(page.wrapping_add(4092)));
        assert!(!is_readable(std::ptr::null::<u8>()));
        unmap(page, 4096);
        assert!(!is_readable(page));
    }

    #[test]
    fn a_sealed_file_keeps_its_size() {
        let fd = memory_file(c"test", 4096).unwrap();
        assert!(!is_sealed(fd, 4096) && seal_size(fd));
        assert!(is_sealed(fd, 4096) && !is_sealed(fd, 8192) && !is_sealed(-1, 4096));
        // SAFETY: the descriptor is this test's.
        assert_eq!(unsafe { libc::ftruncate(fd, 0) }, -1);
        super::super::close(fd);
    }
}
