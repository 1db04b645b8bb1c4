//! Each goal: of which figures it speaks, and its bound.

use super::Bound::{AtLeast, AtMost};
use super::{Goal, Goals, Measured, Spot};
use crate::cores::Place;
use crate::report::Table;

fn pairs<'a>(spots: Vec<Spot<'a>>, others: Vec<Spot<'a>>) -> Vec<(Spot<'a>, Spot<'a>)> {
    spots.into_iter().zip(others).collect()
}

/// All of them.
pub(in crate::report) fn all(tables: &[Table], rounds: usize) -> Vec<Goal> {
    let m = Measured { tables, rounds };
    let mut goals = Goals::default();
    small(&m, &mut goals);
    sizes(&m, &mut goals);
    servers(&m, &mut goals);
    harmless(&m, &mut goals);
    goals.all
}

/// 8 bytes.
fn small(m: &Measured, goals: &mut Goals) {
    let figure = "8 B round trip, blocking, two cores";
    let two = |side| m.at("latency", "8 B", Place::Two, side);
    goals.ratio(
        figure,
        AtMost(1.25),
        "× ring",
        pairs(two("shunt"), two("ring")),
    );
    let best = m.best("latency", "8 B", "tcp");
    goals.ratio(
        figure,
        AtLeast(15.0),
        "× better than TCP's best place",
        pairs(two("shunt"), best),
    );
    goals.ratio(
        figure,
        AtLeast(100.0),
        "× better than TCP there",
        pairs(two("shunt"), two("tcp")),
    );

    let events = |side| m.at("events", "1 connection", Place::Two, side);
    let figure = "8 B round trip, epoll, two cores";
    goals.ratio(
        figure,
        AtMost(2.0),
        "× ring",
        pairs(events("shunt"), events("ring")),
    );

    let one = |side| m.at("latency", "8 B", Place::One, side);
    let figure = "8 B round trip, one core";
    goals.ratio(
        figure,
        AtLeast(3.0),
        "× better than TCP there",
        pairs(one("shunt"), one("tcp")),
    );

    let figure = "8 B one way, one pair";
    let flow = m.best("throughput", "8 B", "shunt");
    let million = |spot: &Spot| Some(spot.figure.median.value / 8.0);
    goals.value(figure, AtLeast(23.0), "million/s", flow.clone(), million);
    let best = m.best("throughput", "8 B", "tcp");
    goals.ratio(
        figure,
        AtLeast(8.0),
        "× TCP's best place",
        pairs(flow, best),
    );
}

/// From 8 bytes to megabytes.
fn sizes(m: &Measured, goals: &mut Goals) {
    let figure = "64 KiB and 1 MiB streams, touched at both ends";
    let best = |side| {
        let of = |size| m.best("throughput", size, side);
        [of("64 KiB"), of("1 MiB")].concat()
    };
    goals.ratio(
        figure,
        AtLeast(3.0),
        "× TCP's best place",
        pairs(best("shunt"), best("tcp")),
    );
    goals.ratio(
        figure,
        AtLeast(0.8),
        "× ring",
        pairs(best("shunt"), best("ring")),
    );

    let figure = "every size, latency and throughput, both places";
    for side in ["tcp", "unix"] {
        let all = [
            m.all("latency", "", "shunt"),
            m.all("throughput", "", "shunt"),
        ]
        .concat();
        let unit = format!("× {side} there");
        goals.ratio(figure, AtLeast(1.0), &unit, Measured::beside(&all, side));
    }
}

