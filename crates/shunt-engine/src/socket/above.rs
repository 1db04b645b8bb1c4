//! Functions of the rooms above this one, which a lower room calls when something happens to a socket. They are
//! registered with each socket that is made, so that a program without sockets writes nothing here.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;

use super::Socket;

/// See the module. All of these calls are rare.
pub(crate) struct Above {
    /// The last holder has given the socket back, and no call that has slept on it is left: its life ends.
    pub(crate) end: fn(&'static Socket),
    /// The last call ends that used a copy of a closed descriptor ([`super::Handed`]).
    pub(crate) close_copy: fn(&'static Socket, c_int),
    /// This process has changed the way of the socket's bytes. Neither a log nor the kernel may tell of that, so
    /// the sets that watch it must look once more. Without locks and tokens.
    pub(crate) look_again: fn(&'static Socket),
    /// A call on this descriptor finds a direction on TCP that may return to its ring by now. Without a
    /// token.
    pub(crate) may_return: fn(&'static Socket, c_int),
    /// The socket has ended, and no thread is inside a real call on it any more: its memory is free for another
    /// socket.
    pub(crate) bury: fn(&'static Socket),
}

static ABOVE: AtomicPtr<Above> = AtomicPtr::new(ptr::null_mut());

/// Registers these functions.
pub(crate) fn set(above: &'static Above) {
    ABOVE.store(ptr::from_ref(above).cast_mut(), Ordering::Release);
}

impl Socket {
    /// See [`Above::end`].
    pub(crate) fn end_at_last(&'static self) {
        if let Some(above) = get() {
            (above.end)(self);
        }
    }

    /// See [`Above::close_copy`].
    pub(crate) fn close_copy(&'static self, copy: c_int) {
        if let Some(above) = get() {
            (above.close_copy)(self, copy);
        }
    }

    /// See [`Above::look_again`].
    pub(crate) fn look_again(&'static self) {
        if let Some(above) = get() {
            (above.look_again)(self);
        }
    }

    /// See [`Above::may_return`].
    #[cold]
    pub(crate) fn may_return(&'static self, fd: c_int) {
        if let Some(above) = get() {
            (above.may_return)(self, fd);
        }
    }

    /// See [`Above::bury`].
    #[cold]
    pub(super) fn bury(&'static self) {
        if let Some(above) = get() {
            (above.bury)(self);
        }
    }
}

/// The registered functions; none before there is a socket.
fn get() -> Option<&'static Above> {
    // SAFETY: null, or what `set` was given, which stays.
    unsafe { ABOVE.load(Ordering::Acquire).as_ref() }
}
