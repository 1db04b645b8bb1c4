//! A connection per request, as `ab` without keep-alive makes them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::channel::{Channel, Listener, connect};
use super::{Options, Outcome, Times, await_start};
use crate::histogram::Histogram;
use crate::pattern::Pattern;
use crate::sys;

/// Bytes of a request, and of an answer: a small web page.
const REQUEST: usize = 100;
const ANSWER: usize = 400;
/// Begins the last request.
const BYE: u8 = 0x5a;

/// Answers one connection after the other.
pub(super) fn serve(listener: &Listener) -> Result<Outcome> {
    let pattern = Pattern::new(ANSWER);
    let mut request = [0; REQUEST];
    let mut outcome = Outcome::default();
    let (mut start, mut cpu) = (Instant::now(), sys::cpu());
    loop {
        let mut stream = listener.accept()?;
        if outcome.messages == 0 {
            (start, cpu) = (Instant::now(), sys::cpu());
        }
        ensure!(stream.receive_all(&mut request)?, "no request");
        let last = request[0] == BYE ^ pattern.at(0, 1)[0];
        ensure!(pattern.is_at(1, &request[1..]), "a wrong request");
        stream.send(pattern.at(0, ANSWER))?;
        outcome.messages += 1;
        if last {
            break;
        }
    }
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome.cpu = (sys::cpu() - cpu).as_secs_f64();
    Ok(outcome)
}

/// Makes connections for a while.
pub(super) fn request(options: &Options) -> Result<Outcome> {
    let pattern = Pattern::new(ANSWER);
    let mut answer = [0; ANSWER];
    let mut one = |mark: u8| -> Result<()> {
        let mut stream = connect(options.carrier, &options.address)?;
        let mut request = [0; REQUEST];
        request.copy_from_slice(pattern.at(0, REQUEST));
        request[0] ^= mark;
        stream.send(&request)?;
        ensure!(stream.receive_all(&mut answer)?, "no answer");
        ensure!(pattern.is_at(0, &answer), "a wrong answer");
        ensure!(stream.receive(&mut [0])? == 0, "more than an answer");
        Ok(())
    };
    for _ in 0..20 {
        one(0)?;
    }
    await_start()?;
    let mut times = Histogram::new();
    let (start, cpu) = (Instant::now(), sys::cpu());
    let until = start + Duration::from_millis(options.milliseconds);
    let mut before = start;
    while before < until {
        one(0)?;
        let now = Instant::now();
        times.add((now - before).as_nanos() as u64);
        before = now;
    }
    let outcome = Outcome {
        messages: times.count(),
        bytes: times.count() * (REQUEST + ANSWER) as u64,
        seconds: (before - start).as_secs_f64(),
        cpu: (sys::cpu() - cpu).as_secs_f64(),
        times: Some(Times::of(&times)),
        ..Outcome::default()
    };
    one(BYE)?;
    Ok(outcome)
}
