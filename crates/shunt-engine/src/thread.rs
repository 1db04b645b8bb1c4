//! Who we are: names of threads for tokens, the process id, and signals seen.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use shunt_shm::slot::{self, Options};
use shunt_shm::token::{Holder, Taken, Token};

use self::signals::Words;
use crate::sys;

pub(crate) mod alone;
mod owner;
pub(crate) mod under_way;
pub(crate) mod undisturbed;

pub use alone::{is_alone, not_alone};

pub(crate) use owner::{lend_memory, owns_descriptors, owns_memory};

/// What every start, fork and exit looks at. In the same page as what the loader
/// has written anyway, so that a program without sockets, and each of its forked
/// children, copies no page for us.
#[unsafe(link_section = ".data")]
static PROCESS: Process = Process {
    pid: AtomicU32::new(0),
    forks: AtomicU32::new(0),
    used: AtomicBool::new(false),
    lent: AtomicBool::new(false),
    joined: AtomicBool::new(false),
    mark: AtomicPtr::new(std::ptr::null_mut()),
    signals: Lock::new(),
};

struct Process {
    pid: AtomicU32,
    /// Forks that led to this process, as far as it or its parents had anything to know.
    forks: AtomicU32,
    /// There is something to know at a fork, an exec or an exit.
    used: AtomicBool,
    /// Another process may run on this memory.
    lent: AtomicBool,
    /// A thread that libc knows nothing of may run on it at the same time.
    joined: AtomicBool,
    /// What [`owner`] knows the process by; null: nothing yet.
    mark: AtomicPtr<AtomicU32>,
    /// Held by who changes the table of signal handlers.
    signals: Lock,
}

/// A holder's name: the process id above this bit.
const PID_SHIFT: u32 = 42;

/// Remembers the process id; at start and after a fork in the child.
#[inline]
pub(crate) fn learn_pid() {
    PROCESS.pid.store(sys::getpid(), Ordering::Relaxed);
    if PROCESS.lent.load(Ordering::Relaxed) {
        // To this process's parent's children.
        PROCESS.lent.store(false, Ordering::Relaxed);
    }
    // SAFETY: this thread's own words.
    unsafe { (*signals::here()).name = 0 };
    under_way::forget();
}

/// The process id as last learned.
#[inline(always)]
pub(crate) fn pid() -> u32 {
    PROCESS.pid.load(Ordering::Relaxed)
}

/// How many forks led to this process.
#[inline(always)]
pub(crate) fn forks() -> u32 {
    PROCESS.forks.load(Ordering::Relaxed)
}

/// This process is a forked child.
pub(crate) fn note_fork() {
    PROCESS.forks.fetch_add(1, Ordering::Relaxed);
}

/// Whether this process has ever had a descriptor of interest, or is to leave
/// statistics. One that has not needs nothing of us when it forks or ends.
#[inline]
pub(crate) fn is_used() -> bool {
    PROCESS.used.load(Ordering::Acquire)
}

/// From here on there is something to know.
pub(crate) fn set_used() {
    if !is_used() {
        owner::make_mark();
        PROCESS.used.store(true, Ordering::Release);
    }
}

/// Held by who changes the table of signal handlers.
#[inline]
pub(crate) fn signals_lock() -> &'static Lock {
    &PROCESS.signals
}

/// This thread has descriptors of its own from now on.
pub(crate) fn set_apart() {
    signals::set_apart();
}

/// This thread's name: its thread pointer and the process id. Unique among the
/// threads that can meet at a token, and free to read.
#[inline(always)]
fn name(words: *mut Words) -> Holder {
    // SAFETY: this thread's own words.
    match unsafe { (*words).name } {
        0 => learn_name(words),
        name => Holder(name),
    }
}

/// This thread's name as a number: never 0.
pub(crate) fn here() -> u64 {
    name(signals::here()).0
}

#[cold]
#[inline(never)]
fn learn_name(words: *mut Words) -> Holder {
    let pointer: u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of the thread control block is its own address (psABI).
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the thread pointer.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    let name = (pointer >> 4) & ((1 << PID_SHIFT) - 1) | u64::from(pid()) << PID_SHIFT;
    // SAFETY: this thread's own words.
    unsafe { (*words).name = name };
    Holder(name)
}

