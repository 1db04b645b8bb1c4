//! What documents claim of tests. The tables of `docs/security.md` that have a column of tests: a row says what somebody may try
//! and what comes of it, and names the tests that show it. Each of these must be there. The table of applications names the
//! programs of `cargo xtask programs`: those, and no others; and the table of these is made of what their tests demand.

use crate::build::root;
use crate::program;
use anyhow::{Result, bail};
use std::fs;
use std::path::Path;

/// Rows that name no test: the same as the row above, none that could be written, or an answer in the text.
const NONE: [&str; 3] = ["the same", "–", "see below"];

const APPLICATIONS: &str = "docs/applications/README.md";

/// The step.
pub(crate) fn step() -> Result<String> {
    let root = root();
    let text = fs::read_to_string(root.join("docs/security.md"))?;
    let claims = claims_in(&text);
    let mut sources = Vec::new();
    gather(&root.join("crates"), &mut sources)?;
    let is_there = |name: &str| {
        let test = format!("fn {name}(");
        root.join(name).is_file() || sources.iter().any(|source| source.contains(&test))
    };
    let mut wrong = Vec::new();
    for claim in &claims {
        if claim.tests.is_empty() && !NONE.contains(&claim.cell) {
            wrong.push(format!("{} names no test", claim.row));
        }
        let missing = claim.tests.iter().filter(|name| !is_there(name));
        wrong.extend(missing.map(|name| format!("there is no test {name}")));
    }
    if !wrong.is_empty() {
        bail!("docs/security.md: {}", wrong.join("\n"));
    }
    let text = fs::read_to_string(root.join(APPLICATIONS))?;
    let wrong = applications(&text);
    if !wrong.is_empty() {
        bail!("{APPLICATIONS}: {}", wrong.join("\n"));
    }
    let table = program::compatibility();
    if !text.contains(&table) {
        bail!("{APPLICATIONS} lacks this table:\n{table}");
    }
    let tests: usize = claims.iter().map(|claim| claim.tests.len()).sum();
    Ok(format!("{} claims, {tests} tests", claims.len()))
}

/// What is wrong with the table of applications: which tests each row names, and which there are.
fn applications(text: &str) -> Vec<String> {
    let tests: Vec<_> = program::mixed().collect();
    let mut wrong = Vec::new();
    for claim in claims_in(text) {
        if claim.tests.is_empty() && claim.cell != "no" {
            wrong.push(format!("{} names no test", claim.row));
        }
        let missing = claim.tests.iter().filter(|name| !tests.contains(name));
        wrong
            .extend(missing.map(|name| format!("{name} is not tested with every mixture of ends")));
        // The page of an application has its name, and so begin those of its tests.
        let page = claim
            .row
            .split("](")
            .nth(1)
            .and_then(|rest| rest.split(".md").next());
        let is_its = |name: &&&str| page.is_some_and(|page| name.starts_with(page));
        let unnamed = tests
            .iter()
            .filter(is_its)
            .filter(|name| !claim.tests.contains(name));
        wrong.extend(unnamed.map(|name| format!("{} lacks {name}", claim.row)));
    }
    wrong
}

/// A row of a table whose last column is headed by the word *test*.
struct Claim<'a> {
    row: &'a str,
    cell: &'a str,
    /// Functions, or files from the root on.
    tests: Vec<&'a str>,
}

fn claims_in(text: &str) -> Vec<Claim<'_>> {
    let mut has_tests = false;
    let mut claims = Vec::new();
    let mut before = "";
    for line in text.lines() {
        if line.starts_with("|--") {
            has_tests = last_cell(before).starts_with("test");
        } else if !line.starts_with('|') {
            has_tests = false;
        } else if has_tests {
            claims.push(Claim::read(line));
        }
        before = line;
    }
    // The head of a table follows another one's only after a line of text, so none of them is among the rows.
    claims
}

fn last_cell(line: &str) -> &str {
    let cells = line.trim_end_matches('|').rsplit(" | ");
    cells.map(str::trim).next().unwrap_or_default()
}

impl<'a> Claim<'a> {
    fn read(row: &'a str) -> Self {
        let cell = last_cell(row);
        // What stands between two marks is every second part.
        let tests = cell.split('`').skip(1).step_by(2).collect();
        Self { row, cell, tests }
    }
}

/// The text of all sources below a directory.
fn gather(directory: &Path, sources: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, sources)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            sources.push(fs::read_to_string(path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_names_tests_that_are_there() {
        step().unwrap();
        let text = fs::read_to_string(root().join("docs/security.md")).unwrap();
        assert!(claims_in(&text).len() >= 30);
    }

    #[test]
    fn applications_name_the_tests_that_there_are() {
        let table = |rows: &str| applications(&format!("| a | tested, by |\n|---|---|\n{rows}"));
        assert!(
            table("| [redis](redis.md) | `redis` |\n| [Something](something.md) | no |").is_empty()
        );
        assert!(table("| [redis](redis.md) | no |")[0].ends_with("lacks redis"));
        assert!(table("| [redis](redis.md) | yes |")[0].ends_with("names no test"));
        // The server's end alone is left out.
        let wrong = table("| [MPI](mpi.md) | `openmpi` |");
        assert_eq!(wrong, ["openmpi is not tested with every mixture of ends"]);
    }

    #[test]
    fn only_tables_with_tests_are_read() {
        let text = "| who | does |\n|---|---|\n| I | `nothing` |\n\n\
                    | what | test (here) |\n|---|---|\n| a | `one`, `two` |\n| b | the same |\n";
        let claims = claims_in(text);
        let tests: Vec<_> = claims.iter().map(|claim| claim.tests.clone()).collect();
        assert_eq!(tests, [vec!["one", "two"], vec![]]);
        assert_eq!(claims[1].cell, "the same");
    }
}
