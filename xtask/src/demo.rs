//! redis, memcached and nginx, natively and under Shunt in turns, side by side.

use crate::build::artifact;
use crate::lab::{Lab, Variant, free_port};
use crate::process::{check, reap_leftovers};
use crate::program::{memcached, nginx, redis};
use crate::progress;
use crate::stats::{Stats, median};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

/// Below this share of the bytes in rings a row says why.
const NEARLY_ALL: f64 = 0.99;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Rounds of native and shunted in turn; the table shows medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// What one run of a load measured.
pub(crate) struct Sample {
    pub(crate) rate: f64,
    /// Microseconds: median, or mean where the program prints no median.
    latency: f64,
}

struct Load {
    name: &'static str,
    server: Server,
    /// Its command, with `PORT` in the place of the server's port.
    words: &'static str,
    parse: fn(&str) -> Option<Sample>,
}

#[derive(Clone, Copy)]
enum Server {
    Redis,
    Memcached,
    Nginx,
}

const LOADS: &[Load] = &[
    Load {
        name: "redis GET, 1 client",
        server: Server::Redis,
        words: "redis-benchmark -p PORT -t get -c 1 -n 20000 --csv",
        parse: redis_csv,
    },
    Load {
        name: "redis SET, 1 client",
        server: Server::Redis,
        words: "redis-benchmark -p PORT -t set -c 1 -n 20000 --csv",
        parse: redis_csv,
    },
    Load {
        name: "redis GET, 50 clients",
        server: Server::Redis,
        words: "redis-benchmark -p PORT -t get -c 50 -n 100000 --csv",
        parse: redis_csv,
    },
    Load {
        name: "redis GET, 50 clients, pipeline 16",
        server: Server::Redis,
        words: "redis-benchmark -p PORT -t get -c 50 -n 1000000 -P 16 --csv",
        parse: redis_csv,
    },
    Load {
        name: "memcached get, 1 client",
        server: Server::Memcached,
        words: "memcslap --servers=127.0.0.1:PORT --concurrency=1 --execute-number=15000 --test=get",
        parse: |output| memcslap(output, 1.0),
    },
    Load {
        name: "memcached set, 16 clients",
        server: Server::Memcached,
        words: "memcslap --servers=127.0.0.1:PORT --concurrency=16 --execute-number=3000 --test=set",
        parse: |output| memcslap(output, 16.0),
    },
    Load {
        name: "nginx 1 KiB, 1 client",
        server: Server::Nginx,
        words: "wrk -t 1 -c 1 -d 1s --latency http://127.0.0.1:PORT/1k",
        parse: wrk,
    },
    Load {
        name: "nginx 1 KiB, 64 clients",
        server: Server::Nginx,
        words: "wrk -t 1 -c 64 -d 1s --latency http://127.0.0.1:PORT/1k",
        parse: wrk,
    },
];

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.rounds == 0 {
        bail!("no rounds, no medians");
    }
    doctor()?;
    let mut rows = Vec::new();
    let mut named = BTreeSet::new();
    for load in LOADS {
        rows.push(row(load, options.rounds, &mut named)?);
    }
    progress::say("done\n");
    println!(
        "{} rounds, native and shunted in turn, on {} cores\n",
        options.rounds,
        cores()
    );
    println!(
        "| load | native req/s | shunt req/s | rate | native µs | shunt µs | latency | bytes in rings |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    println!("{}", rows.join("\n"));
    println!(
        "\nLatency is the median as the client prints it (memcslap: the mean, from its run time)."
    );
    explain(&named)?;
    reap_leftovers();
    Ok(true)
}

/// Shows what `shunt doctor` says of this machine, with a shuntd started first.
fn doctor() -> Result<()> {
    progress::say("shunt doctor:");
    let shunt = || Command::new(artifact("shunt"));
    check(shunt().args(["run", "true"]))?;
    // What it finds wrong is shown; the table tells what comes of it.
    shunt().arg("doctor").stdin(Stdio::null()).status()?;
    Ok(())
}

/// Measures one load; returns its row of the table.
fn row(load: &Load, rounds: usize, named: &mut BTreeSet<String>) -> Result<String> {
    let (mut native, mut shunted) = (Vec::new(), Vec::new());
    let mut stats = Stats::default();
    for round in 1..=rounds {
        let text = format!("{}, {round} of {rounds}", load.name);
        let (alone, (sample, more)) = progress::step(&text, || {
            let alone = once(load, Variant::Native)?.0;
            Ok::<_, anyhow::Error>((alone, once(load, Variant::Both)?))
        })?;
        native.push(alone);
        shunted.push(sample);
        stats += &more;
    }
    let of = |samples: &[Sample], field: fn(&Sample) -> f64| {
        median(&samples.iter().map(field).collect::<Vec<_>>())
    };
    let (rate, shunted_rate) = (of(&native, |s| s.rate), of(&shunted, |s| s.rate));
    let (latency, shunted_latency) = (of(&native, |s| s.latency), of(&shunted, |s| s.latency));
    Ok(format!(
        "| {} | {rate:.0} | {shunted_rate:.0} | {:.2}× | {latency:.1} | {shunted_latency:.1} | {:.2}× | {:.2} %{} |",
        load.name,
        shunted_rate / rate,
        shunted_latency / latency,
        stats.ring_share() * 100.0,
        cause(&stats, named)
    ))
}

