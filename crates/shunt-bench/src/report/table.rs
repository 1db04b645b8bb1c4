//! Tables for a terminal.

use std::fmt::Write;

use super::goal::Goal;
use super::{Figure, Results, Table, TableRow};
use crate::carried::Carried;

/// All tables, or only the one of the goals.
pub(crate) fn text(results: &Results, only_goals: bool) -> String {
    let host = &results.host;
    let mut text = format!(
        "{}, {} cores, Linux {}, {}; medians of {} rounds in turn\n",
        host.processor,
        host.cores,
        host.kernel,
        host.beside(),
        results.rounds
    );
    let tables = if only_goals { &[] } else { &results.tables[..] };
    for table in tables {
        let _ = write!(text, "\n{}: {}\n\n", table.name, table.title);
        one(&mut text, table);
    }
    text.push('\n');
    goals(&mut text, &results.goals, only_goals);
    if !results.failures.is_empty() {
        text.push_str("\nNot measured:\n");
        for failure in &results.failures {
            let _ = writeln!(text, "  {}: {}", failure.what, failure.why);
        }
    }
    text
}

/// What Shunt is to reach, also for a page in Markdown.
fn goals(text: &mut String, goals: &[Goal], all: bool) {
    let head = [
        "figure",
        "goal",
        "measured",
        "holds",
        "of",
        "cpu",
        "cpu there",
    ];
    let rule = ["---", "---", "---:", "---", "---", "---:", "---:"];
    let mut lines = vec![head.map(String::from), rule.map(String::from)];
    let shown = |goal: &&Goal| all || goal.measured.is_some();
    for goal in goals.iter().filter(shown) {
        let cpu = |of: Option<f64>| of.map(number).unwrap_or_default();
        lines.push([
            goal.figure.into(),
            goal.wanted.clone(),
            goal.value(),
            goal.verdict().into(),
            goal.of.clone(),
            cpu(goal.cpu),
            cpu(goal.cpu_there),
        ]);
    }
    for line in lines {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    text.push_str(
        "\ncpu: seconds of processor time of both ends per million (messages, requests, …), under \
         Shunt, and of what it is compared with.\n",
    );
}

fn one(text: &mut String, table: &Table) {
    let timed = table
        .rows
        .iter()
        .flat_map(|row| &row.figures)
        .any(|figure| figure.median.times.is_some());
    let mut lines = vec![head(table, timed)];
    for row in &table.rows {
        for figure in &row.figures {
            lines.push(line(table, row, figure, timed));
        }
    }
    align(text, &lines);
    let _ = writeln!(
        text,
        "\n× {base}: times better than {base} in the same place; × best {base}: than {base} in \
         its best place.{}",
        if table.has_cpu() {
            format!(
                " cpu: seconds of processor time per million {}.",
                table.item
            )
        } else {
            String::new()
        },
        base = table.base(),
    );
}

fn head(table: &Table, timed: bool) -> Vec<String> {
    let mut head: Vec<String> = ["", "where", "side"].map(Into::into).into();
    head.push(table.unit.clone());
    if timed {
        head.extend(["mean µs", "p1", "p50", "p99", "p99.9"].map(Into::into));
    }
    if table.has_cpu() {
        head.extend(["cpu client", "cpu server"].map(Into::into));
    }
    let base = table.base();
    head.extend([
        format!("× {base}"),
        format!("× best {base}"),
        "by ring".into(),
        "no syscall".into(),
    ]);
    head
}

fn line(table: &Table, row: &TableRow, figure: &Figure, timed: bool) -> Vec<String> {
    let median = &figure.median;
    let mut line = vec![
        row.label.clone(),
        row.place.name().into(),
        figure.side.clone(),
        number(median.value),
    ];
    if timed {
        let times = median.times.map(|t| [t.mean, t.p1, t.p50, t.p99, t.p999]);
        line.extend(times.map_or_else(
            || [const { String::new() }; 5],
            |times| times.map(|ns| number(ns / 1e3)),
        ));
    }
    if table.has_cpu() {
        line.extend(median.cpu.map(number));
    }
    let ratio = |base: Option<f64>| {
        let times = base.map(|base| table.better(median.value, base));
        let times = times.filter(|times| times.is_finite() && *times > 0.0);
        times.map_or_else(String::new, |times| format!("{times:.2}"))
    };
    line.push(ratio(row.figures.first().map(|base| base.median.value)));
    line.push(ratio(table.best_base(row)));
    line.extend(shares(figure));
    line
}

/// Which share of the bytes went by ring, and of the calls made no system call.
pub(super) fn shares(figure: &Figure) -> [String; 2] {
    let share = |of: fn(&Carried) -> f64| {
        let carried = figure.median.carried.as_ref();
        carried.map_or_else(String::new, |carried| {
            format!("{:.2} %", of(carried) * 100.0)
        })
    };
    [share(|carried| carried.ring), share(|carried| carried.free)]
}

/// Three digits that count.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn align(text: &mut String, lines: &[Vec<String>]) {
    let width = |n: usize| {
        let of = lines.iter().map(|line| line[n].chars().count());
        of.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    for line in lines {
        for (n, (word, &width)) in line.iter().zip(&widths).enumerate() {
            let gap = if n == 0 { "" } else { "  " };
            let _ = if n < 3 {
                write!(text, "{gap}{word:width$}")
            } else {
                write!(text, "{gap}{word:>width$}")
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
}
