//! Filters on standard input and output, as a shell would join them, but by any
//! carrier.
//!
//! ```text
//!   source ──▶ filter ──▶ filter ──▶ sink
//! ```
//!
//! The joiner makes the connections, gives each process its two ends as descriptors 0
//! and 1, and goes out of the way. Each filter reads and writes record by record.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::channel::{Channel, Standard};
use super::{Carrier, Options, Outcome, Role};
use crate::pattern::Pattern;
use crate::sys;

/// Filters between source and sink.
const FILTERS: usize = 2;

/// Makes the pipeline, waits for its end, and reports.
pub(super) fn join(options: &Options) -> Result<Outcome> {
    println!("ready");
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new())?;
    let stage = |role: &str| -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        let carrier = options.carrier_name();
        command.args([
            "worker",
            "--work",
            "filter",
            "--role",
            role,
            "--carrier",
            &carrier,
        ]);
        command.arg(format!("--size={}", options.size));
        command.arg(format!("--milliseconds={}", options.milliseconds));
        command.arg(format!("--limit={}", options.limit));
        Ok(command)
    };
    let mut stages: Vec<Child> = Vec::new();
    let mut before = Stdio::null();
    for n in 0..=FILTERS {
        let (from, to) = connection(options.carrier)?;
        let role = if n == 0 { "source" } else { "filter" };
        let mut command = stage(role)?;
        stages.push(command.stdin(before).stdout(to).spawn()?);
        before = from.into();
    }
    let sink = stage("sink")?
        .stdin(before)
        .stdout(Stdio::piped())
        .spawn()?;
    let printed = sink.wait_with_output()?;
    for mut child in stages {
        let status = child.wait()?;
        ensure!(status.success(), "a filter failed ({status})");
    }
    ensure!(
        printed.status.success(),
        "the sink failed ({})",
        printed.status
    );
    let line = String::from_utf8(printed.stdout)?;
    let mut outcome: Outcome = serde_json::from_str(line.trim()).context("the sink's report")?;
    outcome.cpu = sys::cpu_of_children()[0];
    Ok(outcome)
}

/// The reading and the writing end of a stream.
fn connection(carrier: Carrier) -> Result<(OwnedFd, OwnedFd)> {
    Ok(match carrier {
        Carrier::Pipe => {
            let (from, to) = std::io::pipe()?;
            (from.into(), to.into())
        }
        Carrier::Unix => {
            let (from, to) = UnixStream::pair()?;
            (from.into(), to.into())
        }
        Carrier::Tcp | Carrier::Ring => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let to = TcpStream::connect(listener.local_addr()?)?;
            (listener.accept()?.0.into(), to.into())
        }
    })
}

/// What one process of the pipeline does.
pub(super) fn run(options: &Options) -> Result<Option<Outcome>> {
    let mut standard = Standard::open(options.role != Role::Sink);
    let pattern = Pattern::new(options.size);
    let mut record = vec![0; options.size];
    let (start, size) = (Instant::now(), options.size as u64);
    let until = start + Duration::from_millis(options.milliseconds);
    let mut offset = 0;
    if options.role == Role::Source {
        while !(offset / size).is_multiple_of(256) || Instant::now() < until {
            record.copy_from_slice(pattern.at(offset, options.size));
            standard.send(&record)?;
            offset += size;
        }
        standard.finish()?;
        return Ok(None);
    }
    let mut begin = start;
    while standard.receive_all(&mut record)? {
        if offset == 0 {
            begin = Instant::now();
        }
        ensure!(pattern.is_at(offset, &record), "wrong bytes at {offset}");
        offset += size;
        if options.role == Role::Filter {
            standard.send(&record)?;
        }
    }
    if options.role == Role::Filter {
        standard.finish()?;
        return Ok(None);
    }
    Ok(Some(Outcome {
        messages: offset / size,
        bytes: offset,
        seconds: begin.elapsed().as_secs_f64(),
        cpu: 0.0,
        times: None,
        ..Outcome::default()
    }))
}
