//! The program's buffers, as far as the kernel would take them.

use libc::{c_int, c_void, iovec, msghdr};

use super::target::is_candidate;
use crate::stream::AT_ONCE;
use crate::sys::{self, Errno, USER_END};
use crate::{Outcome, config, signal};

/// `UIO_MAXIOV`: the kernel takes no more buffers in one call.
pub(super) const IOV_MAX: usize = 1024;

/// `MAX_RW_COUNT`: the kernel moves no more in one call (`read(2)`, NOTES).
pub(super) const MOST: usize = 0x7fff_f000;

/// Whether no program can have data at this address: the kernel says `EFAULT` where a copy of ours
/// would crash.
#[inline(always)]
pub(super) fn is_bad(base: *const c_void, length: usize) -> bool {
    let room = USER_END.wrapping_sub(base as usize);
    length > 0 && (room > USER_END - 4096 || length > room)
}

/// [`is_bad`] of no more than `most` bytes, in fewer instructions; it is bad also if it is longer, or empty.
#[inline(always)]
pub(super) fn is_bad_or_long(base: *const c_void, length: usize, most: usize) -> bool {
    const LEAST: usize = 4096;
    debug_assert!(most < USER_END - LEAST);
    length.wrapping_sub(1) >= most
        || (base as usize).wrapping_sub(LEAST) > USER_END - LEAST - length
}

/// Whether these bytes reach beyond what the kernel leaves to programs: it says `EFAULT` before it looks at the socket, also of
/// no bytes at all (`access_ok` in `import_ubuf`).
pub(super) fn is_beyond(base: *const c_void, length: usize) -> bool {
    USER_END
        .checked_sub(base as usize)
        .is_none_or(|room| length > room)
}

/// Whether that is so of any buffer in a list.
pub(super) fn has_bad(parts: &[iovec]) -> bool {
    before_bad(parts).len() < parts.len()
}

/// What comes before the first bad buffer of a list.
pub(super) fn before_bad(parts: &[iovec]) -> &[iovec] {
    let is_such = |p: &iovec| is_bad(p.iov_base, p.iov_len.min(MOST));
    &parts[..parts.iter().position(is_such).unwrap_or(parts.len())]
}

/// The part of a list that is sent: all of it; or what comes before the first bad buffer, if that is
/// so much that the kernel would have copied and sent it before it meets the bad one.
pub(super) fn sendable(parts: &[iovec]) -> &[iovec] {
    match before_bad(parts) {
        good if good.len() == parts.len() || crate::iov::total(good) >= AT_ONCE => good,
        _ => &[],
    }
}

/// Whether any buffer of a list is [beyond](is_beyond). The kernel cuts off what is too long first if there is but one
/// (`__import_iovec`).
fn has_beyond(parts: &[iovec]) -> bool {
    match parts {
        [one] => is_beyond(one.iov_base, one.iov_len.min(MOST)),
        _ => parts.iter().any(|p| is_beyond(p.iov_base, p.iov_len)),
    }
}

