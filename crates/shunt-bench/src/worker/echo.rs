//! Messages there and back.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use super::channel::Channel;
use super::{Outcome, Times, await_start};
use crate::pattern::Pattern;
use crate::sys;

/// Round trips before the measured ones: enough for a connection to be moved, and for
/// spins to have learnt.
const WARM_UP: u64 = 2_000;
/// It takes at least this long, …
const WARM_TIME: Duration = Duration::from_millis(20);
/// … and of large messages no more.
const MOST_WARM_UP: Duration = Duration::from_millis(100);

/// Times are kept exact to a thousandth, in nanoseconds; a longer one than this counts as it.
const LONGEST: u64 = 60_000_000_000;
const DIGITS: u8 = 3;

/// The first message's first byte after the warm-up: the server counts from there.
const MARK: u8 = 0xaa;

/// Sends back what comes. Every message is checked.
pub(super) fn serve(mut channel: impl Channel, size: usize) -> Result<Outcome> {
    let pattern = Pattern::new(size);
    let mut buffer = vec![0; size];
    let mut outcome = Outcome::default();
    let (mut start, mut cpu, mut offset) = (Instant::now(), sys::cpu(), 0);
    while channel.receive_all(&mut buffer)? {
        if buffer[0] == MARK ^ pattern.at(offset, 1)[0] {
            buffer[0] ^= MARK;
            (start, cpu) = (Instant::now(), sys::cpu());
            outcome.messages = 0;
        }
        ensure!(pattern.is_at(offset, &buffer), "wrong bytes at {offset}");
        channel.send(&buffer)?;
        offset += size as u64;
        outcome.messages += 2;
    }
    outcome.bytes = outcome.messages * size as u64;
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome.cpu = (sys::cpu() - cpu).as_secs_f64();
    Ok(outcome)
}

/// Asks, and times each answer.
pub(super) fn ask(mut channel: impl Channel, size: usize, milliseconds: u64) -> Result<Outcome> {
    let pattern = Pattern::new(size);
    let mut buffer = vec![0; size];
    let mut offset = 0;
    let mut trip = |offset: u64, mark: u8| -> Result<()> {
        buffer.copy_from_slice(pattern.at(offset, size));
        buffer[0] ^= mark;
        channel.send(&buffer)?;
        ensure!(channel.receive_all(&mut buffer)?, "the server went away");
        ensure!(pattern.is_at(offset, &buffer), "wrong bytes at {offset}");
        Ok(())
    };
    let begin = Instant::now();
    while begin.elapsed() < MOST_WARM_UP
        && (offset < WARM_UP * size as u64 || begin.elapsed() < WARM_TIME)
    {
        trip(offset, 0)?;
        offset += size as u64;
    }
    await_start()?;
    let mut times = Histogram::new_with_max(LONGEST, DIGITS)?;
    let (start, cpu) = (Instant::now(), sys::cpu());
    let until = start + Duration::from_millis(milliseconds);
    let mut before = start;
    let mut mark = MARK;
    while before < until {
        trip(offset, mark)?;
        mark = 0;
        offset += size as u64;
        let now = Instant::now();
        times.saturating_record((now - before).as_nanos() as u64);
        before = now;
    }
    let cpu = (sys::cpu() - cpu).as_secs_f64();
    channel.finish()?;
    Ok(Outcome {
        messages: 2 * times.len(),
        bytes: 2 * times.len() * size as u64,
        seconds: (before - start).as_secs_f64(),
        cpu,
        times: Some(Times::of(&times)),
        ..Outcome::default()
    })
}

impl Times {
    /// A quantile is the middle of the times that count as one with it.
    pub(super) fn of(times: &Histogram<u32>) -> Self {
        let quantile = |share| times.median_equivalent(times.value_at_quantile(share)) as f64;
        Self {
            mean: times.mean(),
            p1: quantile(0.01),
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_a_thousandth() {
        let mut all = Histogram::new_with_max(LONGEST, DIGITS).unwrap();
        for ns in 1..=1_000_000 {
            all.saturating_record(ns);
        }
        let times = Times::of(&all);
        for (found, ns) in [
            (times.p1, 10_000.0),
            (times.p50, 500_000.0),
            (times.p999, 999_000.0),
            (times.mean, 500_000.5),
        ] {
            assert!((found / ns - 1.0).abs() < 0.001, "{ns}: {found}");
        }
        // One that took longer than any counts, too.
        all.saturating_record(u64::MAX);
        assert_eq!(all.len(), 1_000_001);
        assert!(all.max() >= LONGEST);
    }
}
