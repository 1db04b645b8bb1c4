//! Bytes in and out. `pread`, `pwrite` and their vectors are not here: the
//! kernel refuses them on a socket, shunted or not.

use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, loff_t, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use shunt_engine::Outcome;
use shunt_engine::cancel::{self, Test};
use shunt_engine::io::{self, short};

use crate::call::{alias, export, export_cancellable, fail, outcome};
use crate::next;

/// Exported functions that mostly move one short message: that is tried in a few
/// instructions before everything else; and where nothing is shunted, the real call,
/// which is a cancellation point by itself.
macro_rules! export_short {
    ($($name:ident($fd:ident: c_int, $($arg:ident: $type:ty),*) -> $result:ty
        = $short:expr, $unless_shunted:expr, $engine:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C-unwind" fn $name($fd: c_int, $($arg: $type),*) -> $result {
            #[inline(never)]
            unsafe extern "C-unwind" fn otherwise($fd: c_int, $($arg: $type),*) -> $result {
                // SAFETY: as for `export`.
                unsafe {
                    if cancel::is_noted() {
                        return tested($fd, $($arg),*);
                    }
                    outcome!($engine($fd, $($arg),*), next::$name($fd, $($arg),*))
                }
            }
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn tested($fd: c_int, $($arg: $type),*) -> $result {
                cancel::test();
                // SAFETY: as for `export`.
                unsafe {
                    match $short(Test::Done) {
                        Some(Outcome::Done(n)) => n,
                        Some(Outcome::Fail(error)) => fail(error),
                        _ => outcome!($engine($fd, $($arg),*), next::$name($fd, $($arg),*)),
                    }
                }
            }
            #[inline(never)]
            unsafe extern "C-unwind" fn unless_shunted($fd: c_int, $($arg: $type),*) -> $result {
                // SAFETY: as for `export`.
                unsafe {
                    match $unless_shunted(|| next::$name($fd, $($arg),*)) {
                        Some(n) => n,
                        None => otherwise($fd, $($arg),*),
                    }
                }
            }
            // SAFETY: as for `export`.
            unsafe {
                match $short(Test::Due) {
                    Some(Outcome::Done(n)) => n,
                    Some(Outcome::Fail(error)) => fail(error),
                    Some(Outcome::Kernel) => unless_shunted($fd, $($arg),*),
                    None => otherwise($fd, $($arg),*),
                }
            }
        }
    )*};
}

export_short! {
    read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t
        = |test| short::recv(fd, buffer, length, 0, test), |call| short::receive_unless_shunted(fd, call), io::read;
    write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t
        = |test| short::send(fd, buffer, length, 0, test), |call| short::send_unless_shunted(fd, 0, call), io::write;
    recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t
        = |test| short::recv(fd, buffer, length, flags, test), |call| short::receive_unless_shunted(fd, call), io::recv;
    send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t
        = |test| short::send(fd, buffer, length, flags, test), |call| short::send_unless_shunted(fd, flags, call), io::send;
}

/// Exported functions of which the real one is called at once where nothing is shunted.
macro_rules! export_unless_shunted {
    ($($name:ident($fd:ident: c_int, $($arg:ident: $type:ty),* $(,)?) -> $result:ty = $unless_shunted:expr, $engine:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C-unwind" fn $name($fd: c_int, $($arg: $type),*) -> $result {
            #[inline(never)]
            unsafe extern "C-unwind" fn otherwise($fd: c_int, $($arg: $type),*) -> $result {
                // SAFETY: as for `export`.
                unsafe { outcome!($engine($fd, $($arg),*), next::$name($fd, $($arg),*)) }
            }
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn tested($fd: c_int, $($arg: $type),*) -> $result {
                cancel::test();
                // SAFETY: as for `export`.
                unsafe { otherwise($fd, $($arg),*) }
            }
            #[inline(never)]
            unsafe extern "C-unwind" fn unless_shunted($fd: c_int, $($arg: $type),*) -> $result {
                // SAFETY: as for `export`.
                unsafe {
                    match $unless_shunted(|| next::$name($fd, $($arg),*)) {
                        Some(n) => n,
                        None => otherwise($fd, $($arg),*),
                    }
                }
            }
            // SAFETY: as for `export`.
            unsafe {
                if !short::is_shunted($fd) {
                    unless_shunted($fd, $($arg),*)
                } else if cancel::is_noted() {
                    tested($fd, $($arg),*)
                } else {
                    otherwise($fd, $($arg),*)
                }
            }
        }
    )*};
}

export_unless_shunted! {
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        = |call| short::receive_unless_shunted(fd, call), io::readv;
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        = |call| short::send_unless_shunted(fd, 0, call), io::writev;
    recvfrom(
        fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int,
        address: *mut sockaddr, address_length: *mut socklen_t,
    ) -> ssize_t = |call| short::receive_unless_shunted(fd, call), io::recvfrom;
    sendto(
        fd: c_int, buffer: *const c_void, length: size_t, flags: c_int,
        address: *const sockaddr, address_length: socklen_t,
    ) -> ssize_t = |call| short::send_unless_shunted(fd, flags, call), io::sendto;
}

export_cancellable! {
    preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = io::preadv2;
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = io::pwritev2;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = io::recvmsg;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = io::sendmsg;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int
        = io::recvmmsg;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int = io::sendmmsg;
    splice(
        input: c_int, input_offset: *mut loff_t, out: c_int, out_offset: *mut loff_t, length: size_t, flags: c_uint,
    ) -> ssize_t = io::splice;
}

// Not a cancellation point of libc's.
export! {
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t = io::sendfile;
}

// `off_t` has 64 bits on every architecture we build for.
alias! {
    __read = read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    __write = write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    __recv = recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    __send = send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    __sendmmsg = sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile64 = sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    preadv64v2 = preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev64v2 = pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
}
