//! Requests that threads of libc's carry out, which call the kernel past us.

use std::ffi::c_int;

use libc::{aiocb, sigevent};
use shunt_engine::io::aio;

use crate::call::quietly;
use crate::next;

macro_rules! request {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(request: *mut aiocb) -> c_int {
            // SAFETY: the caller keeps the function's contract.
            unsafe {
                quietly(|| aio::before_request(request));
                next::$name(request)
            }
        }
    )*};
}

// The latter of each two are the same where a file's offset has 64 bits anyway.
request! { aio_read aio_read64 aio_write aio_write64 }

macro_rules! list {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            mode: c_int,
            requests: *const *mut aiocb,
            count: c_int,
            event: *mut sigevent,
        ) -> c_int {
            // SAFETY: the caller keeps the function's contract.
            unsafe {
                quietly(|| aio::before_requests(requests.cast(), count));
                next::$name(mode, requests, count, event)
            }
        }
    )*};
}

list! { lio_listio lio_listio64 }
