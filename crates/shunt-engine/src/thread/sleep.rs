//! The system calls in which a thread sleeps, and signals that come just before.
//!
//! Natively a handler that runs at any moment after a call has begun ends it (`EINTR`). Here the program's
//! call has begun long before the kernel's: a handler that ran since the last look for one, and before the
//! kernel's call, would be slept through. So that look is the instruction before the system call
//! (`shunt_sleep`), and a handler that finds its thread between the two sends it past the call
//! ([`interrupt`]). No system call is needed for that.
//!
//! libc's own functions make more steps after the look than can be known, so this does without them, but
//! is a cancellation point as they are.

use std::ffi::c_void;
use std::ptr;

use libc::{c_int, epoll_event, msghdr, nfds_t, pollfd, sigset_t, timespec};

use super::alone::is_alone;
use super::signals::{self, Seen};
use crate::real;
use crate::sys::Errno;

/// Of `pthread_setcanceltype(3)`.
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// The kernel's size of a signal set.
const MASK_SIZE: usize = 8;

/// A system call in which a thread sleeps, as `shunt_sleep` reads it.
#[repr(C)]
pub(crate) struct Sleep {
    arguments: [usize; 6],
    /// The handlers that have run until the caller's own look.
    seen: u64,
    number: usize,
}

impl Sleep {
    fn new(number: libc::c_long, arguments: [usize; 6], seen: Seen) -> Self {
        Self {
            arguments,
            seen: seen.count(),
            number: number as usize,
        }
    }

    /// `ppoll(2)`, where no handler has run since `seen`. What is left of the time is not written back.
    ///
    /// # Safety
    /// `mask` is null or a signal set.
    pub(crate) unsafe fn poll<U: Fn()>(
        fds: &mut [pollfd],
        mut time: Option<timespec>,
        mask: *const sigset_t,
        seen: Seen,
        undo: &U,
    ) -> Result<usize, Errno> {
        let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let arguments = [
            fds.as_mut_ptr() as usize,
            fds.len() as nfds_t as usize,
            time as usize,
            mask as usize,
            MASK_SIZE,
            0,
        ];
        // SAFETY: an array and a time of the caller's; its promise.
        unsafe { Self::new(libc::SYS_ppoll, arguments, seen).make(undo) }
    }

