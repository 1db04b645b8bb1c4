//! What happens to a socket by the rooms above this one, when something comes about below them. They say how with
//! each socket that they make: a program without sockets writes nothing here.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::Socket;

/// See the module. All of it is rare.
pub(crate) struct Above {
    /// The last holder has given it back, and no call is left that has slept on it: its life ends.
    pub(crate) end: fn(&'static Socket),
    /// After that nobody is inside a real call on it either: its memory is another socket's from here on.
    pub(crate) bury: fn(&'static Socket),
}

static ABOVE: AtomicPtr<Above> = AtomicPtr::new(ptr::null_mut());

/// Says how.
pub(crate) fn set(above: &'static Above) {
    ABOVE.store(ptr::from_ref(above).cast_mut(), Ordering::Release);
}

/// Who does it; nobody before there is a socket.
pub(super) fn get() -> Option<&'static Above> {
    // SAFETY: null, or what `set` was given, which stays.
    unsafe { ABOVE.load(Ordering::Acquire).as_ref() }
}
