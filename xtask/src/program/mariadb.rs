//! MariaDB, a thread for each connection, with sysbench, and a table that goes
//! to a client and back.

use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager().run_as("mysql")?;
    let port = free_port()?;
    serve(&mut lab, port)?;
    query(
        &mut lab,
        port,
        "create database sbtest; create database copy",
    )?;
    let load = "oltp_read_write";
    sysbench(&mut lab, port, load, &["prepare"])?;
    for (load, time) in [("oltp_point_select", "--time=2"), (load, "--time=1")] {
        let output = sysbench(&mut lab, port, load, &["--threads=8", time, "run"])?;
        check(&output)?;
    }
    check_table(&mut lab, port)?;
    lab.finish(Signal::TERM)
}

/// Makes a data directory and starts the server on it.
fn serve(lab: &mut Lab, port: u16) -> Result<()> {
    let data = format!("--datadir={}/data", lab.directory.display());
    let socket = format!("--socket={}/socket", lab.directory.display());
    let small = "--innodb-log-file-size=16M";
    lab.prepare(
        60,
        &[
            "mariadb-install-db",
            "--no-defaults",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
            &data,
            small,
        ],
    )?;
    let port_option = format!("--port={port}");
    lab.serve(
        port,
        &[
            "/usr/sbin/mariadbd",
            "--no-defaults",
            "--bind-address=127.0.0.1",
            "--innodb-flush-log-at-trx-commit=0",
            "--skip-name-resolve",
            &data,
            &socket,
            &port_option,
            small,
        ],
    )
}

fn query(lab: &mut Lab, port: u16, text: &str) -> Result<String> {
    lab.client(
        20,
        &[
            "sh",
            "-c",
            &format!("{} -e '{text}'", client("mariadb", port)),
        ],
    )
}

/// A client's command line up to its own words.
fn client(program: &str, port: u16) -> String {
    format!("{program} --no-defaults --protocol=tcp -h 127.0.0.1 -P {port} -u root")
}

fn sysbench(lab: &mut Lab, port: u16, load: &str, options: &[&str]) -> Result<String> {
    let port = format!("--mysql-port={port}");
    let mut words = vec![
        "sysbench",
        load,
        "--mysql-host=127.0.0.1",
        "--mysql-user=root",
        "--table-size=10000",
        &port,
    ];
    words.extend(options);
    lab.client(60, &words)
}

/// sysbench must have made transactions, and no error or reconnection.
fn check(output: &str) -> Result<()> {
    let field = |name: &str| {
        let line = output.lines().find(|line| line.trim().starts_with(name))?;
        let word = line.split(':').nth(1)?.split_whitespace().next()?;
        word.parse::<u64>().ok()
    };
    let made = field("transactions:").is_some_and(|count| count > 0);
    if !made || field("reconnects:") != Some(0) || output.contains("FATAL") {
        bail!("sysbench: {output}");
    }
    Ok(())
}

/// The table, dumped and put into another database, is the same.
fn check_table(lab: &mut Lab, port: u16) -> Result<()> {
    let there = format!(
        "{} sbtest >dump && {} copy <dump",
        client("mariadb-dump", port),
        client("mariadb", port)
    );
    lab.client(60, &["sh", "-c", &there])?;
    let output = query(lab, port, "checksum table sbtest.sbtest1, copy.sbtest1")?;
    let sums: Vec<_> = output
        .lines()
        .skip(1)
        .filter_map(|line| line.split('\t').nth(1))
        .collect();
    if sums.len() != 2 || sums[0] != sums[1] || sums[0] == "NULL" {
        bail!("the table and its copy differ:\n{output}");
    }
    Ok(())
}