    /// Sleeps until there is something to read at `fd`; how many descriptors that is. Where the process may poll nothing
    /// (`RLIMIT_NOFILE` is 0) it sleeps in `pselect(2)`, if that can name `fd`.
    ///
    /// # Safety
    /// As for [`poll`](Self::poll).
    pub(crate) unsafe fn until_readable<U: Fn()>(
        fd: c_int,
        time: Option<timespec>,
        mask: *const sigset_t,
        seen: Seen,
        undo: &U,
    ) -> Result<usize, Errno> {
        let mut one = [pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        }];
        // SAFETY: the caller's promise.
        let polled = unsafe { Self::poll(&mut one, time, mask, seen, undo) };
        match usize::try_from(fd) {
            Ok(number) if polled == Err(libc::EINVAL) && number < libc::FD_SETSIZE => {
                // SAFETY: the caller's promise.
                unsafe { Self::select(number, time, mask, seen, undo) }
            }
            _ => polled,
        }
    }

    /// `pselect6(2)` of one descriptor, whose number is less than `FD_SETSIZE`, for input.
    ///
    /// # Safety
    /// As for [`poll`](Self::poll).
    #[cold]
    unsafe fn select<U: Fn()>(
        number: usize,
        mut time: Option<timespec>,
        mask: *const sigset_t,
        seen: Seen,
        undo: &U,
    ) -> Result<usize, Errno> {
        let mut read = [0u64; libc::FD_SETSIZE / 64];
        read[number / 64] = 1 << (number % 64);
        // What the kernel takes as its sixth argument: a set of signals and its size.
        let mask = [mask as usize, MASK_SIZE];
        let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let arguments = [
            number + 1,
            read.as_mut_ptr() as usize,
            0,
            0,
            time as usize,
            mask.as_ptr() as usize,
        ];
        // SAFETY: a set, a time and a mask of our own; the caller's promise.
        unsafe { Self::new(libc::SYS_pselect6, arguments, seen).make(undo) }
    }

    /// `epoll_pwait(2)` for at most `most` events, if no handler has run since `seen`. A negative number of milliseconds
    /// means for ever.
    ///
    /// # Safety
    /// What is mapped of the room for events may be written; `mask` is null or a signal set.
    pub(crate) unsafe fn epoll_wait<U: Fn()>(
        set: c_int,
        (room, most): (*mut epoll_event, usize),
        milliseconds: c_int,
        mask: *const sigset_t,
        seen: Seen,
        undo: &U,
    ) -> Result<usize, Errno> {
        let arguments = [
            set as usize,
            room as usize,
            most,
            milliseconds as usize,
            mask as usize,
            MASK_SIZE,
        ];
        // SAFETY: room of the caller's; its promise.
        unsafe { Self::new(libc::SYS_epoll_pwait, arguments, seen).make(undo) }
    }

    /// `recvfrom(2)` of a byte that stays there, where no handler has run since `seen`.
    pub(crate) fn peek<U: Fn()>(fd: c_int, seen: Seen, undo: &U) -> Result<usize, Errno> {
        let mut byte = 0u8;
        let arguments = [
            fd as usize,
            (&raw mut byte) as usize,
            1,
            libc::MSG_PEEK as usize,
            0,
            0,
        ];
        // SAFETY: a byte of our own.
        unsafe { Self::new(libc::SYS_recvfrom, arguments, seen).make(undo) }
    }

    /// `sendmsg(2)`, where no handler has run since `seen`. Each handler that runs while it sleeps ends it.
    ///
    /// # Safety
    /// What the message names is readable.
    pub(crate) unsafe fn send<U: Fn()>(
        fd: c_int,
        message: &msghdr,
        flags: c_int,
        seen: Seen,
        undo: &U,
    ) -> Result<usize, Errno> {
        let message = ptr::from_ref(message) as usize;
        let arguments = [fd as usize, message, flags as usize, 0, 0, 0];
        // SAFETY: the caller's promise.
        unsafe { Self::new(libc::SYS_sendmsg, arguments, seen).make(undo) }
    }

    /// Makes the call; should the thread be cancelled in it, `undo` runs.
    ///
    /// # Safety
    /// The arguments are those of the call.
    unsafe fn make<U: Fn()>(&self, undo: &U) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        let answer = real::cancellable(undo, || unsafe { self.make_cancellable() });
        usize::try_from(answer).map_err(|_| -answer as Errno)
    }

    /// Where there is nobody to cancel it the thread stays as it is, as in libc: a handler may leave the call by
    /// `siglongjmp`. A frame of its own: it may be unwound from any of its instructions.
    ///
    /// # Safety
    /// As for [`make`](Self::make).
    #[inline(never)]
    unsafe fn make_cancellable(&self) -> isize {
        let mut before = 0;
        // SAFETY: a word of our own; the caller's promise.
        unsafe {
            if is_alone() {
                real::pthread_testcancel()();
                return shunt_sleep(self, signals::count());
            }
            real::pthread_setcanceltype()(PTHREAD_CANCEL_ASYNCHRONOUS, &raw mut before);
            let answer = shunt_sleep(self, signals::count());
            real::pthread_setcanceltype()(before, ptr::null_mut());
            answer
        }
    }
}

/// In a handler of this thread, before the program's: it does not begin to sleep, if it was about to.
///
/// # Safety
/// `context` is what the kernel passed to the running handler.
#[inline]
pub(crate) unsafe fn interrupt(context: *mut c_void) {
    // SAFETY: the caller's promise; it is a `ucontext_t`, there as long as the handler runs.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let pc = &mut machine.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let pc = &mut machine.pc;
    if let Some(past) = past(*pc as usize) {
        *pc = past as _;
    }
}

/// Where a thread goes on that is between the look and the system call.
fn past(pc: usize) -> Option<usize> {
    let address = |label: unsafe extern "C-unwind" fn()| label as *const () as usize;
    let between = address(shunt_sleep_look)..=address(shunt_sleep_call);
    between.contains(&pc).then(|| address(shunt_sleep_past))
}

