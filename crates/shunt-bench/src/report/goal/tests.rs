//! Goals by made-up tables.

use super::{Goal, all};
use crate::cores::Place;
use crate::report::{Figure, Table, TableRow};
use crate::scenario::Sample;

fn figure(side: &str, values: &[f64]) -> Figure {
    let sample = |&value: &f64| Sample {
        value,
        times: None,
        cpu: [1.0, 2.0],
        carried: None,
    };
    Figure::of(side, values.iter().map(sample).collect()).unwrap()
}

fn row(place: Place, figures: Vec<Figure>) -> TableRow {
    TableRow {
        label: "8 B".into(),
        x: 8.0,
        place,
        figures,
    }
}

fn latency(rows: Vec<TableRow>) -> Vec<Table> {
    vec![Table {
        name: "latency".into(),
        title: String::new(),
        unit: "µs".into(),
        lower: true,
        axis: String::new(),
        item: String::new(),
        rows,
    }]
}

fn find<'a>(goals: &'a [Goal], figure: &str, wanted: &str) -> &'a Goal {
    let mut found = goals.iter().filter(|goal| goal.figure.starts_with(figure));
    found.find(|goal| goal.wanted.contains(wanted)).unwrap()
}

#[test]
fn the_best_place_of_the_kernel_and_the_worst_of_several_count() {
    let tables = latency(vec![
        row(
            Place::Two,
            vec![
                figure("tcp", &[50.0, 60.0, 55.0]),
                figure("shunt", &[0.5; 3]),
            ],
        ),
        row(
            Place::One,
            vec![figure("tcp", &[6.0; 3]), figure("shunt", &[8.0; 3])],
        ),
    ]);
    let goals = all(&tables, 3);
    let there = find(&goals, "8 B round trip, blocking", "better than TCP there");
    assert_eq!((there.measured, there.holds), (Some(110.0), Some(true)));
    assert_eq!((there.cpu, there.cpu_there), (Some(3.0), Some(3.0)));
    let best = find(&goals, "8 B round trip, blocking", "best place");
    assert_eq!((best.measured, best.holds), (Some(12.0), Some(false)));
    let every = find(&goals, "every size", "tcp there");
    assert_eq!((every.measured, every.holds), (Some(0.75), Some(false)));
    assert_eq!(every.of, "latency 8 B, one core : tcp");
}

#[test]
fn what_is_missing_or_has_failed_is_not_judged() {
    let figures = vec![figure("tcp", &[50.0; 3]), figure("shunt", &[0.5; 2])];
    let goals = all(&latency(vec![row(Place::Two, figures)]), 3);
    assert!(goals.iter().all(|goal| goal.holds.is_none()));
}
