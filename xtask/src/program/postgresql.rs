//! PostgreSQL, a process for each connection, with pgbench: reads, the
//! transactions of TPC-B, and a table hashed at both ends.

use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;

const BIN: &str = "/usr/lib/postgresql/15/bin";
/// Connections: the host, the port follows, the user and the database.
const TARGET: [&str; 6] = ["-h", "127.0.0.1", "-U", "postgres", "-d", "postgres"];

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager().run_as("postgres")?;
    let port = free_port()?;
    serve(&mut lab, port)?;
    let port = port.to_string();
    bench(&mut lab, &port, &["-i", "-q", "-s", "2", "--no-vacuum"])?;

    let read = bench(&mut lab, &port, &["-S", "-M", "prepared", "-T", "2"])?;
    transactions(&read)?;
    let written = bench(&mut lab, &port, &["-T", "2", "--no-vacuum"])?;
    check_sums(&mut lab, &port, transactions(&written)?)?;
    check_table(&mut lab, &port)?;
    lab.finish(Signal::INT)
}

/// Makes a data directory and starts the server on it.
fn serve(lab: &mut Lab, port: u16) -> Result<()> {
    let initdb = format!("{BIN}/initdb");
    lab.prepare(
        60,
        &[
            &initdb,
            "-D",
            "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
            "--no-instructions",
            "--locale=C",
            "--encoding=UTF8",
        ],
    )?;
    let port_setting = format!("port={port}");
    let settings = [
        &*port_setting,
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "max_connections=40",
    ];
    let program = format!("{BIN}/postgres");
    let mut words = vec![&*program, "-D", "data"];
    for setting in settings {
        words.extend(["-c", setting]);
    }
    lab.serve(port, &words)
}

/// pgbench with eight clients in two threads.
fn bench(lab: &mut Lab, port: &str, options: &[&str]) -> Result<String> {
    let program = format!("{BIN}/pgbench");
    let mut words = vec![&*program, "-p", port];
    words.extend(TARGET.iter().filter(|&&word| word != "-d"));
    if !options.contains(&"-i") {
        words.extend(["-c", "8", "-j", "2"]);
    }
    words.extend(options);
    lab.client(60, &words)
}

/// How many transactions pgbench made; none may have failed.
fn transactions(output: &str) -> Result<u64> {
    let field = |name: &str| {
        let line = output.lines().find(|line| line.starts_with(name))?;
        line.split(':')
            .nth(1)?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    };
    if output.contains("error") || field("number of failed transactions") != Some(0) {
        bail!("pgbench: {output}");
    }
    field("number of transactions actually processed")
        .filter(|&count| count > 0)
        .with_context(|| format!("pgbench made no transaction: {output}"))
}

fn query(lab: &mut Lab, port: &str, text: &str) -> Result<String> {
    let program = format!("{BIN}/psql");
    let mut words = vec![&*program, "-X", "-A", "-t", "-p", port];
    words.extend(TARGET);
    words.extend(["-c", text]);
    lab.client(60, &words)
}

/// Each transaction of TPC-B adds the same to an account, a teller and a
/// branch, and writes it down.
fn check_sums(lab: &mut Lab, port: &str, count: u64) -> Result<()> {
    let output = query(
        lab,
        port,
        "select count(*), sum(delta) = (select sum(abalance) from pgbench_accounts), \
         sum(delta) = (select sum(tbalance) from pgbench_tellers), \
         sum(delta) = (select sum(bbalance) from pgbench_branches) from pgbench_history",
    )?;
    if output.trim() != format!("{count}|t|t|t") {
        bail!("{count} transactions, but the tables say {output}");
    }
    Ok(())
}

/// A long answer arrives as the server has it, and so does a long question.
fn check_table(lab: &mut Lab, port: &str) -> Result<()> {
    let rows = "select aid, abalance, filler from pgbench_accounts order by aid";
    let wanted = query(
        lab,
        port,
        &format!("select md5(string_agg(t::text, E'\\n') || E'\\n') from ({rows}) t"),
    )?;
    query(
        lab,
        port,
        &format!("\\copy (select t::text from ({rows}) t) to 'table'"),
    )?;
    query(lab, port, "create table back (line text)")?;
    query(lab, port, "\\copy back from 'table'")?;
    let back = query(
        lab,
        port,
        "select md5(string_agg(line, E'\\n') || E'\\n') from (select line from back order by \
         substring(line from 2 for position(',' in line) - 2)::int) t",
    )?;
    let file = lab.prepare(60, &["md5sum", "table"])?;
    if file.split_whitespace().next() != Some(wanted.trim()) || back != wanted {
        bail!("the table has the hash {wanted}, its copy {file}, what was sent back {back}");
    }
    Ok(())
}
