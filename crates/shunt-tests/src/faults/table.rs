//! The table of calls, refusals and modes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::Value;

/// Who, call, place.
type Row = (bool, String, String);

#[derive(Default)]
struct Cell {
    errnos: BTreeSet<String>,
    upgrades: BTreeSet<String>,
    cases: BTreeSet<String>,
    fates: BTreeMap<String, u64>,
    refused: u64,
}

/// Makes it of lines of results.
pub(crate) fn make(results: &str) -> Result<String> {
    let mut rows: BTreeMap<Row, Cell> = BTreeMap::new();
    let (mut runs, mut wrong) = (0, 0);
    for line in results.lines() {
        let value: Value = serde_json::from_str(line)?;
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let row = (text("side") == "daemon", text("call"), text("place"));
        let cell = rows.entry(row).or_default();
        let refused = value["refused"].as_u64().unwrap_or(0);
        // A run that happened to go another way met the call too seldom.
        if refused == 0 && !text("fate").starts_with("not started") {
            continue;
        }
        cell.refused += refused;
        cell.errnos.insert(text("errno"));
        cell.upgrades.insert(text("upgrade"));
        cell.cases.insert(text("case"));
        *cell.fates.entry(text("fate")).or_default() += 1;
        runs += 1;
        wrong += u64::from(text("fate") == "WRONG");
    }
    let mut table = format!(
        "# Refused system calls\n\nMade by `cargo xtask faults --table`: each system call that the library and shuntd make for their \
         own ends, at each place in the sources, refused with what the kernel may refuse it with: the first time, the second, the \
         last, and (where that may last) every time. In each run a client and a server of `tests/differential/journey.c` must see what they see \
         natively; what is told here is how their connections went: *served* as without the refusal, or *TCP* with reasons that \
         `shunt reasons` explains. {runs} runs, {wrong} of them wrong. How it is done: \
         [decision 16](decisions/0016-refused-calls.md).\n"
    );
    for daemon in [false, true] {
        let _ = writeln!(
            table,
            "\n## {}\n",
            if daemon { "shuntd" } else { "libshunt.so" }
        );
        table.push_str("| call | place | refused with | modes | cases | runs: what became of the connections |\n|---|---|---|---|---|---|\n");
        for ((_, call, place), cell) in rows
            .iter()
            .filter(|(row, cell)| row.0 == daemon && !cell.fates.is_empty())
        {
            let join = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
            let fates: Vec<String> = cell
                .fates
                .iter()
                .map(|(fate, count)| format!("{count} {fate}"))
                .collect();
            let _ = writeln!(
                table,
                "| `{call}` | {place} | {} | {} | {} | {} |",
                join(&cell.errnos),
                join(&cell.upgrades),
                cell.cases.len(),
                fates.join("; ")
            );
        }
    }
    Ok(table)
}