/// The program's list of buffers, if the kernel would take it. What it refuses, it refuses before it looks at the socket.
///
/// # Safety
/// There are `count` entries at `iov`.
pub(super) unsafe fn list<'a>(iov: *const iovec, count: usize) -> Result<&'a [iovec], Outcome> {
    if count > IOV_MAX {
        return Err(Outcome::Fail(libc::EINVAL));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if is_bad(iov.cast(), 1) || !signal::may_read(iov, count) {
        return Err(Outcome::Fail(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(iov, count) };
    if parts.iter().any(|p| p.iov_len > isize::MAX as usize) {
        return Err(Outcome::Fail(libc::EINVAL));
    }
    if has_beyond(parts) {
        return Err(Outcome::Fail(libc::EFAULT));
    }
    Ok(parts)
}

/// Makes a call with a list of buffers: `then` gets a list that the kernel would take. If the
/// kernel would fail to copy some of it, `nowhere` does the call.
///
/// # Safety
/// There are `count` entries at `iov`.
pub(super) unsafe fn vectored(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    then: impl Fn(c_int, &[iovec]) -> Outcome,
    nowhere: impl Fn(&[iovec]) -> Outcome,
) -> Outcome {
    if !is_candidate(fd) {
        return Outcome::Kernel;
    }
    // A negative count is out of range too.
    // SAFETY: the caller's promise.
    match unsafe { list(iov, count as u32 as usize) } {
        Ok(parts) if crate::iov::total(parts) == 0 => Outcome::Kernel,
        Ok(parts) if has_bad(parts) => nowhere(parts),
        Ok(parts) => then(fd, parts),
        Err(outcome) => outcome,
    }
}

/// The header that sends or receives these buffers.
pub(super) fn header(parts: &[iovec]) -> msghdr {
    // SAFETY: a C struct of integers and pointers, for which zero is a value.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = parts.as_ptr().cast_mut();
    header.msg_iovlen = parts.len();
    header
}

/// The `MSG_…` flags of `preadv2` and `pwritev2` with these `RWF_…` flags on a socket.
///
/// # Errors
/// `EOPNOTSUPP` for what this kernel does not know, or knows for files only. That is also said of what a later kernel may
/// know: its own call would overtake what is in the ring.
pub(super) fn flags_of(flags: c_int) -> Result<c_int, Errno> {
    const RWF_NOWAIT: c_int = 8;
    /// `RWF_HIPRI`, `RWF_DSYNC`, `RWF_SYNC`, `RWF_APPEND` and `RWF_NOAPPEND` mean
    /// nothing to a socket.
    const IGNORED: c_int = 1 | 2 | 4 | 0x10 | 0x20;
    let means = |flag, meaning| if flags & flag != 0 { meaning } else { 0 };
    let known = match flags & !(IGNORED | RWF_NOWAIT) {
        0 => true,
        sys::RWF_NOSIGNAL => !config::is_confined() && sys::knows_nosignal(),
        _ => false,
    };
    if known {
        let signal = means(sys::RWF_NOSIGNAL, libc::MSG_NOSIGNAL);
        Ok(means(RWF_NOWAIT, libc::MSG_DONTWAIT) | signal)
    } else {
        Err(libc::EOPNOTSUPP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(base: usize, iov_len: usize) -> iovec {
        iovec {
            iov_base: std::ptr::without_provenance_mut(base),
            iov_len,
        }
    }

    #[test]
    fn an_address_that_no_program_has_is_bad_unless_nothing_is_there() {
        let bad = |base: usize, length| is_bad(std::ptr::without_provenance(base), length);
        assert!(bad(0, 1) && bad(4095, 1) && bad(USER_END, 1) && bad(USER_END - 1, 2));
        assert!(!bad(0, 0) && !bad(4096, 1) && !bad(USER_END - 1, 1));
    }

    #[test]
    fn a_short_buffer_is_bad_where_a_program_can_have_none() {
        const MOST: usize = 16;
        let bad =
            |base: usize, length| is_bad_or_long(std::ptr::without_provenance(base), length, MOST);
        for base in [
            0,
            1,
            4095,
            4096,
            8192,
            USER_END - 17,
            USER_END - 16,
            USER_END - 15,
            USER_END - 1,
            USER_END,
            usize::MAX,
        ] {
            for length in 1..=MOST {
                let exactly = is_bad(std::ptr::without_provenance(base), length);
                assert_eq!(bad(base, length), exactly, "{base:x} {length}");
            }
            assert!(bad(base, 0) && bad(base, MOST + 1) && bad(base, usize::MAX));
        }
    }

    #[test]
    fn one_bad_buffer_makes_a_list_bad_but_the_first_page_is_not_beyond() {
        assert!(has_bad(&[part(8192, 4), part(8, 4)]) && !has_bad(&[part(8192, 4)]));
        assert!(!has_beyond(&[part(8, 4)]) && has_beyond(&[part(USER_END, 4)]));
        // Of no bytes, too.
        assert!(has_beyond(&[part(8192, 4), part(usize::MAX, 0)]));
        assert!(!has_beyond(&[part(0, 0)]) && !has_beyond(&[part(USER_END, 0)]));
    }

    #[test]
    fn a_length_that_is_too_large_is_cut_off_if_there_is_but_one_buffer() {
        let endless = part(8192, isize::MAX as usize);
        assert!(!has_beyond(&[endless]) && !has_bad(&[endless]));
        assert!(has_beyond(&[part(8192, 4), endless]));
    }

    #[test]
    fn of_a_list_that_is_sent_only_what_has_been_copied_before_a_bad_buffer_is() {
        let good = [part(8192, AT_ONCE), part(8192, 4)];
        assert_eq!(sendable(&good).len(), 2);
        assert_eq!(sendable(&[good[0], part(8, 4), good[1]]).len(), 1);
        assert!(sendable(&[good[1], part(8, 4), good[0]]).is_empty());
        // Of no bytes it does not matter where they are.
        assert_eq!(sendable(&[good[1], part(8, 0), good[1]]).len(), 3);
    }

    #[test]
    fn a_list_is_taken_as_the_kernel_takes_it() {
        let parts = [part(8192, 4), part(8192, usize::MAX), part(USER_END, 4)];
        // SAFETY: the lists are this test's.
        let taken = |count| unsafe { list(parts.as_ptr(), count) }.map(<[iovec]>::len);
        assert_eq!((taken(0), taken(1)), (Ok(0), Ok(1)));
        assert_eq!(taken(2), Err(Outcome::Fail(libc::EINVAL)));
        assert_eq!(taken(IOV_MAX + 1), Err(Outcome::Fail(libc::EINVAL)));
        // SAFETY: as above.
        let beyond = unsafe { list(&raw const parts[2], 1) };
        assert_eq!(beyond.map(<[iovec]>::len), Err(Outcome::Fail(libc::EFAULT)));
        // SAFETY: refused before it is read.
        let nowhere = unsafe { list(std::ptr::null(), 1) };
        assert_eq!(
            nowhere.map(<[iovec]>::len),
            Err(Outcome::Fail(libc::EFAULT))
        );
    }

    #[test]
    fn flags_of_files_mean_to_a_socket_what_they_can() {
        const RWF_HIPRI: c_int = 1;
        const RWF_NOWAIT: c_int = 8;
        assert_eq!((flags_of(0), flags_of(RWF_HIPRI)), (Ok(0), Ok(0)));
        let at_once = RWF_NOWAIT | RWF_HIPRI;
        assert_eq!(flags_of(at_once), Ok(libc::MSG_DONTWAIT));
        assert_eq!(flags_of(1 << 20), Err(libc::EOPNOTSUPP));
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_list_with_an_address_beyond_is_refused_before_anything_is_done_with_it() {
        let ends = crate::both_ends::BothEnds::attached();
        let call = |parts: &[iovec]| {
            let (then, nowhere) = (
                |_, _: &[iovec]| Outcome::Done(1),
                |_: &[iovec]| Outcome::Done(2),
            );
            // SAFETY: the list is there.
            unsafe {
                vectored(
                    ends.fds[0],
                    parts.as_ptr(),
                    parts.len() as c_int,
                    then,
                    nowhere,
                )
            }
        };
        assert_eq!(call(&[part(8192, 4)]), Outcome::Done(1));
        assert_eq!(call(&[part(8192, 4), part(8, 4)]), Outcome::Done(2));
        let beyond = [part(8, 4), part(USER_END, 4)];
        assert_eq!(call(&beyond), Outcome::Fail(libc::EFAULT));
        // Of no bytes at all the kernel has its own opinion.
        assert_eq!(call(&[part(8192, 0)]), Outcome::Kernel);
    }
}