/// Programs that others wrote.
fn servers(m: &Measured, goals: &mut Goals) {
    let best = |table, label| pairs(m.best(table, label, "shunt"), m.best(table, label, "tcp"));
    let two = |label| {
        let at = |side| m.at("requests", label, Place::Two, side);
        pairs(at("shunt"), at("tcp"))
    };
    let (over_best, over_same) = ("× better than TCP's best place", "× better than TCP there");
    let figure = "redis GET, one connection: mean latency";
    goals.ratio(
        figure,
        AtLeast(2.0),
        over_best,
        best("requests", "redis GET"),
    );
    goals.ratio(figure, AtLeast(2.78), over_same, two("redis GET"));
    let rate = "× TCP's best place";
    let figure = "redis GET, 50 connections";
    goals.ratio(figure, AtLeast(2.5), rate, best("load", "redis GET"));
    let figure = "memcached, 50 connections";
    goals.ratio(figure, AtLeast(2.0), rate, best("load", "memcached get"));
    let figure = "nginx small file, one connection: latency";
    goals.ratio(figure, AtLeast(5.5), over_same, two("nginx file"));
    let own = Measured::beside(&m.best("requests", "nginx file", "shunt"), "own");
    goals.ratio(figure, AtMost(1.0), "× the programs' own work", own);
    let figure = "nginx reverse proxy, one connection: latency";
    goals.ratio(
        figure,
        AtLeast(2.0),
        over_best,
        best("requests", "nginx proxy"),
    );
    let figure = "PostgreSQL select, one connection";
    let one = best("requests", "PostgreSQL select");
    goals.ratio(figure, AtLeast(1.23), over_best, one);
    let figure = "PostgreSQL select, 50 connections";
    goals.ratio(
        figure,
        AtLeast(1.23),
        rate,
        best("load", "PostgreSQL select"),
    );

    let figure = "64 B records through filters";
    let filters = |side| m.best("pipeline", "64 B records", side);
    goals.ratio(
        figure,
        AtLeast(15.0),
        "× pipe's best place",
        pairs(filters("shunt"), filters("pipe")),
    );

    let figure = "socket calls without a system call under load";
    let loaded = ["redis GET", "memcached get", "nginx file"];
    let spots = loaded.map(|label| m.best("load", label, "shunt")).concat();
    let free = |spot: &Spot| Some(spot.figure.median.carried?.free * 100.0);
    goals.value(figure, AtLeast(99.0), "%", spots, free);
}

/// Where there is nothing to gain.
fn harmless(m: &Measured, goals: &mut Goals) {
    let within = |goals: &mut Goals, figure, bound, table, label, side, base| {
        let all = m.all(table, label, side);
        goals.ratio(figure, bound, "× native", Measured::beside(&all, base));
    };
    for (label, client, server) in [
        ("TCP_RR", "TCP_RR, client only", "TCP_RR, server only"),
        (
            "TCP_STREAM",
            "TCP_STREAM, client only",
            "TCP_STREAM, server only",
        ),
        ("TCP_CRR", "TCP_CRR, client only", "TCP_CRR, server only"),
    ] {
        for (figure, side) in [(client, "client"), (server, "server")] {
            within(
                goals,
                figure,
                AtMost(1.01),
                "one-sided",
                label,
                side,
                "native",
            );
        }
    }
    let figure = "one-request connections, both ends under Shunt";
    within(
        goals,
        figure,
        AtMost(1.03),
        "connections",
        "",
        "shunt",
        "tcp",
    );

    let busy = |labels: &[&str]| {
        let all = labels
            .iter()
            .map(|label| m.at("pairs", label, Place::Any, "shunt"));
        Measured::beside(&all.collect::<Vec<_>>().concat(), "tcp")
    };
    let figure = "4 to 16 busy processes on two cores: latency";
    let some = busy(&["2 pairs", "4 pairs", "8 pairs"]);
    goals.ratio(figure, AtLeast(1.0), "× better than TCP there", some);
    let figure = "16 busy processes on two cores: latency";
    goals.ratio(
        figure,
        AtLeast(5.0),
        "× better than TCP there",
        busy(&["8 pairs"]),
    );

    let figure = "10,000 idle connections";
    let idle = m.all("idle", "10000 connections", "shunt");
    goals.value(figure, AtMost(0.0), "% of a core", idle.clone(), |spot| {
        // Processor seconds of all connections in the second that they are watched.
        let seconds: f64 = spot.figure.median.cpu.iter().sum::<f64>() * spot.row.x / 1e6;
        Some((seconds * 1000.0).round() / 10.0)
    });
    goals.value(figure, AtMost(16.0), "KiB each beyond TCP", idle, |spot| {
        let native = spot.row.of("tcp")?;
        Some(spot.figure.median.value - native.median.value)
    });

    let figure = "starting a process";
    let started = ["fork, exec", "posix_spawn", "sh -c"];
    let started = started
        .map(|label| m.all("processes", label, "shunt"))
        .concat();
    goals.ratio(
        figure,
        AtMost(1.05),
        "× native",
        Measured::beside(&started, "native"),
    );
}
