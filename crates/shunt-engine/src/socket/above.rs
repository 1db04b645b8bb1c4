//! What the rooms above this one do to a socket when something comes about below them. They register these functions
//! with each socket that they make, so a program without sockets writes nothing here.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;

use super::Socket;

/// See the module. All of it is rare.
pub(crate) struct Above {
    /// The last holder has given it back, and no call is left that has slept on it: its life ends.
    pub(crate) end: fn(&'static Socket),
    /// The last of the calls ends that went on by a copy of a closed descriptor ([`super::Handed`]).
    pub(crate) close_copy: fn(&'static Socket, c_int),
    /// This process has changed the way of its bytes, of which neither a log nor the kernel may tell: the sets that
    /// watch it look once more. Without locks and tokens.
    pub(crate) look_again: fn(&'static Socket),
    /// A call on it, by this descriptor, finds a direction back with the kernel, which may be over. Without a
    /// token.
    pub(crate) may_return: fn(&'static Socket, c_int),
    /// After its end nobody is inside a real call on it either: its memory is another socket's from here on.
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
