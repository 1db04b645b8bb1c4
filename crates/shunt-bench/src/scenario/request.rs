//! Requests to real servers, as their own load generators count them.

mod nginx;
mod postgres;

use anyhow::{Context, Result};
use rustix::process::Signal;
use shunt_harness::port::free_port;

use super::{Entry, Row, Sample, Scenario};
use crate::carried::Carried;
use crate::cores::{Place, Places};
use crate::server::{Load, Run, find, number_after};
use crate::side::{Lab, Side};

/// A server with its load.
#[derive(Clone, Copy)]
struct Service {
    label: &'static str,
    /// Programs that must be there.
    needs: &'static [&'static str],
    /// Serves, loads, and says how many requests there were in how many seconds.
    run: Serve,
    end: Signal,
}

type Serve = fn(&mut Run, &Lab, &Demand) -> Result<(Load, f64, f64)>;

#[derive(Clone, Copy)]
struct Demand {
    connections: u32,
    quick: bool,
}

const SERVICES: &[Service] = &[
    Service {
        label: "redis GET",
        needs: &["redis-server", "redis-benchmark"],
        run: redis,
        end: Signal::TERM,
    },
    Service {
        label: "memcached get",
        needs: &["memcached", "memcslap"],
        run: memcached,
        end: Signal::TERM,
    },
    Service {
        label: "nginx file",
        needs: &["nginx", "wrk"],
        run: |run, lab, demand| nginx::run(run, lab, demand, false),
        end: Signal::QUIT,
    },
    Service {
        label: "nginx proxy",
        needs: &["nginx", "wrk"],
        run: |run, lab, demand| nginx::run(run, lab, demand, true),
        end: Signal::QUIT,
    },
    Service {
        label: "PostgreSQL select",
        needs: &["postgres", "initdb", "pgbench", "pg_isready"],
        run: postgres::select,
        // A fast shutdown.
        end: Signal::INT,
    },
];

/// These scenarios.
pub(super) fn all(quick: bool, places: &Places) -> Vec<Scenario> {
    let mut scenarios = vec![
        Scenario {
            name: "requests",
            title: "Real servers, one connection kept open; own: what the programs do apart from \
                    their calls on sockets",
            unit: "µs",
            lower: true,
            axis: "",
            item: "requests",
            rows: rows(quick, places, 1),
        },
        Scenario {
            name: "load",
            title: "Real servers, 50 connections",
            unit: "1/s",
            lower: false,
            axis: "",
            item: "requests",
            rows: rows(quick, places, 50),
        },
    ];
    scenarios.retain(|scenario| !scenario.rows.is_empty());
    scenarios
}

fn rows(quick: bool, places: &Places, connections: u32) -> Vec<Row> {
    let demand = Demand { connections, quick };
    let mut rows = Vec::new();
    let there = |service: &&Service| service.needs.iter().all(|name| find(name).is_some());
    for service in SERVICES.iter().filter(there) {
        for place in places.of_two().into_iter().chain([Place::Any]) {
            let cores = places.cores(place);
            let entry =
                |side| Entry::of(side, move |lab| measure(lab, service, &demand, side, cores));
            let mut entries = Vec::from([Side::Tcp, Side::Shunt].map(entry));
            if connections == 1 && service.label == "nginx file" {
                entries.push(Entry {
                    sides: vec!["own"],
                    measure: Box::new(move |lab| Ok(vec![nginx::own_work(lab, &demand, cores)?])),
                });
            }
            rows.push(Row {
                label: service.label.into(),
                x: f64::from(connections),
                place,
                entries,
            });
        }
    }
    rows
}

fn measure(
    lab: &Lab,
    service: &Service,
    demand: &Demand,
    side: Side,
    cores: [Option<usize>; 2],
) -> Result<Sample> {
    let mut run = Run::new(lab, side == Side::Shunt, cores, service.end);
    let (load, requests, seconds) = (service.run)(&mut run, lab, demand)?;
    run.stop()?;
    // The first of the programs is the server.
    let who = Some(service.needs[0]);
    let carried = run
        .statistics
        .as_deref()
        .map(|file| Carried::mostly_by_ring(file, who));
    Ok(Sample {
        value: if demand.connections == 1 {
            seconds / requests * 1e6
        } else {
            requests / seconds
        },
        times: None,
        cpu: load.cpu.map(|seconds| seconds / requests * 1e6),
        carried: carried.transpose()?,
    })
}

fn redis(run: &mut Run, _: &Lab, demand: &Demand) -> Result<(Load, f64, f64)> {
    let port = free_port()?;
    let number = port.to_string();
    let words = ["redis-server", "--port", &number, "--bind", "127.0.0.1"];
    let quiet = ["--save", "", "--appendonly", "no"];
    run.serve(&[&words[..], &quiet].concat(), port)?;
    let requests = match (demand.connections, demand.quick) {
        (1, true) => 10_000,
        (1, false) => 40_000,
        (_, true) => 50_000,
        (_, false) => 200_000,
    };
    let (c, n) = (demand.connections.to_string(), requests.to_string());
    let load = run.load(&[
        "redis-benchmark",
        "-p",
        &number,
        "-t",
        "get",
        "-c",
        &c,
        "-n",
        &n,
        "--csv",
    ])?;
    // "GET","91324.20",…: requests per second.
    let line = load
        .printed
        .lines()
        .find(|line| line.starts_with("\"GET\""));
    let rate = line.and_then(|line| line.split('"').nth(3)?.parse::<f64>().ok());
    let rate = rate.with_context(|| format!("no rate in {:?}", load.printed))?;
    Ok((load, f64::from(requests), f64::from(requests) / rate))
}

fn memcached(run: &mut Run, _: &Lab, demand: &Demand) -> Result<(Load, f64, f64)> {
    let port = free_port()?;
    let number = port.to_string();
    // `-u` counts for root alone.
    let words = ["memcached", "-l", "127.0.0.1", "-p", &number, "-U", "0"];
    run.serve(&[&words[..], &["-u", "root", "-t", "4"]].concat(), port)?;
    let each = match (demand.connections, demand.quick) {
        (1, true) => 10_000,
        (1, false) => 40_000,
        (_, true) => 1_000,
        (_, false) => 4_000,
    };
    let server = format!("--servers=127.0.0.1:{port}");
    let c = format!("--concurrency={}", demand.connections);
    let n = format!("--execute-number={each}");
    let mut load = run.load(&["memcslap", &server, &c, &n, "--test=get", "--flush"])?;
    let gets = load
        .printed
        .split_once("Time to get")
        .map(|(_, after)| after);
    let seconds = number_after(gets.unwrap_or_default(), "threads:")?;
    // It sets all keys before it gets them by each connection.
    let (sets, gets) = (
        f64::from(each),
        f64::from(each) * f64::from(demand.connections),
    );
    load.cpu = load.cpu.map(|cpu| cpu * gets / (sets + gets));
    Ok((load, gets, seconds))
}
