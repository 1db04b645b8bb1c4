//! The tables of `ARCHITECTURE.md` under "Where to look": a row asks a question, names files, and names what stands there.
//! Every file must be there; each name must occur in a file of its row, and each source of a row must have one of its names.
//! So in `docs/glossary.md`, where a row is a word, what it means, and a file that uses it.

use crate::build::root;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// The heading of the tables; they end where the next heading of this rank begins.
const HEADING: &str = "\n## Where to look\n";

/// Where the path of a file may begin.
const BASES: [&str; 3] = ["", "crates", "crates/shunt-engine/src"];

/// A stranger learns no more private words than this.
const MOST_WORDS: usize = 25;

/// The step.
pub(crate) fn step() -> Result<String> {
    let root = root();
    let text = fs::read_to_string(root.join("ARCHITECTURE.md"))?;
    let questions = rows_in(&text)?;
    let mut wrong: Vec<_> = questions.iter().flat_map(|row| row.check(&root)).collect();
    let glossary = fs::read_to_string(root.join("docs/glossary.md"))?;
    let words = words_in(&glossary)?;
    wrong.extend(words.iter().flat_map(|row| row.check(&root)));
    if words.len() > MOST_WORDS {
        wrong.push(format!("the glossary has more than {MOST_WORDS} words"));
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(format!(
        "{} questions, {} words",
        questions.len(),
        words.len()
    ))
}

struct Row<'a> {
    question: &'a str,
    /// In code.
    files: Vec<&'a str>,
    /// Documents, by links.
    links: Vec<&'a str>,
    names: Vec<&'a str>,
}

fn rows_in(text: &str) -> Result<Vec<Row<'_>>> {
    let (_, tables) = text.split_once(HEADING).context("no tables")?;
    let tables = tables.split("\n## ").next().unwrap_or(tables);
    let is_row = |line: &&str| {
        line.starts_with('|') && !line.starts_with("|--") && !line.starts_with("| question ")
    };
    tables.lines().filter(is_row).map(Row::read).collect()
}

fn words_in(text: &str) -> Result<Vec<Row<'_>>> {
    let is_row = |line: &&str| {
        line.starts_with('|') && !line.starts_with("|--") && !line.starts_with("| word ")
    };
    let rows = text.lines().filter(is_row);
    rows.map(|line| {
        let [word, _, place] = cells_of(line)?;
        Ok(Row {
            question: word,
            files: between(place, "`", "`"),
            links: Vec::new(),
            names: vec![word],
        })
    })
    .collect()
}

fn cells_of(line: &str) -> Result<[&str; 3]> {
    let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
    let [one, other, last] = cells[..] else {
        bail!("three cells are expected in {line}");
    };
    Ok([one, other, last].map(str::trim))
}

impl<'a> Row<'a> {
    fn read(line: &'a str) -> Result<Self> {
        let [question, places, names] = cells_of(line)?;
        Ok(Self {
            question,
            files: between(places, "`", "`"),
            links: between(places, "](", ")"),
            names: between(names, "`", "`"),
        })
    }

    /// What is wrong with it, a line each.
    fn check(&self, root: &Path) -> Vec<String> {
        let question = self.question;
        let mut wrong = Vec::new();
        let mut sources = Vec::new();
        let mut documents = Vec::new();
        let all = self.files.iter().map(|file| (file, false));
        for (file, is_link) in all.chain(self.links.iter().map(|file| (file, true))) {
            match read(root, file) {
                Some(text) if is_link => documents.push(text),
                Some(text) => sources.push((file, text)),
                None => wrong.push(format!("{question}: there is no file {file}")),
            }
        }
        let texts = || sources.iter().map(|(_, text)| text).chain(&documents);
        for name in &self.names {
            if !texts().any(|text| occurs(name, text)) {
                wrong.push(format!("{question}: {name} occurs in no file of the row"));
            }
        }
        for (file, text) in &sources {
            if !self.names.iter().any(|name| occurs(name, text)) {
                wrong.push(format!("{question}: none of the names occurs in {file}"));
            }
        }
        wrong
    }
}

/// What stands between an opening and the next closing mark.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((inner, after)) = rest
        .split_once(open)
        .and_then(|(_, after)| after.split_once(close))
    {
        found.push(inner);
        rest = after;
    }
    found
}

/// The text of a file that exists below exactly one of [`BASES`].
fn read(root: &Path, file: &str) -> Option<String> {
    let paths = BASES.iter().map(|base| root.join(base).join(file));
    let found: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    let [path] = &found[..] else {
        return None;
    };
    fs::read_to_string(path).ok()
}

/// Whether a name stands in a text as a word of its own.
fn occurs(name: &str, text: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(row: &str) -> Vec<String> {
        Row::read(row).unwrap().check(&root())
    }

    #[test]
    fn the_tables_are_true_and_answer_many_questions() {
        step().unwrap();
        let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
        assert!(rows_in(&text).unwrap().len() >= 30);
    }

    #[test]
    fn a_file_that_is_not_there_is_told() {
        let row = "| q | `stream/attic.rs` | `Conn` |";
        let told = [
            "q: there is no file stream/attic.rs",
            "q: Conn occurs in no file of the row",
        ];
        assert_eq!(wrong(row), told);
    }

    #[test]
    fn a_name_that_has_gone_is_told() {
        let row = "| q | `xtask/src/rooms.rs` | `ORDER`, `CELLAR` |";
        assert_eq!(wrong(row), ["q: CELLAR occurs in no file of the row"]);
    }

    #[test]
    fn a_source_without_any_of_the_names_is_told_and_a_document_need_have_none() {
        let row =
            "| q | `xtask/src/rooms.rs`, `xtask/src/lint.rs`, [d](docs/faults.md) | `ORDER` |";
        let told = ["q: none of the names occurs in xtask/src/lint.rs"];
        assert_eq!(wrong(row), told);
    }

    #[test]
    fn a_part_of_a_word_is_no_name() {
        assert!(occurs("send", "fn send()") && occurs("send", "resend, send"));
        assert!(!occurs("send", "resend send_in sends"));
    }
}
