//! The functions that ours stand in front of, found with `dlsym(RTLD_NEXT)` on
//! first use, so that other preloaded libraries behind us keep their turn and
//! cancellation points stay what they are.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void};

/// Defines, for each function, an accessor that returns the next definition of
/// the symbol, or null if there is none.
#[macro_export]
macro_rules! real_functions {
    ($($name:ident($($argument:ty),* $(,)?) -> $result:ty;)*) => {$(
        #[doc = concat!("The next `", stringify!($name), "`.")]
        #[inline(always)]
        pub fn $name() -> unsafe extern "C-unwind" fn($($argument),*) -> $result {
            static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            let mut next = NEXT.load(std::sync::atomic::Ordering::Relaxed);
            if next == 0 {
                next = $crate::real::resolve(&NEXT, concat!(stringify!($name), "\0"));
            }
            // SAFETY: the symbol has this C signature.
            unsafe { std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($argument),*) -> $result>(next) }
        }
    )*};
}

/// Looks the symbol up. Aborts if there is none: every name here is in every
/// glibc that Shunt supports.
#[cold]
pub fn resolve(cache: &AtomicUsize, name: &str) -> usize {
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) } as usize;
    if found == 0 {
        // SAFETY: ends the process; nothing sensible can follow a missing libc function.
        unsafe { libc::abort() }
    }
    cache.store(found, Ordering::Relaxed);
    found
}

real_functions! {
    recv(libc::c_int, *mut libc::c_void, usize, libc::c_int) -> isize;
    send(libc::c_int, *const libc::c_void, usize, libc::c_int) -> isize;
    ppoll(*mut libc::pollfd, libc::nfds_t, *const libc::timespec, *const libc::sigset_t) -> libc::c_int;
    pselect(libc::c_int, *mut libc::fd_set, *mut libc::fd_set, *mut libc::fd_set, *const libc::timespec, *const libc::sigset_t) -> libc::c_int;
    sendmsg(libc::c_int, *const libc::msghdr, libc::c_int) -> isize;
    recvmsg(libc::c_int, *mut libc::msghdr, libc::c_int) -> isize;
    pthread_testcancel() -> ();
    pthread_setcanceltype(libc::c_int, *mut libc::c_int) -> libc::c_int;
    pthread_setcancelstate(libc::c_int, *mut libc::c_int) -> libc::c_int;
    sigaction(libc::c_int, *const libc::sigaction, *mut libc::sigaction) -> libc::c_int;
    recvfrom(libc::c_int, *mut libc::c_void, usize, libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> isize;
    recvmmsg(libc::c_int, *mut libc::mmsghdr, libc::c_uint, libc::c_int, *mut libc::timespec) -> libc::c_int;
    sendmmsg(libc::c_int, *mut libc::mmsghdr, libc::c_uint, libc::c_int) -> libc::c_int;
    sendfile(libc::c_int, libc::c_int, *mut libc::off_t, usize) -> isize;
    splice(libc::c_int, *mut libc::loff_t, libc::c_int, *mut libc::loff_t, usize, libc::c_uint) -> isize;
}

/// glibc's `struct _pthread_cleanup_buffer`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct CleanUp {
    routine: usize,
    argument: usize,
    cancel_type: c_int,
    previous: usize,
}

real_functions! {
    _pthread_cleanup_push(*mut CleanUp, unsafe extern "C-unwind" fn(*mut c_void), *mut c_void) -> ();
    _pthread_cleanup_pop(*mut CleanUp, c_int) -> ();
}

impl CleanUp {
    /// Has `routine` run if this frame is left by cancellation or by `longjmp`
    /// (`pthread_cleanup_push(3)`), until [`pop`](Self::pop).
    ///
    /// # Safety
    /// The buffer is in a frame of this thread's, and stays there until it is taken out, as does
    /// what `routine` needs.
    pub(crate) unsafe fn push(
        buffer: *mut Self,
        routine: unsafe extern "C-unwind" fn(*mut c_void),
        argument: *mut c_void,
    ) {
        // SAFETY: the caller's promise.
        unsafe { _pthread_cleanup_push()(buffer, routine, argument) };
    }

    /// Takes it out.
    ///
    /// # Safety
    /// It is the last one that has been pushed and not taken out.
    pub(crate) unsafe fn pop(buffer: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { _pthread_cleanup_pop()(buffer, 0) };
    }
}

/// Makes a call in which the thread may be cancelled; should that be, `undo` runs
/// (`pthread_cleanup_push(3)`). A `Drop` would not do: cancellation unwinds with libc's own copy of
/// the unwinder.
pub(crate) fn cancellable<U: Fn(), R>(undo: &U, call: impl FnOnce() -> R) -> R {
    unsafe extern "C-unwind" fn run<U: Fn()>(undo: *mut c_void) {
        // SAFETY: the closure below; its frame is still there while it is unwound.
        unsafe { (*undo.cast::<U>())() }
    }
    let mut buffer = CleanUp::default();
    let argument = std::ptr::from_ref(undo).cast_mut().cast();
    // SAFETY: the buffer lives until it is taken out, or until it has been run.
    unsafe { CleanUp::push(&raw mut buffer, run::<U>, argument) };
    let result = call();
    // SAFETY: pushed last.
    unsafe { CleanUp::pop(&raw mut buffer) };
    result
}

/// Does some work in which the thread is not cancelled, whatever calls it makes (`pthread_setcancelstate(3)`). A handler
/// may leave it by `longjmp`.
pub(crate) fn uncancelled<R>(work: impl FnOnce() -> R) -> R {
    const PTHREAD_CANCEL_DISABLE: c_int = 1;
    let mut before = 0;
    // SAFETY: a place for the state.
    unsafe { pthread_setcancelstate()(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let undo = || {
        // SAFETY: the state that this thread has had.
        unsafe { pthread_setcancelstate()(before, std::ptr::null_mut()) };
    };
    let result = cancellable(&undo, work);
    undo();
    result
}

/// Whether the calling thread can be cancelled asynchronously (`pthread_setcanceltype(3)`).
#[cold]
pub(crate) fn ends_anywhere() -> bool {
    const PTHREAD_CANCEL_DEFERRED: c_int = 0;
    let mut before = PTHREAD_CANCEL_DEFERRED;
    // SAFETY: a place for the type; then the type that this thread has had.
    unsafe {
        pthread_setcanceltype()(PTHREAD_CANCEL_DEFERRED, &raw mut before);
        pthread_setcanceltype()(before, std::ptr::null_mut());
    }
    before != PTHREAD_CANCEL_DEFERRED
}

/// Makes a real call like [`quietly`] in which the thread sleeps; should it be cancelled there, `undo`
/// runs.
pub(crate) fn sleeping<U: Fn()>(undo: &U, call: impl FnOnce() -> isize) -> Result<isize, i32> {
    cancellable(undo, || quietly(call))
}

/// The calling thread's `errno`, as a real function left it.
#[must_use]
pub fn errno() -> i32 {
    // SAFETY: always valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Makes a real call of which the program may never hear: its result, or its
/// error with `errno` as it was before.
#[inline(always)]
pub(crate) fn quietly(call: impl FnOnce() -> isize) -> Result<isize, i32> {
    let before = errno();
    let result = call();
    if result >= 0 {
        return Ok(result);
    }
    let error = errno();
    // SAFETY: always valid for the calling thread.
    unsafe { *libc::__errno_location() = before };
    Err(error)
}
