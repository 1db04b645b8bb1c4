//! Messages one way.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::channel::Channel;
use super::{Outcome, await_start};
use crate::pattern::Pattern;
use crate::sys;

/// Sends messages for a while: each is made in a buffer, as a program would.
pub(super) fn send(mut channel: impl Channel, size: usize, milliseconds: u64) -> Result<Outcome> {
    let pattern = Pattern::new(size);
    let mut buffer = vec![0; size];
    await_start()?;
    let (start, cpu) = (Instant::now(), sys::cpu());
    let until = start + Duration::from_millis(milliseconds);
    let mut messages = 0u64;
    // The clock is looked at about every 16 KiB, since a look costs what a small
    // message does.
    let stretch = (16 << 10) / size.clamp(64, 16 << 10) as u64;
    while !messages.is_multiple_of(stretch) || Instant::now() < until {
        buffer.copy_from_slice(pattern.at(messages * size as u64, size));
        channel.send(&buffer)?;
        messages += 1;
    }
    channel.finish()?;
    let outcome = Outcome {
        messages,
        bytes: messages * size as u64,
        seconds: start.elapsed().as_secs_f64(),
        cpu: (sys::cpu() - cpu).as_secs_f64(),
        times: None,
        ..Outcome::default()
    };
    // Until the receiver has all and goes: what is unsent dies with some carriers.
    channel.receive(&mut [0])?;
    Ok(outcome)
}

/// Receives messages to the end of the stream, each by a call of its own where the
/// carrier has it whole, and checks every byte.
pub(super) fn receive(mut channel: impl Channel, size: usize) -> Result<Outcome> {
    let pattern = Pattern::new(size);
    let mut buffer = vec![0; size];
    let (mut start, mut cpu, mut offset) = (Instant::now(), sys::cpu(), 0u64);
    loop {
        let n = channel.receive(&mut buffer)?;
        if n == 0 {
            break;
        }
        if offset == 0 {
            (start, cpu) = (Instant::now(), sys::cpu());
        }
        ensure!(
            pattern.is_at(offset, &buffer[..n]),
            "wrong bytes at {offset}"
        );
        offset += n as u64;
    }
    ensure!(
        offset.is_multiple_of(size as u64),
        "half a message at the end"
    );
    let outcome = Outcome {
        messages: offset / size as u64,
        bytes: offset,
        seconds: start.elapsed().as_secs_f64(),
        cpu: (sys::cpu() - cpu).as_secs_f64(),
        times: None,
        ..Outcome::default()
    };
    channel.finish()?;
    Ok(outcome)
}
