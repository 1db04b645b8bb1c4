//! On which cores a thread may run.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

use super::{Errno, core, sched_yield};

/// Numbers of cores that are told apart.
const CORES: usize = 1024;

/// A set of cores, as the kernel takes it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cores([u64; CORES / 64]);

impl Cores {
    const ALL: Self = Self([u64::MAX; CORES / 64]);

    fn only(core: usize) -> Self {
        let mut cores = Self([0; CORES / 64]);
        cores.0[core / 64] = 1 << (core % 64);
        cores
    }

    /// Without this one; `None`: there is no other, or this number is none.
    fn but(&self, core: usize) -> Option<Self> {
        let mut others = *self;
        *others.0.get_mut(core / 64)? &= !(1 << (core % 64));
        (others.0 != [0; CORES / 64]).then_some(others)
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether some of these are there, and no others.
    fn are_among(&self, all: &Self) -> bool {
        self.0 != [0; CORES / 64] && self.0.iter().zip(&all.0).all(|(own, all)| own & !all == 0)
    }

    fn has(&self, core: usize) -> bool {
        self.0[core / 64] >> (core % 64) & 1 != 0
    }

    /// Those of this thread that are there. `Err`: the kernel tells more apart, or refuses.
    fn allowed() -> Result<Self, Errno> {
        let mut cores = Self([0; CORES / 64]);
        call!(
            sched_getaffinity,
            0,
            size_of::<Self>(),
            cores.0.as_mut_ptr()
        )?;
        Ok(cores)
    }

    /// Lets this thread run on these. It is on one of them when this returns.
    fn allow(&self) -> Result<(), Errno> {
        call!(sched_setaffinity, 0, size_of::<Self>(), self.0.as_ptr()).map(drop)
    }
}

/// Moves this thread to the core of that number, from which the scheduler may move it as before. It waits there for its turn. `false`: it
/// may not run there, or is not scheduled as most threads are, or the kernel does not say, or somebody else has said meanwhile where it may run.
///
/// No signal handler of the program's may run meanwhile, which might never return.
pub(crate) fn move_to_core(core: u32) -> bool {
    let core = core as usize;
    core < CORES
        && is_movable()
        && move_among(|cores| {
            let only = Cores::only(core);
            (cores.has(core) && cores != only).then_some(only)
        })
}

/// Moves this thread from its core to another one of those where it may run, if `may` is true then, and, if it is to be
/// `without_choice`, if there is one other. `false`: no other thread has this core when it is yielded, or as [`move_to_core`].
///
/// No signal handler of the program's may run meanwhile, which might never return.
pub(crate) fn leave_core(without_choice: bool, may: impl FnOnce() -> bool) -> bool {
    is_movable()
        && move_among(|cores| {
            let others = cores.but((core() as usize).checked_sub(1)?)?;
            if without_choice && others.count() > 1 {
                return None;
            }
            // The yield comes last, as the peer may have left a moment ago, and would be met where it is now.
            (may() && yields_to_another()).then_some(others)
        })
}

/// Yields this thread's core. Whether another thread had it then (`getrusage(2)`: switches while this one could have gone on).
fn yields_to_another() -> bool {
    let before = switches();
    sched_yield();
    switches() != before
}

/// How often another thread was put in this one's place.
fn switches() -> Option<i64> {
    // SAFETY: a C struct of integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    call!(getrusage, libc::RUSAGE_THREAD, &raw mut usage).ok()?;
    Some(usage.ru_nivcsw)
}

/// Moves this thread to one of the cores that are chosen from those where it may run.
fn move_among(choose: impl FnOnce(Cores) -> Option<Cores>) -> bool {
    let Ok(before) = Cores::allowed() else {
        return false;
    };
    let Some(there) = choose(before) else {
        return false;
    };
    if let Err(errno) = there.allow() {
        let is_for_good = [libc::EPERM, libc::EACCES].contains(&errno);
        IS_REFUSED.fetch_or(is_for_good, Ordering::Relaxed);
        return false;
    }
    // Fewer, if a core has been taken from the process meanwhile.
    let is_mine = Cores::allowed().is_ok_and(|now| now.are_among(&there));
    if is_mine {
        give_back(&before);
    }
    is_mine
}

/// Whether the kernel has refused a move, as it will again: that may be written into a log.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether this thread is one of those that are moved.
fn is_movable() -> bool {
    !IS_REFUSED.load(Ordering::Relaxed) && !filters_calls() && is_usual()
}

/// Lets this thread run where it could before.
fn give_back(before: &Cores) {
    // Not `before` at once: cores that this thread gets later, by a larger cpuset, would be none of its own.
    let _ = Cores::ALL.allow();
    if Cores::allowed() != Ok(*before) {
        let _ = before.allow();
    }
}

/// Whether this thread is scheduled as most are: one that gets the core when nobody else wants it (`SCHED_IDLE`) might wait for long.
fn is_usual() -> bool {
    call!(sched_getscheduler, 0) == Ok(libc::SCHED_OTHER as usize)
}

/// Whether the kernel asks a filter (`seccomp`) about this thread's system calls, which may end the process for one that the
/// program does not make.
fn filters_calls() -> bool {
    const NO_FILTER: usize = 0;
    let nothing: c_int = 0;
    call!(
        prctl,
        libc::PR_GET_SECCOMP,
        nothing,
        nothing,
        nothing,
        nothing
    ) != Ok(NO_FILTER)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::sys;

    /// What a thread of its own sees, which may do with its cores what it likes.
    fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(work).join().unwrap()
    }

