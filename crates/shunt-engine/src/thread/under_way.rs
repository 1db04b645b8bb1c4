//! The call of this thread that has slept and not ended, and the place where it sleeps, as long as no signal
//! handler has run since.
//!
//! The kernel runs a handler outside of any call: a call that a handler has interrupted holds nothing
//! meanwhile, and may be left for ever (`setcontext`, an exception, `siglongjmp`). So the call is noted in
//! the thread's own words, and [`interrupt`] takes the note away before the program's handler runs.

use libc::c_int;

use super::signals;
use crate::socket::Socket;

/// One call. Plain values, which outlive the call's frame.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Call {
    /// The socket that the call is counted on; none: there is no such call.
    socket: Option<&'static Socket>,
    /// Tells it from other calls of this thread.
    number: u32,
}

impl Call {
    const NONE: Self = Self {
        socket: None,
        number: 0,
    };
}

fn here() -> *mut Call {
    // SAFETY: only computes where the field of this thread's own words is.
    unsafe { &raw mut (*signals::here()).call }
}

/// A number for a call.
pub(crate) fn new_number() -> u32 {
    // SAFETY: this thread's own words; a handler's call has a number of its own also if it comes in between.
    unsafe {
        let calls = &raw mut (*signals::here()).calls;
        let number = calls.read_volatile().wrapping_add(1);
        calls.write_volatile(number);
        number
    }
}

/// Notes a call on a socket; returns what was noted before. Handlers are put off.
pub(crate) fn begin(socket: &'static Socket, number: u32) -> Call {
    // SAFETY: this thread's own words, which no handler changes now.
    unsafe {
        here().replace(Call {
            socket: Some(socket),
            number,
        })
    }
}

/// The number of the call on that socket that is noted, if one is: a call within that one needs none
/// of its own.
pub(crate) fn on(socket: &'static Socket) -> Option<u32> {
    // SAFETY: this thread's own words.
    let now = unsafe { here().read_volatile() };
    now.socket
        .is_some_and(|noted| std::ptr::eq(noted, socket))
        .then_some(now.number)
}

/// Whether the call of that number is still noted: no handler has run since.
pub(crate) fn is_noted(number: u32) -> bool {
    // SAFETY: this thread's own words; a handler may change them between two reads.
    let now = unsafe { here().read_volatile() };
    now.socket.is_some() && now.number == number
}

/// The noted call ends. Handlers are put off.
pub(crate) fn end(before: Call) {
    // SAFETY: this thread's own words, which no handler changes now.
    unsafe { here().write(before) };
}

fn place() -> *mut c_int {
    // SAFETY: only computes where the field of this thread's own words is.
    unsafe { &raw mut (*signals::here()).place }
}

/// This thread is about to sleep in the place of that number, or sleeps no more.
pub(crate) fn set_place(number: Option<c_int>) {
    // SAFETY: this thread's own words; a handler that comes now takes the note away.
    unsafe { place().write_volatile(number.map_or(0, |n| n + 1)) };
}

/// Whether this thread is about to sleep there, or sleeps, and has been interrupted by a handler that is not
/// known.
pub(crate) fn is_in_place(number: c_int) -> bool {
    // SAFETY: this thread's own words.
    unsafe { place().read_volatile() == number + 1 }
}

/// In a handler of this thread, before the program's: takes the notes away. The number of the place, and the
/// socket of the call.
#[inline]
pub(super) fn interrupt() -> (Option<c_int>, Option<&'static Socket>) {
    // SAFETY: this thread's own words; the code that a handler interrupts expects the change.
    let (place, call) = unsafe { (place().read_volatile(), here().read_volatile()) };
    if place != 0 || call.socket.is_some() {
        forget();
    }
    ((place > 0).then(|| place - 1), call.socket)
}

/// In a forked child: the calls are its parent's.
pub(super) fn forget() {
    // SAFETY: this thread's own words.
    unsafe {
        here().write_volatile(Call::NONE);
        place().write_volatile(0);
    }
}
