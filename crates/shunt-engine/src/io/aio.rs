//! Requests that are carried out past this library: by the kernel (`io_submit(2)`), or by threads of libc's
//! (`aio(7)`). A connection that a request names becomes the kernel's before the request is made.

use std::mem::offset_of;

use libc::{aiocb, c_int, c_long};
use shunt_abi::Reason;

use super::uring::stop_shunting;
use crate::entry::{self, Entry};
use crate::life::give_up;
use crate::socket::Stage;
use crate::{signal, thread};

/// `struct iocb` (`linux/aio_abi.h`), as far as it concerns us.
#[repr(C)]
pub struct Request {
    data: u64,
    key_and_flags: [u32; 2],
    operation: u16,
    priority: i16,
    fd: u32,
}

/// Before `io_submit`.
///
/// # Safety
/// As for the call: nobody unmaps the requests meanwhile.
pub unsafe fn before_submit(count: c_long, requests: *const *const Request) {
    let count = usize::try_from(count).unwrap_or(0);
    for at in (0..count).map(|i| requests.wrapping_add(i)) {
        // The kernel takes none from the first bad one on.
        if !is_of_concern() || !signal::may_read(at, 1) {
            return;
        }
        // SAFETY: it can be read; alignment is the program's choice.
        let request = unsafe { at.read_unaligned() };
        // SAFETY: as above.
        let Some(fd) = (unsafe { number(request, offset_of!(Request, fd)) }) else {
            return;
        };
        make_plain(fd);
    }
}

/// Before `aio_read` or `aio_write`.
///
/// # Safety
/// As for the call: the request is there, or null.
pub unsafe fn before_request(request: *const aiocb) {
    if is_of_concern()
        // SAFETY: the caller's promise.
        && let Some(fd) = unsafe { number(request, offset_of!(aiocb, aio_fildes)) }
    {
        make_plain(fd);
    }
}

/// Before `lio_listio`.
///
/// # Safety
/// As for the call: the requests are there, or null.
pub unsafe fn before_requests(requests: *const *const aiocb, count: c_int) {
    let count = usize::try_from(count).unwrap_or(0);
    for at in (0..count).map(|i| requests.wrapping_add(i)) {
        if !is_of_concern() || !signal::may_read(at, 1) {
            return;
        }
        // SAFETY: it can be read, and the caller's promise.
        unsafe { before_request(at.read_unaligned()) };
    }
}

fn is_of_concern() -> bool {
    entry::is_any() && thread::owns_memory()
}

/// The `int` at this offset in a request.
///
/// # Safety
/// Nobody unmaps the request meanwhile.
unsafe fn number<T>(request: *const T, offset: usize) -> Option<c_int> {
    let at = request.cast::<u8>().wrapping_add(offset).cast::<c_int>();
    let is_there = !request.is_null() && signal::may_read(at, 1);
    // SAFETY: it can be read; alignment is the program's choice.
    is_there.then(|| unsafe { at.read_unaligned() })
}

fn make_plain(fd: c_int) {
    match entry::look(fd) {
        Entry::Socket(socket) if !matches!(socket.stage(), Stage::Plain | Stage::Listener) => {
            give_up(fd, Reason::AsyncIo);
        }
        // If only the kernel waits on a set, it hears nothing of rings.
        Entry::Set(set) if !set.is_plain() => stop_shunting(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    fn a_connection_that_a_request_names_is_the_kernels() {
        let ends = BothEnds::on_rings();
        let request = |fd| Request {
            data: 0,
            key_and_flags: [0; 2],
            operation: 0,
            priority: 0,
            fd,
        };
        let (none, one) = (request(u32::MAX), request(ends.fds[0] as u32));
        let all = [&raw const none, &raw const one, ptr::null()];
        // SAFETY: the requests are this test's.
        unsafe { before_submit(1, all.as_ptr()) };
        assert_eq!(ends.sockets[0].stage(), Stage::Attached);
        // SAFETY: as above.
        unsafe { before_submit(3, all.as_ptr()) };
        assert_eq!(ends.sockets[0].reason(), Reason::AsyncIo);
        assert!(ends.conns()[0].is_off_rings());
    }

    #[test]
    fn each_request_of_a_list_is_seen_to() {
        let ends = BothEnds::on_rings();
        // SAFETY: a C struct of integers and pointers, for which zero is a value.
        let mut request: aiocb = unsafe { std::mem::zeroed() };
        request.aio_fildes = ends.fds[1];
        let all = [ptr::null(), &raw const request];
        // SAFETY: the requests are this test's.
        unsafe { before_requests(all.as_ptr(), 2) };
        assert_eq!(ends.sockets[1].reason(), Reason::AsyncIo);
        assert!(ends.conns()[1].is_off_rings());
    }
}