    fn numbers(cores: &Cores) -> Vec<usize> {
        (0..CORES).filter(|&core| cores.has(core)).collect()
    }

    #[test]
    fn a_thread_that_was_moved_may_run_where_it_could_before() {
        in_thread(|| {
            let before = Cores::allowed().unwrap();
            for core in numbers(&before) {
                let moved = move_to_core(core as u32);
                assert_eq!(moved, before != Cores::only(core) && !filters_calls());
                assert!(Cores::allowed() == Ok(before));
            }
        });
    }

    #[test]
    fn a_thread_is_moved_to_no_core_but_its_own() {
        in_thread(|| {
            let [first, second, ..] = numbers(&Cores::allowed().unwrap())[..] else {
                return;
            };
            Cores::only(first).allow().unwrap();
            assert!(!move_to_core(second as u32) && !move_to_core(first as u32));
            assert!(Cores::allowed() == Ok(Cores::only(first)));
            assert_eq!(sys::core(), first as u32 + 1);
        });
    }

    #[test]
    fn a_thread_that_had_few_cores_has_no_others_afterwards() {
        in_thread(|| {
            let all = Cores::allowed().unwrap();
            for core in numbers(&all) {
                give_back(&Cores::only(core));
                assert!(Cores::allowed() == Ok(Cores::only(core)));
            }
            give_back(&all);
            assert!(Cores::allowed() == Ok(all));
        });
    }

    #[test]
    fn a_thread_for_spare_time_is_not_moved() {
        in_thread(|| {
            let priority = libc::sched_param { sched_priority: 0 };
            // SAFETY: it only reads the structure.
            let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) };
            assert_eq!(set, 0);
            for core in numbers(&Cores::allowed().unwrap()) {
                assert!(!move_to_core(core as u32));
            }
        });
    }

    #[test]
    fn a_thread_that_leaves_its_core_may_run_there_as_before() {
        in_thread(|| {
            let before = Cores::allowed().unwrap();
            leave_core(false, || true);
            assert!(Cores::allowed() == Ok(before));
            assert!(!leave_core(false, || false));
            let here = Cores::only(numbers(&before)[0]);
            here.allow().unwrap();
            assert!(
                !leave_core(false, || panic!("it has one core")) && Cores::allowed() == Ok(here)
            );
        });
    }

    #[test]
    fn a_thread_whose_core_another_one_wants_leaves_it_and_no_other_one_does() {
        let all = Cores::allowed().unwrap();
        let [first, second, ..] = numbers(&all)[..] else {
            return;
        };
        if filters_calls() {
            return;
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Cores::only(first).allow().unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let mover = scope.spawn(|| {
                // The scheduler may part the two before.
                loop {
                    Cores::only(first).allow().unwrap();
                    let both = Cores(std::array::from_fn(|word| {
                        Cores::only(first).0[word] | Cores::only(second).0[word]
                    }));
                    both.allow().unwrap();
                    if leave_core(true, || sys::core() == first as u32 + 1) {
                        break Cores::allowed() == Ok(both);
                    }
                }
            });
            let is_as_before = mover.join();
            is_over.store(true, Ordering::Relaxed);
            assert!(is_as_before.unwrap());
        });
    }

    #[test]
    fn a_set_of_cores_is_among_another_one_if_it_has_some_of_its_cores_alone() {
        let both = Cores([3; CORES / 64]);
        assert!(both.are_among(&both) && Cores::only(64).are_among(&both));
        assert!(!Cores::only(2).are_among(&both) && !both.are_among(&Cores::only(0)));
        assert!(!Cores([0; CORES / 64]).are_among(&both));
        assert!(Cores::only(5).but(5).is_none() && Cores::only(5).but(CORES).is_none());
        assert!(Cores::only(5).but(6) == Some(Cores::only(5)));
        assert_eq!((both.count(), Cores::only(70).count()), (2 * 16, 1));
    }

    #[test]
    fn a_number_that_no_core_has_moves_nobody() {
        assert!(!move_to_core(CORES as u32 - 1) && !move_to_core(u32::MAX));
    }
}
