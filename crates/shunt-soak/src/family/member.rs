//! A member of a family: two threads that do at random what can be done with
//! the family's connections.

use super::shared::{CONNECTIONS, MORTAL, Shared};
use super::way::{End, Turn, nap};
use crate::random::Random;
use crate::system::{self, checked};
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

const THREADS: usize = 2;
/// Where a member that was started by exec finds its connections.
pub(super) const FIRST: RawFd = 100;

/// What a member is to do; as words on a command line where it is exec'd.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) side: usize,
    /// May be killed, so it keeps to the connections made for that.
    pub(super) mortal: bool,
    /// Sends in parts where it may be killed.
    pub(super) parts: bool,
    /// May be killed where one that receives may not.
    pub(super) only_sends: bool,
    /// Puts streams on connections now and then.
    pub(super) streams: bool,
    /// Descriptors come over standard input.
    pub(super) passed: bool,
    pub(super) life: u64,
    /// Of this member's choices.
    pub(super) seed: u64,
    /// Of the records.
    pub(super) content: u64,
}

impl Plan {
    pub(super) fn words(&self) -> Vec<String> {
        [
            self.side as u64,
            u64::from(self.mortal),
            u64::from(self.parts),
            u64::from(self.only_sends),
            u64::from(self.streams),
            u64::from(self.passed),
            self.life,
            self.seed,
            self.content,
        ]
        .iter()
        .map(u64::to_string)
        .collect()
    }

    fn parse(words: &[String]) -> Option<Self> {
        let numbers: Vec<u64> = words
            .iter()
            .map(|word| word.parse().ok())
            .collect::<Option<_>>()?;
        let [
            side,
            mortal,
            parts,
            only_sends,
            streams,
            passed,
            life,
            seed,
            content,
        ] = numbers[..]
        else {
            return None;
        };
        Some(Self {
            side: usize::try_from(side).ok()?,
            mortal: mortal == 1,
            parts: parts == 1,
            only_sends: only_sends == 1,
            streams: streams == 1,
            passed: passed == 1,
            life,
            seed,
            content,
        })
    }
}

/// `family-member FILE PLAN…`: one that was exec'd.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    const USAGE: &str = "family-member FILE PLAN…";
    let [file, words @ ..] = arguments else {
        return Err(USAGE.into());
    };
    let plan = Plan::parse(words).ok_or(USAGE)?;
    let shared = Shared::open(Path::new(file)).map_err(|error| format!("{file}: {error}"))?;
    let fds = if plan.passed {
        super::pass::receive(0).map_err(|error| format!("descriptors: {error}"))?
    } else {
        std::array::from_fn(|i| FIRST + i as RawFd)
    };
    live(shared, &plan, fds)
}

/// Until its time is over, or, at the end of the round, until nothing is left to do.
pub(super) fn live(
    shared: &'static Shared,
    plan: &Plan,
    fds: [RawFd; CONNECTIONS],
) -> Result<(), String> {
    system::ignore_sigpipe();
    // SAFETY: integers only. Whoever loses its parent must not stay behind.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
        .map_err(|error| error.to_string())?;
    let mut random = Random::new(plan.seed);
    let late = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (plan, random) = (*plan, Random::new(random.next()));
            let late = late.clone();
            thread::spawn(move || work(shared, &plan, fds, &late, random))
        })
        .collect();
    for thread in threads {
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(text)) => shared.fail(&text),
            Err(_) => shared.fail("a thread panicked"),
        }
    }
    Ok(())
}

fn work(
    shared: &'static Shared,
    plan: &Plan,
    fds: [RawFd; CONNECTIONS],
    late: &AtomicUsize,
    mut random: Random,
) -> Result<(), String> {
    let count = if plan.mortal { MORTAL } else { CONNECTIONS };
    let ends: Vec<End> = (0..count)
        .map(|connection| End {
            shared,
            seed: plan.content,
            parts: plan.parts,
            connection,
            side: plan.side,
            fd: fds[connection],
        })
        .collect();
    let until = Instant::now() + Duration::from_millis(plan.life);
    let mut is_late = false;
    loop {
        if shared.draining() {
            if ends.iter().all(|end| end.has_ended(plan.only_sends)) {
                return Ok(());
            }
        } else if !is_late && Instant::now() > until {
            is_late = true;
            late.fetch_add(1, SeqCst);
        }
        // Both leave together. While the other one may wait for room, whoever is
        // late only receives: else all that are left might wait for room, in
        // both families, and nobody would make any.
        if late.load(SeqCst) == THREADS && is_late && !shared.draining() {
            return Ok(());
        }
        let end = &ends[random.below(ends.len())];
        let named = |text| format!("connection {}: {text}", end.connection);
        let turn = match random.below(20) {
            0..=7 if !is_late || shared.draining() => end.send(&mut random).map_err(named)?,
            0..=17 if plan.only_sends => Turn::Idle,
            0..=15 => end.receive(&mut random).map_err(named)?,
            16 | 17 => {
                end.look(&mut random).map_err(named)?;
                Turn::Moved
            }
            18 if plan.streams && random.one_in(30) => {
                end.put_a_stream_on().map_err(named)?;
                Turn::Moved
            }
            _ => Turn::Idle,
        };
        if turn != Turn::Moved {
            nap(random.magnitude(50, 2000));
        }
    }
}