/// A lock for rare operations, held for short and never asleep. Taking it in a
/// signal handler that interrupted its holder fails instead of deadlocking.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Lock(Token);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(Token::FREE)
    }

    /// Takes it, waiting for another thread; `false` if this thread has it.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        take(&self.0) != Got::Nothing
    }

    /// Takes it if nobody has it.
    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        try_take(&self.0)
    }

    pub(crate) fn give(&self) {
        give(&self.0);
    }

    /// Frees it in a forked child, whose other threads do not exist.
    pub(crate) fn reset(&self) {
        self.0.reset();
    }
}

/// How a token was come by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Got {
    /// It is this thread's now.
    Token,
    /// It is; but the process that had it died in the middle of an operation.
    FromTheDead,
    /// Not at all: this thread has it, and a signal handler asks; or a stopped process has it.
    Nothing,
}

/// Takes a token, waiting for another holder. The program's signal handlers wait
/// until it is given back ([`undisturbed`]).
#[inline]
pub(crate) fn take(token: &Token) -> Got {
    take_while(token, || true)
}

/// The same for who waits only as long as it is `patient` for a process that is stopped in the middle of an
/// operation: there is no saying when that goes on.
#[inline]
pub(crate) fn take_while(token: &Token, mut patient: impl FnMut() -> bool) -> Got {
    let words = undisturbed::begin();
    match token.try_take(name(words)) {
        Ok(()) => Got::Token,
        Err(Taken::ByUs) => {
            undisturbed::end(words);
            Got::Nothing
        }
        Err(Taken::ByOther(_)) => {
            undisturbed::end(words);
            take_later(token, &mut patient)
        }
    }
}

/// Takes a token if it is free.
#[inline]
pub(crate) fn try_take(token: &Token) -> bool {
    let words = undisturbed::begin();
    let taken = token.try_take(name(words)).is_ok();
    if !taken {
        undisturbed::end(words);
    }
    taken
}

/// A token that this thread holds for one short operation.
#[must_use]
pub(crate) struct Held<'a> {
    token: &'a Token,
    words: *mut Words,
}

impl<'a> Held<'a> {
    /// Takes a token if it is free, of a connection that a fork shares or not.
    #[inline(always)]
    pub(crate) fn try_take(token: &'a Token, options: &Options) -> Option<Self> {
        let words = undisturbed::begin();
        // From here on no signal handler can fork, nor make a thread.
        let taken = if options.forked.load(Ordering::Relaxed) != slot::SHARED && is_alone() {
            token.try_take_alone(name(words))
        } else {
            token.try_take(name(words)).is_ok()
        };
        if taken {
            return Some(Self { token, words });
        }
        undisturbed::end(words);
        None
    }

    /// Gives it back.
    #[inline(always)]
    pub(crate) fn give(self) {
        self.token.give();
        undisturbed::end(self.words);
    }
}

/// Gives a token back.
#[inline(always)]
pub(crate) fn give(token: &Token) {
    token.give();
    undisturbed::end(signals::here());
}

#[cold]
fn take_later(token: &Token, patient: &mut dyn FnMut() -> bool) -> Got {
    /// Yields between two looks at whether the holder's process lives.
    const LOOK_EVERY: u32 = 256;
    /// Between two looks at one that is stopped.
    const NAP_MS: i64 = 1;
    let mut yields = 0u32;
    loop {
        for _ in 0..100 {
            if !token.is_taken() && try_take(token) {
                return Got::Token;
            }
            std::hint::spin_loop();
        }
        sys::sched_yield();
        yields = yields.wrapping_add(1);
        if !yields.is_multiple_of(LOOK_EVERY) {
            continue;
        }
        if take_from_the_dead(token) {
            return Got::FromTheDead;
        }
        while is_held_by_stopped(token) {
            if !patient() {
                return Got::Nothing;
            }
            sys::poll_ms(-1, 0, NAP_MS);
        }
    }
}

/// Whether a process held the token when it died. One in another pid namespace seems
/// dead too.
pub(crate) fn is_held_by_dead(token: &Token) -> bool {
    token.holder().is_some_and(is_dead)
}

/// Whether a process holds the token that is stopped: there is no saying when it goes on.
pub(crate) fn is_held_by_stopped(token: &Token) -> bool {
    let process = |holder: Holder| (holder.0 >> PID_SHIFT) as u32;
    let other = token.holder().map(process).filter(|&other| other != pid());
    other.is_some_and(sys::is_stopped)
}

fn is_dead(holder: Holder) -> bool {
    let process = (holder.0 >> PID_SHIFT) as u32;
    process != pid() && sys::is_dead(process)
}

