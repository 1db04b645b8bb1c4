//! What it costs a connection to be recorded: connections of one byte, one after the other, with the program attached and
//! without it in turns. In a network namespace of its own, so that closed connections keep no ports:
//!
//! ```text
//! cargo build --release -p shunt-identity --example cost
//! unshare --net sh -c 'ip link set lo up; echo 0 > /proc/sys/net/ipv4/tcp_max_tw_buckets
//!     exec target/release/examples/cost ROUNDS CONNECTIONS CAPACITY'
//! ```

use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use shunt_identity::Identities;

fn main() -> Result<()> {
    let words: Vec<u32> = std::env::args()
        .skip(1)
        .map(|word| word.parse().with_context(|| format!("no number: {word}")))
        .collect::<Result<_>>()?;
    let [rounds, connections, capacity] = words[..] else {
        anyhow::bail!("usage: cost ROUNDS CONNECTIONS CAPACITY");
    };
    let (without, with) = measure(rounds, connections, capacity)?;
    println!("            connections/s   cpu µs each   connect µs (median)   connect µs (99 %)");
    for (name, runs) in [("without", &without), ("with", &with)] {
        println!(
            "{name:<10} {:>14.0} {:>13.2} {:>21.2} {:>19.2}",
            median(runs.iter().map(|run| run.rate)),
            median(runs.iter().map(|run| run.cpu)),
            median(runs.iter().map(|run| run.half)),
            median(runs.iter().map(|run| run.most)),
        );
    }
    let ratio = |of: fn(&Run) -> f64| {
        let pairs = without.iter().zip(&with);
        let ratios: Vec<f64> = pairs
            .map(|(without, with)| of(with) / of(without))
            .collect();
        let spread = |share: usize| sorted(ratios.iter().copied())[ratios.len() * share / 100];
        format!(
            "{:.3} (half of the rounds {:.3} to {:.3})",
            median(ratios.iter().copied()),
            spread(25),
            spread(75)
        )
    };
    println!("with / without, connections/s: {}", ratio(|run| run.rate));
    println!("with / without, cpu:           {}", ratio(|run| run.cpu));
    println!("with / without, connect:       {}", ratio(|run| run.half));
    first_look()?;
    lookups()
}

/// What a round has shown.
struct Run {
    rate: f64,
    /// Processor time of both ends, which other programs on the machine change least.
    cpu: f64,
    half: f64,
    most: f64,
}

/// Rounds without the program and with it. Who is first changes from round to round.
fn measure(rounds: u32, connections: u32, capacity: u32) -> Result<(Vec<Run>, Vec<Run>)> {
    ensure!(connections >= 100, "too few connections for 99 %");
    let (mut without, mut with) = (Vec::new(), Vec::new());
    run(connections)?; // warms up
    for round in 0..rounds {
        for attached in [round % 2 == 0, round % 2 != 0] {
            let identities = attached.then(|| Identities::attach(capacity)).transpose()?;
            let runs = if attached { &mut with } else { &mut without };
            runs.push(run(connections)?);
            drop(identities);
        }
    }
    Ok((without, with))
}

/// Connections of one byte there and back, closed by the client.
fn run(connections: u32) -> Result<Run> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || serve(&listener, connections));
    let (begin, used) = (Instant::now(), processor_time());
    let mut times = Vec::with_capacity(connections as usize);
    for _ in 0..connections {
        times.push(one(address)?.as_secs_f64() * 1e6);
    }
    let rate = f64::from(connections) / begin.elapsed().as_secs_f64();
    server.join().expect("the server does not panic")?;
    let cpu = (processor_time() - used) * 1e6 / f64::from(connections);
    let times = sorted(times.into_iter());
    Ok(Run {
        rate,
        cpu,
        half: times[times.len() / 2],
        most: times[times.len() * 99 / 100],
    })
}

/// Of this process, in seconds.
fn processor_time() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// How long `connect` takes.
fn one(address: SocketAddr) -> Result<Duration> {
    let begin = Instant::now();
    let mut connection = TcpStream::connect(address)?;
    let took = begin.elapsed();
    connection.write_all(b"x")?;
    connection.read_exact(&mut [0])?;
    Ok(took)
}

fn serve(listener: &TcpListener, connections: u32) -> Result<()> {
    for _ in 0..connections {
        let (mut connection, _) = listener.accept()?;
        connection.read_exact(&mut [0])?;
        connection.write_all(b"x")?;
    }
    Ok(())
}

/// What shuntd pays when it asks for the first time after as many connections as there is room for.
fn first_look() -> Result<()> {
    const CAPACITY: u32 = 1 << 16;
    let identities = Identities::attach(CAPACITY)?;
    run(CAPACITY / 2)?;
    let before = resident()?;
    let begin = Instant::now();
    black_box(identities.of(0));
    println!(
        "first look at {CAPACITY} ends: {:.1} ms, {} kB",
        begin.elapsed().as_secs_f64() * 1e3,
        resident()?.saturating_sub(before)
    );
    Ok(())
}

/// Memory of this process, in kB.
fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.context("no VmRSS")?.trim_end_matches("kB").trim();
    Ok(kilobytes.parse()?)
}

/// What shuntd pays to find a mirror.
fn lookups() -> Result<()> {
    const TIMES: u32 = 10_000;
    let identities = Identities::attach(1024)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let connector = TcpStream::connect(listener.local_addr()?)?;
    let cookie = rustix::net::sockopt::socket_cookie(&connector)?;
    let identity = identities.of(cookie).context("not recorded")?;
    let begin = Instant::now();
    for _ in 0..TIMES {
        black_box(identities.mirror(&identity));
    }
    println!(
        "mirror: {:.2} µs",
        begin.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES)
    );
    Ok(())
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let values = sorted(values);
    values[values.len() / 2]
}
