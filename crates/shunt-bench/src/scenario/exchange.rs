//! Where Shunt gains nothing and shall cost nothing: only one end under it, and
//! connections of one request. And what these gain where they use the sockets of former ones again.

use anyhow::{Result, ensure};

use super::turns::{self, Stepper};
use super::{Entry, Row, Sample, Scenario};
use crate::cores::{Place, Places};
use crate::process::has_loaded;
use crate::side::{Lab, Upgrade};

/// A side: which ends are under Shunt, and what carries the bytes.
struct Ends {
    name: &'static str,
    carrier: &'static str,
    client: Option<Upgrade>,
    server: Option<Upgrade>,
}

impl Ends {
    const fn new(name: &'static str, client: Option<Upgrade>, server: Option<Upgrade>) -> Self {
        Self {
            name,
            carrier: "tcp",
            client,
            server,
        }
    }
}

const ADAPTIVE: Option<Upgrade> = Some(Upgrade::Adaptive);
const EAGER: Option<Upgrade> = Some(Upgrade::Eager);

const AGAIN: Option<Upgrade> = Some(Upgrade::Again);

const ONE_SIDED: &[Ends] = &[
    Ends::new("native", None, None),
    Ends::new("client", ADAPTIVE, None),
    Ends::new("server", None, ADAPTIVE),
];

const CONNECTIONS: &[Ends] = &[
    Ends::new("tcp", None, None),
    Ends::new("shunt", ADAPTIVE, ADAPTIVE),
    Ends::new("eager", EAGER, EAGER),
    Ends {
        carrier: "unix",
        ..Ends::new("unix", None, None)
    },
];

const SHORT: &[Ends] = &[
    Ends::new("tcp", None, None),
    Ends::new("again", AGAIN, AGAIN),
];

/// What is asked, and how a turn of a millisecond or so becomes a value.
#[derive(Clone, Copy)]
struct Exchange {
    label: &'static str,
    request: u64,
    answer: u32,
    each: bool,
    /// Requests a turn, on two cores and on one; and how many items each request counts as.
    count: [u32; 2],
    items: u32,
    value: fn(f64) -> f64,
}

const NETPERF: &[Exchange] = &[
    Exchange {
        label: "TCP_RR",
        request: 1,
        answer: 1,
        each: false,
        count: [25, 150],
        items: 1,
        value: |ns| ns / 1e3,
    },
    Exchange {
        label: "TCP_STREAM, 1 MiB",
        request: 4 << 20,
        answer: 1,
        each: false,
        count: [1, 1],
        items: 4,
        value: |ns| ns / 4e3,
    },
    Exchange {
        label: "TCP_CRR",
        request: 1,
        answer: 1,
        each: true,
        count: [20, 40],
        items: 1,
        value: |ns| ns / 1e3,
    },
];

const WEB: Exchange = Exchange {
    label: "one request",
    request: 100,
    answer: 400,
    each: true,
    count: [20, 40],
    items: 1,
    value: |ns| 1e9 / ns,
};

const BYTE: Exchange = Exchange {
    label: "one byte",
    request: 1,
    answer: 1,
    ..WEB
};

/// These scenarios.
pub(super) fn all(quick: bool, places: &Places) -> Vec<Scenario> {
    let row = |exchange: Exchange, sides: &'static [Ends], place| {
        let cores = places.cores(place);
        // The kernel remembers a connection for a minute or two, and where it can remember
        // no more new ones wait for seconds.
        let turns = if quick || exchange.each { 60 } else { 200 };
        let one = place != Place::Two;
        Row {
            label: exchange.label.into(),
            x: 1.0,
            place,
            entries: vec![Entry {
                sides: sides.iter().map(|ends| ends.name).collect(),
                measure: Box::new(move |lab| measure(lab, &exchange, sides, cores, one, turns)),
            }],
        }
    };
    let rows = |exchange, sides| {
        places
            .of_two()
            .into_iter()
            .map(move |p| row(exchange, sides, p))
    };
    vec![
        Scenario {
            name: "connections",
            title: "A connection per request of 100 bytes, answered by 400: both ends under Shunt \
                    as it is by default (shunt: such connections stay on TCP), and with every \
                    connection moved at once (eager)",
            unit: "1/s",
            lower: false,
            axis: "",
            item: "connections",
            rows: rows(WEB, CONNECTIONS).collect(),
        },
        Scenario {
            name: "short",
            title: "A connection for each byte, answered by one: natively, and where the sockets of \
                    closed connections are used again (a test's switch, SHUNT_RECYCLE)",
            unit: "1/s",
            lower: false,
            axis: "",
            item: "connections",
            rows: rows(BYTE, SHORT).collect(),
        },
        Scenario {
            name: "one-sided",
            title: "Only the client or only the server under Shunt, the other end without: \
                    netperf's round trip, stream and connection per request",
            unit: "µs",
            lower: true,
            axis: "",
            item: "requests (MiB of the stream)",
            rows: NETPERF.iter().flat_map(|&e| rows(e, ONE_SIDED)).collect(),
        },
    ]
}

fn measure(
    lab: &Lab,
    exchange: &Exchange,
    sides: &[Ends],
    cores: [Option<usize>; 2],
    one: bool,
    turns: usize,
) -> Result<Vec<Sample>> {
    let count = exchange.count[usize::from(one)];
    let steppers = sides
        .iter()
        .map(|ends| start(lab, exchange, count, ends, cores));
    let steppers: Vec<Stepper> = steppers.collect::<Result<_>>()?;
    let all = turns::take(steppers, turns)?;
    all.into_iter()
        .map(|turns| turns.sample(count * exchange.items, exchange.value))
        .collect()
}

/// A server, and a client that asks it `count` times in each turn.
fn start(
    lab: &Lab,
    exchange: &Exchange,
    count: u32,
    ends: &Ends,
    cores: [Option<usize>; 2],
) -> Result<Stepper> {
    let start = |step: &str, address: &str, under: Option<Upgrade>, core: Option<usize>| {
        let mut command = lab.stepper(under.map(|upgrade| (upgrade, None)));
        command
            .args(["--step", step, "--carrier", ends.carrier])
            .args(["--address", address])
            .arg(format!("--count={count}"))
            .arg(format!("--request={}", exchange.request))
            .arg(format!("--answer={}", exchange.answer))
            .args(exchange.each.then_some("--each"))
            .args(core.map(|core| format!("--cores={core}")));
        turns::start(&mut command)
    };
    let path = lab.fresh("exchange");
    let mut server = start("answer", &path.to_string_lossy(), ends.server, cores[0])?;
    let client = start("ask", &server.line()?, ends.client, cores[1])?;
    let expected = [(client.id(), ends.client), (server.id(), ends.server)];
    let stepper = Stepper::new(client, Some(server))?;
    for (number, under) in expected {
        let is_under = has_loaded(number, "libshunt.so");
        let side = ends.name;
        ensure!(
            is_under == under.is_some(),
            "{side}: wrongly under Shunt, or not"
        );
    }
    Ok(stepper)
}
