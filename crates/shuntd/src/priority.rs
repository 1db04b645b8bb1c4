//! Before whom the scheduler puts the daemon: a program that waits for its answer is held up in a call that would not wait
//! natively.

use rustix::process::{getpriority_process, setpriority_process};

/// The priority that is asked for (`nice(2)`), or, where the kernel refuses it, …
const FIRST: i32 = -5;
/// … the usual one, so that the daemon is not behind all others because a program started it that
/// is.
const USUAL: i32 = 0;

/// This thread, and those that it starts from now on, come before programs of the usual priority, as far as the kernel
/// allows that (`CAP_SYS_NICE`, `RLIMIT_NICE`).
pub fn come_first() {
    for nice in [FIRST, USUAL] {
        let is_first = getpriority_process(None).is_ok_and(|now| now <= nice);
        if is_first || setpriority_process(None, nice).is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities};

    /// The priority of a thread that begins with this one, after it has asked to come first.
    fn after(nice: i32) -> i32 {
        let thread = std::thread::spawn(move || {
            setpriority_process(None, nice).unwrap();
            come_first();
            getpriority_process(None).unwrap()
        });
        thread.join().unwrap()
    }

    #[test]
    fn it_comes_first_where_it_may_and_stays_as_it_is_otherwise() {
        let now = getpriority_process(None).unwrap();
        let may = capabilities(None).unwrap().effective;
        // `getrlimit(2)`: 20 less the lowest that may be had.
        let limit = getrlimit(Resource::Nice).current.unwrap_or(40) as i32;
        let lowest = if may.contains(CapabilitySet::SYS_NICE) {
            -20
        } else {
            20 - limit.max(0)
        };
        let begun = now.max(10);
        let may_be = |nice: &i32| *nice >= lowest;
        let expected = [FIRST, USUAL].into_iter().find(may_be);
        assert_eq!(after(begun), expected.unwrap_or(begun));
        if lowest <= -20 {
            assert_eq!(after(-10), -10);
        }
    }
}
