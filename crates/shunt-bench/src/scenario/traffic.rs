//! Latency, throughput, crowds of pairs, and connection rate.

use super::pair::{self, Sum, Task};
use super::{Entry, Row, Scenario};
use crate::cores::{Place, Places};
use crate::side::Side;
use crate::worker::Work;

const ALL: &[Side] = &[Side::Tcp, Side::Unix, Side::Pipe, Side::Ring, Side::Shunt];
const SIZES: &[usize] = &[
    8,
    64,
    512,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];
const QUICK_SIZES: &[usize] = &[8, 4 << 10, 64 << 10, 1 << 20];

/// These scenarios.
pub(super) fn all(quick: bool, places: &Places) -> Vec<Scenario> {
    let sizes = if quick { QUICK_SIZES } else { SIZES };
    let milliseconds = if quick { 100 } else { 300 };
    let task = |work, size, place, pairs| Task {
        side: Side::Tcp,
        work,
        size,
        milliseconds,
        place,
        cores: places.cores(place),
        pairs,
    };
    let by_size = |work, value: fn(&Sum) -> f64| {
        let mut rows = Vec::new();
        for place in places.of_two() {
            for &size in sizes {
                let task = task(work, size, place, 1);
                rows.push(row(bytes(size), size as f64, task, ALL, value));
            }
        }
        rows
    };
    let crowd = |place, work, value: fn(&Sum) -> f64| {
        [1, 2, 4, 8, 16].map(|pairs| {
            let label = format!("{pairs} {}", if pairs == 1 { "pair" } else { "pairs" });
            row(label, pairs as f64, task(work, 8, place, pairs), ALL, value)
        })
    };
    // Many systems allow a process no more descriptors than the last of these needs.
    let many = if quick {
        &[1, 1000][..]
    } else {
        &[1, 100, 1000, 10_000, 19_000][..]
    };
    let sides = &[Side::Tcp, Side::Unix, Side::Shunt];
    let events = places.of_two().into_iter().flat_map(|place| {
        many.iter().map(move |&count| {
            let label = if count == 1 {
                "1 connection".into()
            } else {
                format!("{count} connections")
            };
            let value = |sum: &Sum| sum.seconds / sum.messages * 2e6;
            let crowd = task(Work::Crowd, count, place, 1);
            let mut row = row(label, count as f64, crowd, sides, value);
            if count == 1 {
                // The floor has no sets.
                let echo = task(Work::Echo, 8, place, 1);
                row.entries.push(entry(echo, Side::Ring, value));
            }
            row
        })
    });
    let idle = {
        let count = if quick { 1000 } else { 10_000 };
        let task = Task {
            milliseconds: 1000,
            ..task(Work::Idle, count, Place::Any, 1)
        };
        row(
            format!("{count} connections"),
            count as f64,
            task,
            sides,
            |sum| sum.resident / sum.messages / 1024.0,
        )
    };
    vec![
        Scenario {
            name: "latency",
            title: "Round trip, blocking calls, one pair",
            unit: "µs",
            lower: true,
            axis: "message bytes",
            item: "messages",
            rows: by_size(Work::Echo, mean_us),
        },
        Scenario {
            name: "throughput",
            title: "Messages one way, one pair",
            unit: "MB/s",
            lower: false,
            axis: "message bytes",
            item: "messages",
            rows: by_size(Work::Flow, |sum| sum.bytes / sum.seconds / 1e6),
        },
        Scenario {
            name: "pairs",
            title: "Round trip of 8 bytes, several pairs of processes at once",
            unit: "µs",
            lower: true,
            axis: "pairs",
            item: "messages",
            rows: [Place::One, Place::Any]
                .into_iter()
                .flat_map(|place| crowd(place, Work::Echo, mean_us))
                .collect(),
        },
        Scenario {
            name: "scaling",
            title: "Messages of 8 bytes one way, several pairs of processes at once, all together",
            unit: "million/s",
            lower: false,
            axis: "pairs",
            item: "messages",
            rows: crowd(Place::Any, Work::Flow, |sum| {
                sum.messages / sum.seconds / 1e6
            })
            .into(),
        },
        Scenario {
            name: "events",
            title: "Round trips of 8 bytes by epoll, a hundredth of all connections busy",
            unit: "µs",
            lower: true,
            axis: "connections",
            item: "messages",
            rows: events.collect(),
        },
        Scenario {
            name: "idle",
            title: "Memory of idle connections, both ends together, and of all of shuntd",
            unit: "KiB",
            lower: true,
            axis: "",
            item: "connections, in the time that one is watched",
            rows: vec![idle],
        },
    ]
}

fn row(label: String, x: f64, task: Task, sides: &[Side], value: fn(&Sum) -> f64) -> Row {
    Row {
        label,
        x,
        place: task.place,
        entries: sides.iter().map(|&side| entry(task, side, value)).collect(),
    }
}

fn entry(task: Task, side: Side, value: fn(&Sum) -> f64) -> Entry {
    let task = Task { side, ..task };
    Entry::of(side, move |lab| {
        let sum = pair::run(lab, &task)?;
        Ok(sum.sample(value(&sum)))
    })
}

fn mean_us(sum: &Sum) -> f64 {
    sum.times.map_or(0.0, |times| times.mean / 1e3)
}

fn bytes(size: usize) -> String {
    match size {
        0..1024 => format!("{size} B"),
        1024..1_048_576 => format!("{} KiB", size >> 10),
        _ => format!("{} MiB", size >> 20),
    }
}