/// Why connections of a load were not shunted, where that shows in the share; the
/// names are added to those that the table explains.
fn cause(stats: &Stats, named: &mut BTreeSet<String>) -> String {
    if stats.ring_share() >= NEARLY_ALL {
        return String::new();
    }
    if stats.reasons.is_empty() {
        return format!(
            "; {} of {} connections were shunted, no reason was counted",
            stats.shunted, stats.connections
        );
    }
    named.extend(stats.reasons.keys().cloned());
    let counted = stats
        .reasons
        .iter()
        .map(|(name, count)| format!("{count} {name}"));
    format!("; {}", counted.collect::<Vec<_>>().join(", "))
}

/// Prints what `shunt reasons` says of the reasons in the table.
fn explain(named: &BTreeSet<String>) -> Result<()> {
    if named.is_empty() {
        return Ok(());
    }
    let listed = Command::new(artifact("shunt")).arg("reasons").output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    println!("\nEnds that stayed on TCP, and why:");
    for name in named {
        println!("  {name}: {}", explanation(&listed, name));
    }
    Ok(())
}

/// What `shunt reasons` says of one: lines of number, name and text.
fn explanation<'a>(listed: &'a str, name: &str) -> &'a str {
    let of = |line: &'a str| {
        let (_, rest) = line.trim_start().split_once(' ')?;
        let (found, text) = rest.trim_start().split_once(' ')?;
        (found == name).then(|| text.trim())
    };
    listed
        .lines()
        .find_map(of)
        .unwrap_or("see shunt-reasons(7)")
}

/// How many cores there are.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// One server, one load.
fn once(load: &Load, variant: Variant) -> Result<(Sample, Stats)> {
    let mut lab = Lab::new(variant)?;
    let port = free_port()?;
    let number = port.to_string();
    match load.server {
        Server::Redis => redis::serve(&mut lab, &number)?,
        Server::Memcached => memcached::serve(&mut lab, &number)?,
        Server::Nginx => nginx::serve(&mut lab, port)?,
    }
    let words = load.words.replace("PORT", &number);
    let words: Vec<&str> = words.split(' ').collect();
    let output = lab.client(120, &words)?;
    let sample =
        (load.parse)(&output).with_context(|| format!("{}: no result in\n{output}", load.name))?;
    let signal = if matches!(load.server, Server::Nginx) {
        Signal::QUIT
    } else {
        Signal::TERM
    };
    Ok((sample, lab.finish(signal)?))
}

/// `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms",…`
fn redis_fields(output: &str) -> Option<(f64, f64, f64)> {
    let row = output
        .lines()
        .find(|line| line.starts_with('"') && !line.starts_with("\"test\""))?;
    let fields: Vec<&str> = row
        .split(',')
        .map(|field| field.trim_matches('"'))
        .collect();
    let number = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((number(1)?, number(2)?, number(4)?))
}

pub(crate) fn redis_csv(output: &str) -> Option<Sample> {
    let (rate, mean, median) = redis_fields(output)?;
    // It prints thousandths of a millisecond: below 10 µs the mean says more.
    Some(Sample {
        rate,
        latency: if median < 0.01 { mean } else { median } * 1000.0,
    })
}

#[allow(clippy::cast_precision_loss)] // For display only.
pub(crate) fn memcslap(output: &str, clients: f64) -> Option<Sample> {
    let (keys, seconds) = memcached::served(output)?;
    let keys = keys as f64;
    Some(Sample {
        rate: keys / seconds,
        latency: seconds / keys * clients * 1e6,
    })
}

pub(crate) fn wrk(output: &str) -> Option<Sample> {
    let rate = output
        .lines()
        .find_map(|line| line.trim().strip_prefix("Requests/sec:"))?;
    let middle = output
        .lines()
        .find_map(|line| line.trim().strip_prefix("50%"))?
        .trim();
    let digits = middle.trim_end_matches(char::is_alphabetic);
    let unit = match &middle[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    Some(Sample {
        rate: rate.trim().parse().ok()?,
        latency: digits.parse::<f64>().ok()? * unit,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn reasons_are_explained() {
        let listed = " 1  PENDING          Not yet.\n10  INHERITED        Through exec.\n";
        assert_eq!(super::explanation(listed, "PENDING"), "Not yet.");
        assert_eq!(super::explanation(listed, "INHERITED"), "Through exec.");
    }

    #[test]
    fn outputs_are_read() {
        let sample =
            super::wrk("  Latency Distribution\n     50%  1.50ms\nRequests/sec:  100.5\n").unwrap();
        assert!((sample.latency - 1500.0).abs() < 1e-9 && (sample.rate - 100.5).abs() < 1e-9);
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\"\n\"GET\",\"10.0\",\"0.5\",\"0.1\",\"0.4\"\n";
        assert!((super::redis_csv(csv).unwrap().latency - 400.0).abs() < 1e-9);
    }
}
