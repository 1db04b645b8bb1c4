//! From an engine's outcome to what a C caller sees.

use std::ffi::c_int;

use shunt_engine::life;
use syscalls::Errno;

/// This thread's `errno`.
#[inline(always)]
pub(crate) fn errno() -> c_int {
    // SAFETY: the address is valid for as long as the thread runs.
    unsafe { *libc::__errno_location() }
}

#[inline(always)]
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: this thread's own, valid as long as it runs.
    unsafe { *libc::__errno_location() = error }
}

/// Fails with `error`.
#[cold]
pub(crate) fn fail(error: c_int) -> isize {
    set_errno(error);
    -1
}

/// A system call's answer in libc's form.
#[inline(always)]
pub(crate) fn answer(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(error) => fail(error.into_raw()),
    }
}

/// Runs the library's bookkeeping so that it leaves `errno` as it was.
#[inline(always)]
pub(crate) fn quietly(bookkeeping: impl FnOnce()) {
    quietly_with(bookkeeping);
}

/// Runs bookkeeping that has a result, and leaves `errno` as it was.
#[inline(always)]
pub(crate) fn quietly_with<T>(bookkeeping: impl FnOnce() -> T) -> T {
    let error = errno();
    let answer = bookkeeping();
    // Written only where need be: at a fork that would copy a page.
    if errno() != error {
        set_errno(error);
    }
    answer
}

/// A call that makes a descriptor.
#[inline(always)]
pub(crate) fn making(kernel: impl Fn() -> c_int) -> c_int {
    let fd = kernel();
    if fd < 0 && errno() == libc::EMFILE && quietly_with(life::make_room) {
        kernel()
    } else {
        fd
    }
}

/// Ends a hook: the engine's outcome, or what the expression gives.
macro_rules! outcome {
    ($outcome:expr, $kernel:expr) => {
        match $outcome {
            shunt_engine::Outcome::Done(value) => value as _,
            shunt_engine::Outcome::Fail(error) => $crate::call::fail(error) as _,
            shunt_engine::Outcome::Kernel => $kernel,
        }
    };
}
pub(crate) use outcome;

/// Exported functions that ask one engine function with the same arguments and
/// otherwise continue with the next function of the same name.
macro_rules! export {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty = $engine:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            #[allow(unused_unsafe)]
            // SAFETY: the caller keeps the contract of the man page, which is
            // the engine's and the next function's too.
            unsafe { $crate::call::outcome!($engine($($arg),*), $crate::next::$name($($arg),*)) }
        }
    )*};
}
pub(crate) use export;

/// Exported functions that are cancellation points, as libc's are (pthreads(7)): where threads are cancelled at all, a
/// call begins with a look whether this one is to be, before anything is done. A function of its own does that, so that
/// the usual call keeps its arguments where they are.
macro_rules! cancellable {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty { $call:expr })*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            #[inline(always)]
            unsafe fn at_once($($arg: $type),*) -> $result {
                #[allow(unused_unsafe)]
                // SAFETY: the caller keeps the contract of the man page, which is
                // the engine's and the next function's too.
                unsafe { $call }
            }
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn tested($($arg: $type),*) -> $result {
                shunt_engine::cancel::test();
                // SAFETY: as above.
                unsafe { at_once($($arg),*) }
            }
            // SAFETY: as above.
            unsafe {
                if shunt_engine::cancel::is_noted() {
                    return tested($($arg),*);
                }
                at_once($($arg),*)
            }
        }
    )*};
}
pub(crate) use cancellable;

/// Cancellation points that are otherwise as `export` says.
macro_rules! export_cancellable {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty = $engine:expr;)*) => {
        $crate::call::cancellable! {$(
            $name($($arg: $type),*) -> $result {
                $crate::call::outcome!($engine($($arg),*), $crate::next::$name($($arg),*))
            }
        )*}
    };
}
pub(crate) use export_cancellable;

/// Other names under which libc exports a function.
macro_rules! alias {
    ($($name:ident = $target:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            // SAFETY: the same function under another name.
            unsafe { $target($($arg),*) }
        }
    )*};
}
pub(crate) use alias;