fn take_from_the_dead(token: &Token) -> bool {
    let Some(holder) = token.holder().filter(|&holder| is_dead(holder)) else {
        return false;
    };
    let words = undisturbed::begin();
    let taken = token.take_over(holder, name(words));
    if !taken {
        undisturbed::end(words);
    }
    taken
}

/// Signal handlers that have run on this thread since it started: all in the
/// low half, those without `SA_RESTART` in the high half.
pub mod signals {
    use libc::c_int;

    use super::under_way::{self, Call};
    use super::undisturbed;
    use crate::{stream, wake};

    /// A count of handlers run; compare two to know whether one ran between.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Seen(u64);

    impl Seen {
        /// Whether any handler has run since.
        #[inline]
        #[must_use]
        pub fn any_since(self) -> bool {
            self != now()
        }

        /// Whether a handler without `SA_RESTART` has run since.
        #[inline]
        #[must_use]
        pub fn interrupting_since(self) -> bool {
            self.0 >> 32 != now().0 >> 32
        }
    }

    /// What each thread keeps for itself.
    #[repr(C)]
    pub(super) struct Words {
        seen: u64,
        /// Operations that handlers wait for ([`super::undisturbed`]).
        pub(super) depth: i32,
        /// Some do.
        pub(super) put_off: bool,
        /// This thread does not share its descriptors with the others.
        apart: bool,
        /// The mask to come back to then.
        pub(super) mask: u64,
        /// The thread's name at tokens ([`super::name`]); 0: not known yet.
        pub(super) name: u64,
        /// The call that handlers interrupt ([`super::under_way`]).
        pub(super) call: Call,
        /// How many such calls there have been.
        pub(super) calls: u32,
        /// 1 + the number of the place where this thread sleeps; 0: none.
        pub(super) place: c_int,
    }

    const _: () = assert!(size_of::<Words>() == 56);

    std::arch::global_asm!(
        ".section .tbss.shunt_signals,\"awT\",@nobits",
        ".p2align 3",
        ".type shunt_signals_seen, @object",
        ".size shunt_signals_seen, 56",
        ".hidden shunt_signals_seen",
        ".globl shunt_signals_seen",
        "shunt_signals_seen:",
        ".zero 56",
        ".text",
    );

    /// Where this thread's words are. Initial-exec, so that reading them calls
    /// nothing and is safe in a signal handler.
    #[inline(always)]
    pub(super) fn here() -> *mut Words {
        let at: *mut Words;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the standard initial-exec sequence for the variable above.
        unsafe {
            std::arch::asm!(
                "mov {at}, qword ptr [rip + shunt_signals_seen@GOTTPOFF]",
                "add {at}, qword ptr fs:[0]",
                at = out(reg) at,
                options(nostack, readonly),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(
                "adrp {at}, :gottprel:shunt_signals_seen",
                "ldr {at}, [{at}, #:gottprel_lo12:shunt_signals_seen]",
                "mrs {thread}, tpidr_el0",
                "add {at}, {at}, {thread}",
                at = out(reg) at,
                thread = out(reg) _,
                options(nostack, readonly),
            );
        }
        at
    }

    #[inline(always)]
    fn count() -> *mut u64 {
        // SAFETY: this thread's own words.
        unsafe { &raw mut (*here()).seen }
    }

    pub(super) fn is_apart() -> bool {
        // SAFETY: this thread's own words.
        unsafe { (*here()).apart }
    }

    pub(super) fn set_apart() {
        // SAFETY: this thread's own words.
        unsafe { (*here()).apart = true }
    }

    /// What has been seen up to now.
    #[inline]
    #[must_use]
    pub fn now() -> Seen {
        // SAFETY: this thread's own word; a handler may change it between two reads.
        Seen(unsafe { count().read_volatile() })
    }

    /// A handler is about to run on this thread. Those that are not put off in the middle of an
    /// operation interrupt no call.
    pub fn note(restarting: bool) {
        let step = if restarting { 1 } else { 1 | 1 << 32 };
        let count = count();
        // SAFETY: this thread's own word; a nested handler can at worst hide one
        // of two counts, and either tells.
        unsafe { count.write_volatile(count.read_volatile().wrapping_add(step)) };
        if undisturbed::has_begun() {
            return;
        }
        let (place, socket) = under_way::interrupt();
        if let Some(place) = place {
            wake::Place::numbered(place).interrupted();
        }
        if let Some(socket) = socket {
            stream::interrupted(socket);
        }
    }
}
