//! Names of threads for tokens, and how a token is taken and given back.

use std::sync::atomic::Ordering;

use shunt_shm::slot::{self, Options};
use shunt_shm::token::{Holder, Taken, Token};

use super::alone::is_alone;
use super::identity::pid;
use super::rest::Rest;
use super::undisturbed;
use super::words::Own;
use crate::sys;

/// A holder's name: the process id above this bit.
const PID_SHIFT: u32 = 42;

/// This thread's name: its thread pointer and the process id. Unique among the
/// threads that can meet at a token, and free to read.
#[inline(always)]
fn name(words: Own) -> Holder {
    // SAFETY: this thread's own words.
    match unsafe { (*words.get()).name } {
        0 => learn_name(words),
        name => Holder(name),
    }
}

/// This thread's name as a number: never 0.
pub(crate) fn here() -> u64 {
    name(Own::here()).0
}

#[cold]
#[inline(never)]
fn learn_name(words: Own) -> Holder {
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
    unsafe { (*words.get()).name = name };
    Holder(name)
}

/// The outcome of an attempt to take a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Got {
    /// This thread has the token.
    Token,
    /// This thread has the token, whose last holder died in the middle of an operation.
    FromTheDead,
    /// The token was not taken: this thread has it already, below the signal handler that asks; or a stopped process has it.
    Nothing,
}

/// Takes a token, waiting for another holder. The program's signal handlers wait
/// until it is given back ([`undisturbed`]).
#[inline]
pub(crate) fn take(token: &Token) -> Got {
    take_while(token, || true)
}

/// [`take`], but a holder that is stopped in the middle of an operation is waited for only as long as `patient` says so:
/// nobody knows when it continues.
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
    words: Own,
}

impl<'a> Held<'a> {
    /// Takes a token if it is free. `options` say whether a fork shares the connection.
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
    undisturbed::end(Own::here());
}

#[cold]
fn take_later(token: &Token, patient: &mut dyn FnMut() -> bool) -> Got {
    /// Between two looks at a process that is stopped.
    const NAP_MS: i64 = 1;
    /// After this time (nanoseconds) a holder that cannot be seen is taken for one that may be stopped.
    const UNSEEN: u64 = 10_000_000;
    let began = sys::now();
    let (mut looks, rest) = (Looks::begin(began), Rest::new());
    loop {
        for _ in 0..100 {
            if !token.is_taken() && try_take(token) {
                return Got::Token;
            }
            std::hint::spin_loop();
        }
        rest.turn();
        if !looks.is_due(sys::now()) {
            continue;
        }
        if take_from_the_dead(token) {
            return Got::FromTheDead;
        }
        let may_be = || sys::now() - began > UNSEEN && !is_held_by_dead(token);
        while holder_is_stopped(token).unwrap_or_else(may_be) {
            if !patient() {
                return Got::Nothing;
            }
            sys::poll_ms(-1, 0, NAP_MS);
        }
    }
}

/// Decides when a thread that waits for another one's operation looks whether the process of that one has died, or is
/// stopped. It goes by the clock: beside busy programs a single yield may take longer than hundreds elsewhere.
pub(crate) struct Looks {
    next: u64,
}

impl Looks {
    /// Before the first look (nanoseconds): most operations are over by then.
    const FIRST: u64 = 50_000;
    /// Between two looks (nanoseconds).
    const EVERY: u64 = 1_000_000;

    pub(crate) fn begin(now: u64) -> Self {
        Self {
            next: now + Self::FIRST,
        }
    }

    /// The first look is due at once.
    pub(crate) fn at_once() -> Self {
        Self { next: 0 }
    }

    /// Whether a look is due; then the next one is later.
    pub(crate) fn is_due(&mut self, now: u64) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + Self::EVERY;
        }
        due
    }
}

/// Whether a process held the token when it died, if it is of this PID namespace: in another one it has another number.
pub(crate) fn is_held_by_dead(token: &Token) -> bool {
    token.holder().is_some_and(is_dead)
}

/// Whether a stopped process holds the token, so that nobody knows when it is given back. `false`, too, if the process is of
/// another PID namespace, or cannot be looked at.
pub(crate) fn is_held_by_stopped(token: &Token) -> bool {
    holder_is_stopped(token) == Some(true)
}

/// Whether a stopped process holds the token. `None`: it cannot be looked at.
fn holder_is_stopped(token: &Token) -> Option<bool> {
    let process = |holder: Holder| (holder.0 >> PID_SHIFT) as u32;
    let other = token.holder().map(process).filter(|&other| other != pid());
    other.map_or(Some(false), sys::is_stopped)
}

/// Whether the token is held by another thread that needs only a processor to continue: one of this process, or of a process that
/// lives and is not stopped.
pub(crate) fn is_held_by_running(token: &Token) -> bool {
    token.holder().is_some_and(|holder| {
        let process = (holder.0 >> PID_SHIFT) as u32;
        if process == pid() {
            holder.0 != here()
        } else {
            !sys::is_dead(process) && sys::is_stopped(process) != Some(true)
        }
    })
}

/// How a token names a thread of another process.
#[cfg(test)]
pub(crate) fn of_another(process: u32) -> Holder {
    Holder(u64::from(process) << PID_SHIFT | 1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_names_of_their_own_that_stay() {
        super::super::learn_pid();
        let mine = here();
        let other = std::thread::spawn(here).join().unwrap();
        assert!(mine != 0 && other != 0 && mine != other && mine == here());
        assert_eq!(mine >> PID_SHIFT, u64::from(pid()));
    }

    #[test]
    fn a_token_of_a_living_process_is_not_the_deads() {
        let token = Token::FREE;
        assert!(!is_held_by_dead(&token) && !is_held_by_stopped(&token));
        assert!(try_take(&token));
        assert!(!is_held_by_dead(&token) && !is_held_by_stopped(&token));
        assert!(!is_held_by_running(&token));
        give(&token);
    }

    #[test]
    fn what_a_dead_process_held_is_taken_over() {
        super::super::learn_pid();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let holder = of_another(child.id());
        child.wait().unwrap();
        let token = Token::FREE;
        assert!(token.try_take(holder).is_ok() && is_held_by_dead(&token));
        assert!(take_while(&token, || true) == Got::FromTheDead);
        give(&token);
        assert!(try_take(&token));
        give(&token);
    }

    #[test]
    fn a_look_is_due_by_the_clock_however_seldom_the_waiting_thread_runs() {
        let mut looks = Looks::begin(7);
        assert!(!looks.is_due(7) && !looks.is_due(6 + Looks::FIRST));
        let first = 50_000_000;
        assert!(looks.is_due(first) && !looks.is_due(first + 1));
        assert!(looks.is_due(first + Looks::EVERY));
    }

    #[test]
    fn a_token_for_one_operation_is_given_back_by_it() {
        let (token, options) = (Token::FREE, Options::default());
        let held = Held::try_take(&token, &options).unwrap();
        assert!(Held::try_take(&token, &options).is_none());
        held.give();
        assert!(!token.is_taken());
    }
}
