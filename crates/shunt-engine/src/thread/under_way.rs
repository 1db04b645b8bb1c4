//! The call of this thread that has slept and not ended, and the place where it sleeps, as long as no signal
//! handler has run since.
//!
//! The kernel runs a handler outside of any call: a call that a handler has interrupted holds nothing
//! meanwhile, and may be left for ever (`setcontext`, an exception, `siglongjmp`). So the call is noted in
//! the thread's own words, and [`interrupt`] takes the note away before the program's handler runs.

use std::ptr;

use libc::c_int;

use super::words;

pub(crate) use super::words::Call;

/// No call is noted.
const NONE: Call = Call {
    object: ptr::null(),
    number: 0,
};

fn here() -> *mut Call {
    // SAFETY: only computes where the field of this thread's own words is.
    unsafe { &raw mut (*words::here()).call }
}

/// A number for a call.
pub(crate) fn new_number() -> u32 {
    // SAFETY: this thread's own words; a handler's call has a number of its own also if it comes in between.
    unsafe {
        let calls = &raw mut (*words::here()).calls;
        let number = calls.read_volatile().wrapping_add(1);
        calls.write_volatile(number);
        number
    }
}

/// Notes a call on an object, which [`interrupt`] names; returns what was noted before. Handlers are put off.
pub(crate) fn begin<T>(object: &'static T, number: u32) -> Call {
    // SAFETY: this thread's own words, which no handler changes now.
    unsafe {
        here().replace(Call {
            object: ptr::from_ref(object).cast(),
            number,
        })
    }
}

/// The number of the call on that object that is noted, if one is: a call within that one needs none
/// of its own.
pub(crate) fn on<T>(object: &'static T) -> Option<u32> {
    // SAFETY: this thread's own words.
    let now = unsafe { here().read_volatile() };
    ptr::eq(now.object, ptr::from_ref(object).cast()).then_some(now.number)
}

/// Whether the call of that number is still noted: no handler has run since.
pub(crate) fn is_noted(number: u32) -> bool {
    // SAFETY: this thread's own words; a handler may change them between two reads.
    let now = unsafe { here().read_volatile() };
    !now.object.is_null() && now.number == number
}

/// The noted call ends. Handlers are put off.
pub(crate) fn end(before: Call) {
    // SAFETY: this thread's own words, which no handler changes now.
    unsafe { here().write(before) };
}

fn place() -> *mut c_int {
    // SAFETY: only computes where the field of this thread's own words is.
    unsafe { &raw mut (*words::here()).place }
}

/// Notes that this thread is about to sleep in the place of this number, or (`None`) sleeps no more.
pub(crate) fn set_place(number: Option<c_int>) {
    // SAFETY: this thread's own words; a handler that comes now takes the note away.
    unsafe { place().write_volatile(number.map_or(0, |n| n + 1)) };
}

/// Whether this thread sleeps in this place, or is about to, and the handler that has interrupted it was not
/// seen.
pub(crate) fn is_in_place(number: c_int) -> bool {
    // SAFETY: this thread's own words.
    unsafe { place().read_volatile() == number + 1 }
}

/// Called in a signal handler of this thread, before the program's own: takes the notes away, and returns
/// the number of the place and the object of the call.
///
/// # Safety
/// All calls are on objects of this type.
#[inline]
pub(crate) unsafe fn interrupt<T>() -> (Option<c_int>, Option<&'static T>) {
    // SAFETY: this thread's own words; the code that a handler interrupts expects the change.
    let (place, call) = unsafe { (place().read_volatile(), here().read_volatile()) };
    if place != 0 || !call.object.is_null() {
        forget();
    }
    // SAFETY: null, or what `begin` has been given, which is of this type by the caller's promise.
    let object = unsafe { call.object.cast::<T>().as_ref() };
    ((place > 0).then(|| place - 1), object)
}

/// In a forked child: the calls are its parent's.
pub(super) fn forget() {
    // SAFETY: this thread's own words.
    unsafe {
        here().write_volatile(NONE);
        place().write_volatile(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_noted_until_it_ends() {
        static OBJECT: u32 = 0;
        static OTHER: u64 = 0;
        let (one, two) = (new_number(), new_number());
        assert_ne!(one, two);
        let before = begin(&OBJECT, one);
        assert!(is_noted(one) && !is_noted(two));
        assert_eq!((on(&OBJECT), on(&OTHER)), (Some(one), None));
        end(before);
        assert!(!is_noted(one) && on(&OBJECT).is_none());
    }

    #[test]
    fn a_handler_takes_the_notes_away() {
        static OBJECT: u32 = 5;
        let number = new_number();
        begin(&OBJECT, number);
        set_place(Some(0));
        assert!(is_in_place(0) && !is_in_place(1));
        // SAFETY: the one call of this thread is on this type.
        let (place, object) = unsafe { interrupt::<u32>() };
        assert_eq!((place, object), (Some(0), Some(&5)));
        assert!(!is_noted(number) && !is_in_place(0));
        // SAFETY: as above.
        assert_eq!(unsafe { interrupt::<u32>() }, (None, None));
    }
}
