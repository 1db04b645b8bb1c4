//! Two latencies that show whether the hot path is the intended one: an 8-byte
//! blocking ping-pong, and redis with one client.

use crate::build::root;
use crate::demo::{cores, redis_fields};
use crate::lab::{Lab, Variant, free_port};
use crate::process::{check, reap_leftovers};
use crate::program::{redis, script};
use crate::stats::median;
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Rounds of native and shunted in turn; the table shows medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let program = root().join("target/pingpong");
    check(
        Command::new("gcc")
            .args(["-O2", "-Wall", "-o"])
            .arg(&program)
            .arg(script("pingpong.c")),
    )?;
    let program = program.to_string_lossy().into_owned();
    println!(
        "medians of {} rounds, native and shunted in turn, on {} cores\n",
        options.rounds,
        cores()
    );
    println!("| what | native µs | shunt µs | shunt / native | native spread | shunt spread |");
    println!("|---|---:|---:|---:|---|---|");
    if cores() > 1 {
        row(options, "ping-pong round trip, two cores, median", |v| {
            ping_pong(v, &program, ["0", "1"], "p50")
        })?;
        row(options, "ping-pong round trip, two cores, mean", |v| {
            ping_pong(v, &program, ["0", "1"], "mean")
        })?;
    }
    row(options, "ping-pong round trip, one core, median", |v| {
        ping_pong(v, &program, ["0", "0"], "p50")
    })?;
    row(options, "redis GET -c 1, mean", |v| redis_latency(v, "get"))?;
    row(options, "redis SET -c 1, mean", |v| redis_latency(v, "set"))?;
    println!("\nA round trip is two messages: there and back.");
    reap_leftovers();
    Ok(true)
}

fn row(options: &Options, name: &str, measure: impl Fn(Variant) -> Result<f64>) -> Result<()> {
    let (mut native, mut shunted) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        native.push(measure(Variant::Native)?);
        shunted.push(measure(Variant::Both)?);
    }
    let (a, b) = (median(&native), median(&shunted));
    println!(
        "| {name} | {a:.2} | {b:.2} | {:.3} | {} | {} |",
        b / a,
        spread(&native),
        spread(&shunted)
    );
    Ok(())
}

fn spread(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    format!("{low:.2}–{high:.2}")
}

/// Microseconds per round trip.
fn ping_pong(variant: Variant, program: &str, cores: [&str; 2], field: &str) -> Result<f64> {
    let mut lab = Lab::new(variant)?.eager();
    let port = free_port()?;
    let number = port.to_string();
    lab.serve(port, &[program, "server", &number, cores[0]])?;
    let output = lab.client(60, &[program, "client", &number, cores[1], "30000"])?;
    lab.finish(Signal::TERM)?;
    let mut words = output.split_whitespace();
    let value = words.find(|word| *word == field).and_then(|_| words.next());
    Ok(value
        .with_context(|| format!("no {field} in {output}"))?
        .parse()?)
}

/// Microseconds per request.
fn redis_latency(variant: Variant, test: &str) -> Result<f64> {
    let mut lab = Lab::new(variant)?;
    let port = free_port()?.to_string();
    redis::serve(&mut lab, &port)?;
    let output = lab.client(
        60,
        &[
            "redis-benchmark",
            "-p",
            &port,
            "-t",
            test,
            "-c",
            "1",
            "-n",
            "30000",
            "--csv",
        ],
    )?;
    lab.finish(Signal::TERM)?;
    // The rate is finer than the printed latency: one client waits for each answer.
    let (rate, _, _) = redis_fields(&output).with_context(|| format!("no result in {output}"))?;
    Ok(1e6 / rate)
}
