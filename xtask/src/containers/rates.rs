//! How many requests a second real programs serve in containers: without Shunt in each placement of the two ends on
//! the processors, and under Shunt, in turn.

use super::docker::{Docker, GATEWAY, Server, Way, environment, lasting};
use super::place::Place;
use super::program::{Load, PROGRAMS, Program};
use super::{LIMIT, Lab, is_wanted};
use crate::report::Report;
use crate::stats::median;
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Rates {
    /// Instead of the tests: how many requests a second real programs serve in containers, with and without Shunt
    #[arg(long)]
    pub(super) rates: bool,
    /// Number of which medians are taken
    #[arg(long, requires = "rates", default_value_t = 5)]
    rounds: usize,
    /// Measure the programs without Shunt once more: how much of a ratio is chance
    #[arg(long, requires = "rates")]
    control: bool,
}

/// The ways by which a container is asked in most installations.
const WAYS: [Way; 3] = [Way::Bridge, Way::Published, Way::Direct];
const CLIENT: &str = "10.78.0.2";
/// Seconds of a load that takes a time.
const LONG: u32 = 2;

/// What is measured in turn.
struct Side {
    name: &'static str,
    under_shunt: bool,
    /// The commands that run the server and the client.
    runners: [&'static [&'static str]; 2],
    /// Where the server is.
    address: &'static str,
}

const ANY: &[&str] = &[];
const FIRST: &[&str] = &["taskset", "--cpu-list", "0"];
const SECOND: &[&str] = &["taskset", "--cpu-list", "1"];

/// The placements without Shunt come first, then Shunt.
const SIDES: [Side; 5] = [
    Side {
        name: "native",
        under_shunt: false,
        runners: [ANY, ANY],
        address: "10.78.0.3",
    },
    Side {
        name: "on one core",
        under_shunt: false,
        runners: [FIRST, FIRST],
        address: "10.78.0.4",
    },
    Side {
        name: "on two cores",
        under_shunt: false,
        runners: [FIRST, SECOND],
        address: "10.78.0.5",
    },
    Side {
        name: "shunted",
        under_shunt: true,
        runners: [ANY, ANY],
        address: "10.78.0.6",
    },
    Side {
        name: "control",
        under_shunt: false,
        runners: [ANY, ANY],
        address: "10.78.0.7",
    },
];
const NATIVE: usize = 0;
const PLACEMENTS: usize = 3;
const SHUNTED: usize = 3;
const CONTROL: usize = 4;

/// Measures, and prints a table.
pub(super) fn run(options: &Rates, only: &[String]) -> Result<()> {
    let mut report = Report::new();
    let Some(docker) = Docker::begin(&mut report)? else {
        bail!("no containers, or no eBPF");
    };
    let count = if options.control {
        CONTROL + 1
    } else {
        CONTROL
    };
    let sides = &SIDES[..count];
    let names: Vec<&str> = sides.iter().map(|side| side.name).collect();
    println!(
        "| load | from | {} | shunted : native | shunted : native's best | goal |",
        names.join(" | ")
    );
    println!("|---|---|{}---:|---:|---:|", "---:|".repeat(count));
    for program in &PROGRAMS {
        let loads = program.loads.iter();
        let loads: Vec<&Load> = loads.filter(|load| is_wanted(load.name, only)).collect();
        if loads.is_empty() {
            continue;
        }
        let servers = sides.iter().map(|side| serve(&docker, program, side));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        for load in loads {
            for way in WAYS {
                let rates = measure(&docker, program, load, way, sides, options.rounds)?;
                print(load, way, &rates);
            }
        }
        drop(servers);
    }
    Ok(())
}

fn serve(docker: &Docker, program: &Program, side: &Side) -> Result<Server> {
    let published = format!("{GATEWAY}:{}:{}", side.port(program), program.port);
    let options = [&docker.at(side.address)[..], &["--publish", &published]].concat();
    let name = format!("server-{}", side.address);
    if side.under_shunt {
        let (server, _) = Server::under_shunt(&docker.lab, &name, program, &options)?;
        return Ok(server);
    }
    Server::plain(&docker.lab, &name, program, &options, side.runners[0])
}

impl Side {
    /// Where a program's port is published.
    fn port(&self, program: &Program) -> u16 {
        let number = SIDES
            .iter()
            .take_while(|other| other.address != self.address);
        program.port + u16::try_from(number.count()).unwrap_or_default()
    }
}

/// The rates of each side, one in each round.
fn measure(
    docker: &Docker,
    program: &Program,
    load: &Load,
    way: Way,
    sides: &[Side],
    rounds: usize,
) -> Result<Vec<Vec<f64>>> {
    let mut rates = vec![Vec::new(); sides.len()];
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            rates[side].push(ask(docker, program, load, way, &sides[side])?);
        }
    }
    Ok(rates)
}

/// What one client prints.
fn ask(docker: &Docker, program: &Program, load: &Load, way: Way, side: &Side) -> Result<f64> {
    let options = docker.at(CLIENT);
    let (place, address, port) = match way {
        Way::Published => (Place::Host, GATEWAY, side.port(program)),
        Way::Direct => (Place::Host, side.address, program.port),
        _ => (Place::Container(&options), side.address, program.port),
    };
    let [address, port] = environment(address, port);
    let time = lasting(LONG);
    let words = ["env", &address, &port, &time, "sh", "-e", "-c", load.client];
    let words = [side.runners[1], &words].concat();
    let lab: &Lab = &docker.lab;
    let mut client = if side.under_shunt {
        let (client, _stats): (_, PathBuf) = lab.spawn("client", place, &words)?;
        client
    } else {
        lab.spawn_plain("client", place, &words)?
    };
    let status = client.wait(LIMIT, &[])?;
    ensure!(status.success(), "{status}\n{}", client.tail());
    (load.rate)(&client.output()).with_context(|| format!("no rate: {}", client.tail()))
}

/// One row, and every rate.
fn print(load: &Load, way: Way, rates: &[Vec<f64>]) {
    let medians: Vec<f64> = rates.iter().map(|rates| median(rates)).collect();
    let best = medians[..PLACEMENTS].iter().copied().fold(0.0, f64::max);
    let goal = load
        .goal
        .map_or(String::new(), |goal| format!("≥ {goal} of native's best"));
    let columns: Vec<String> = medians.iter().map(|rate| format!("{rate:.0}")).collect();
    println!(
        "| {} | {} | {} | {:.2} | {:.2} | {goal} |",
        load.name,
        way.name(),
        columns.join(" | "),
        medians[SHUNTED] / medians[NATIVE],
        medians[SHUNTED] / best
    );
    for (side, rates) in SIDES.iter().zip(rates) {
        let mut rates = rates.clone();
        rates.sort_by(f64::total_cmp);
        let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        eprintln!("    {}: {}", side.name, rates.join(" "));
    }
}
