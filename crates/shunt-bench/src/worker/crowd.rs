//! Many connections in one epoll set at either end, of which few are busy at a time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::channel::{Channel, Listener, Stream, connect};
use super::{Options, Outcome, Work, await_start};
use crate::process;
use crate::sys::{self, Epoll};

/// Round trips on each connection before the measured ones: so that it is moved.
fn warm_up(work: Work) -> u64 {
    // Nothing else follows on an idle one.
    if work == Work::Idle { 12 } else { 4 }
}

/// Descriptors of a process beside its connections.
const OTHERS: usize = 100;
/// The last connections have been moved by then, and looked at once by the wait after that.
const SETTLE: Duration = Duration::from_millis(250);
/// One connection in this many is busy.
const IDLE_SHARE: usize = 100;

/// Sends back what comes on any of `options.size` connections, until all have ended.
pub(super) fn serve(options: &Options, listener: &Listener) -> Result<Outcome> {
    sys::allow_descriptors(options.size + OTHERS)?;
    let before = process::resident()?;
    let set = Epoll::new()?;
    let mut streams = Vec::new();
    for number in 0..options.size {
        let mut stream = listener.accept()?;
        for _ in 0..warm_up(options.work) {
            let mut message = [0; 8];
            ensure!(stream.receive_all(&mut message)?, "no message");
            stream.send(&message)?;
        }
        watch(&set, &stream, number)?;
        streams.push(stream);
    }
    let mut outcome = Outcome {
        resident: process::resident()?.saturating_sub(before),
        ..Outcome::default()
    };
    let (mut start, mut cpu) = (Instant::now(), sys::cpu());
    let done = |outcome: &mut Outcome, start: Instant, cpu: Duration| {
        outcome.seconds = start.elapsed().as_secs_f64();
        outcome.cpu = (sys::cpu() - cpu).as_secs_f64();
    };
    let mut left = streams.len();
    while left > 0 {
        for number in set.wait()? {
            let mut message = [0; 8];
            if streams[number].receive(&mut message)? == 0 {
                if outcome.seconds == 0.0 {
                    done(&mut outcome, start, cpu);
                }
                set.forget(streams[number].number())?;
                left -= 1;
                continue;
            }
            let settling = if options.work == Work::Idle { 2 } else { 0 };
            if outcome.messages <= settling {
                (start, cpu) = (Instant::now(), sys::cpu());
            } else if options.work == Work::Idle {
                // From here on the ends of all these connections are work: they do not count as
                // idle time.
                done(&mut outcome, start, cpu);
            }
            streams[number].send(&message)?;
            outcome.messages += 2;
        }
    }
    outcome.messages = outcome.messages.max(options.size as u64);
    Ok(outcome)
}

/// Makes the connections; then asks on some at a time, or leaves all of them idle.
pub(super) fn ask(options: &Options) -> Result<Outcome> {
    sys::allow_descriptors(options.size + OTHERS)?;
    let before = process::resident()?;
    let set = Epoll::new()?;
    let mut streams = Vec::new();
    for number in 0..options.size {
        let mut stream = connect(options.carrier, &options.address)?;
        for n in 0..warm_up(options.work) {
            stream.send(&n.to_ne_bytes())?;
            let mut answer = [0; 8];
            ensure!(stream.receive_all(&mut answer)?, "no answer");
            ensure!(u64::from_ne_bytes(answer) == n, "another answer");
        }
        watch(&set, &stream, number)?;
        streams.push(stream);
    }
    let resident = process::resident()?.saturating_sub(before);
    await_start()?;
    if options.work == Work::Idle {
        std::thread::sleep(SETTLE);
        turn(&set, &mut streams[..1], 2)?;
        std::thread::sleep(SETTLE);
    }
    // From here on the server counts.
    turn(&set, &mut streams[..1], 0)?;
    let (start, cpu) = (Instant::now(), sys::cpu());
    let until = start + Duration::from_millis(options.milliseconds);
    let mut messages = 0;
    if options.work == Work::Idle {
        std::thread::sleep(until - start);
        // Until here.
        turn(&set, &mut streams[..1], 1)?;
        messages = options.size as u64;
    } else {
        while Instant::now() < until {
            messages += 2 * turn(&set, &mut streams, messages)?;
        }
    }
    Ok(Outcome {
        messages,
        bytes: 8 * messages,
        seconds: start.elapsed().as_secs_f64(),
        cpu: (sys::cpu() - cpu).as_secs_f64(),
        times: None,
        resident,
    })
}

/// One message on each of some connections, and all answers; returns how many.
fn turn(set: &Epoll, streams: &mut [Stream], begun: u64) -> Result<u64> {
    let busy = streams.len().div_ceil(IDLE_SHARE);
    let first = (begun as usize).wrapping_mul(7919) % streams.len();
    let text = |number: usize| (begun << 20 | number as u64).to_ne_bytes();
    let mut left = busy;
    let numbers = (0..busy).map(|n| (first + n) % streams.len());
    for number in numbers.collect::<Vec<_>>() {
        streams[number].send(&text(number))?;
    }
    while left > 0 {
        for number in set.wait()? {
            let mut answer = [0; 8];
            ensure!(streams[number].receive(&mut answer)? == 8, "no answer");
            ensure!(answer == text(number), "another answer");
            left -= 1;
        }
    }
    Ok(busy as u64)
}

fn watch(set: &Epoll, stream: &Stream, number: usize) -> Result<()> {
    stream.do_not_wait()?;
    set.add(stream.number(), number)
}