unsafe extern "C-unwind" {
    /// Makes the call, unless `*seen` is not what it was: then, and where [`interrupt`] says so, `-EINTR`.
    fn shunt_sleep(call: *const Sleep, seen: *const u64) -> isize;
    fn shunt_sleep_look();
    fn shunt_sleep_call();
    fn shunt_sleep_past();
}

macro_rules! sleep_function {
    ($($instruction:literal),* $(,)?) => {
        std::arch::global_asm!(
            ".section .text.shunt_sleep,\"ax\",@progbits",
            ".p2align 6",
            ".hidden shunt_sleep",
            ".hidden shunt_sleep_look",
            ".hidden shunt_sleep_call",
            ".hidden shunt_sleep_past",
            ".globl shunt_sleep",
            ".globl shunt_sleep_look",
            ".globl shunt_sleep_call",
            ".globl shunt_sleep_past",
            ".type shunt_sleep, @function",
            "shunt_sleep:",
            ".cfi_startproc",
            $($instruction,)*
            ".cfi_endproc",
            ".size shunt_sleep, . - shunt_sleep",
            ".text",
        );
    };
}

#[cfg(target_arch = "x86_64")]
sleep_function! {
    "mov r11, rsi",
    "mov rcx, rdi",
    "mov rdi, [rcx]",
    "mov rsi, [rcx + 8]",
    "mov rdx, [rcx + 16]",
    "mov r10, [rcx + 24]",
    "mov r8, [rcx + 32]",
    "mov r9, [rcx + 40]",
    "mov rax, [rcx + 56]",
    "mov rcx, [rcx + 48]",
    "shunt_sleep_look:",
    "cmp rcx, [r11]",
    "jne shunt_sleep_past",
    "shunt_sleep_call:",
    "syscall",
    "ret",
    "shunt_sleep_past:",
    "mov rax, -4",
    "ret",
}

#[cfg(target_arch = "aarch64")]
sleep_function! {
    "mov x9, x0",
    "mov x10, x1",
    "ldp x0, x1, [x9]",
    "ldp x2, x3, [x9, #16]",
    "ldp x4, x5, [x9, #32]",
    "ldp x11, x8, [x9, #48]",
    "shunt_sleep_look:",
    "ldr x12, [x10]",
    "cmp x11, x12",
    "b.ne shunt_sleep_past",
    "shunt_sleep_call:",
    "svc #0",
    "ret",
    "shunt_sleep_past:",
    "mov x0, #-4",
    "ret",
}

const _: () = assert!(std::mem::offset_of!(Sleep, seen) == 48);
const _: () = assert!(std::mem::offset_of!(Sleep, number) == 56);
const _: () = assert!(libc::EINTR == 4);

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Option<timespec> = Some(timespec {
        tv_sec: 0,
        tv_nsec: 1,
    });

    fn poll_for_ever(seen: Seen) -> Result<usize, Errno> {
        // SAFETY: no mask.
        unsafe { Sleep::poll(&mut [], None, ptr::null(), seen, &|| ()) }
    }

    #[test]
    fn a_call_in_which_nothing_comes_ends_by_its_time() {
        // SAFETY: no mask.
        let woken = unsafe { Sleep::poll(&mut [], MOMENT, ptr::null(), signals::now(), &|| ()) };
        assert_eq!(woken, Ok(0));
    }

    #[test]
    fn a_handler_that_has_run_since_the_look_ends_a_call_that_has_not_begun() {
        let seen = signals::now();
        signals::count_one(true);
        assert_eq!(poll_for_ever(seen), Err(libc::EINTR));
        let seen = signals::now();
        assert_eq!(Sleep::peek(-1, seen, &|| ()), Err(libc::EBADF));
    }

    #[test]
    fn only_between_the_look_and_the_call_is_a_thread_sent_past_it() {
        let address = |label: unsafe extern "C-unwind" fn()| label as *const () as usize;
        let (look, call) = (address(shunt_sleep_look), address(shunt_sleep_call));
        let there = Some(address(shunt_sleep_past));
        assert_eq!((past(look), past(call)), (there, there));
        assert_eq!((past(look - 1), past(call + 1)), (None, None));
    }
}
