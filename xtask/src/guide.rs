//! The getting-started guide, as its reader follows it: each command is run, and prints what the guide shows.

use crate::build::{artifact, root};
use crate::process::{Job, reap_leftovers};
use crate::report::Report;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// Stands before the number of a command in what the commands print.
const MARK: char = '\u{1}';

/// A command, and the lines that it prints.
struct Shown {
    command: String,
    output: Vec<String>,
}

/// The task.
pub(crate) fn run() -> Result<bool> {
    let mut report = Report::new();
    report.step("getting started", step);
    reap_leftovers();
    Ok(report.finish())
}

/// The step: with what is built here, so without the commands that install it.
pub(crate) fn step() -> Result<String> {
    let guide = Guide::read(false)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let own = artifact("shunt");
    for program in ["shunt", "shuntd"].map(artifact) {
        ensure!(program.exists(), "{} is not built", program.display());
    }
    let own = own.parent().context("a directory")?;
    let mut command = Command::new("bash");
    command
        .args(["-c", &guide.script()])
        .env("PATH", format!("{}:{path}", own.display()));
    guide.replay(&mut command)
}

/// What the guide shows.
pub(crate) struct Guide(Vec<Shown>);

impl Guide {
    /// With or without what needs the package.
    pub(crate) fn read(package: bool) -> Result<Self> {
        let text = fs::read_to_string(root().join("docs/getting-started.md"))?;
        Ok(Self(shown(&text, package)))
    }

    /// One shell runs all commands; one that fails ends it.
    pub(crate) fn script(&self) -> String {
        let mut script = "set -e\n".to_owned();
        for (i, shown) in self.0.iter().enumerate() {
            script += &format!("printf '\\001%d\\n' {i}\n{}\n", shown.command);
        }
        script
    }

    /// Runs the command that runs the script, and compares what it prints.
    pub(crate) fn replay(&self, command: &mut Command) -> Result<String> {
        let directory = std::env::temp_dir();
        let name = format!("guide.{}", std::process::id());
        let mut job = Job::spawn(&name, &directory, command)?;
        let status = job.wait(LIMIT, &[]);
        let printed = job.output();
        job.kill(); // What it has left in the background.
        let _ = fs::remove_file(directory.join(format!("{name}.log")));
        let status = status.with_context(|| printed.clone())?;
        let parts: Vec<_> = printed.split(MARK).skip(1).collect();
        let all = &self.0;
        if parts.len() != all.len() || !status.success() {
            bail!(
                "{status} at command {} of {}:\n{printed}",
                parts.len(),
                all.len()
            );
        }
        for (shown, part) in all.iter().zip(parts) {
            let lines: Vec<_> = part.lines().skip(1).collect();
            let expected: Vec<_> = shown.output.iter().map(String::as_str).collect();
            if !is_like(&expected, &lines) {
                bail!(
                    "$ {}\nprints\n{}\nand not\n{}",
                    shown.command,
                    lines.join("\n"),
                    expected.join("\n")
                );
            }
        }
        Ok(format!("{} commands", all.len()))
    }
}

/// The commands of a guide: in its `console` blocks, behind a `$`; those of `console,package` need the package.
fn shown(text: &str, package: bool) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut is_console = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_console = line == "```console" || package && line == "```console,package";
        } else if is_console && let Some(command) = line.strip_prefix("$ ") {
            all.push(Shown {
                command: command.to_owned(),
                output: Vec::new(),
            });
        } else if is_console && let Some(last) = all.last_mut() {
            last.output.push(line.to_owned());
        }
    }
    all
}

/// Whether lines are as a guide shows them: `…` alone on a line is any number of lines, and in a line any
/// text.
fn is_like(expected: &[&str], lines: &[&str]) -> bool {
    let Some((first, rest)) = expected.split_first() else {
        return lines.is_empty();
    };
    if *first == "…" {
        return (0..=lines.len()).any(|skipped| is_like(rest, &lines[skipped..]));
    }
    match lines.split_first() {
        Some((line, others)) => is_line_like(first, line) && is_like(rest, others),
        None => false,
    }
}

fn is_line_like(expected: &str, line: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (expected, line) = (words(expected), words(line));
    let mut parts = expected.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_lines_are_read() {
        let text = "a\n```console\n$ b c\nd\ne\n$ f\n```\n$ g\n```sh\n$ h\n```\n```console,package\n$ i\n```\n";
        let read = |package| -> Vec<_> {
            let all = shown(text, package).into_iter();
            all.map(|s| (s.command, s.output.len())).collect()
        };
        let expected = [("b c", 2), ("f", 0), ("i", 0)].map(|(c, n)| (c.to_owned(), n));
        assert_eq!(read(true), expected);
        assert_eq!(read(false), expected[..2]);
    }

    #[test]
    fn an_ellipsis_is_any_text_or_any_lines() {
        for (expected, line) in [
            ("a", "a"),
            ("a … c", "a   b c"),
            ("…c", "abc"),
            ("a…", "a"),
            ("a…b…c", "a1b2c"),
        ] {
            assert!(is_line_like(expected, line), "{expected}");
        }
        for (expected, line) in [("a", "ab"), ("a…c", "abd"), ("b…", "ab"), ("a…b…c", "a1c")]
        {
            assert!(!is_line_like(expected, line), "{expected}");
        }
        assert!(is_like(&["a", "…", "d"], &["a", "b", "c", "d"]));
        assert!(is_like(&["…"], &[]) && is_like(&[], &[]));
        assert!(!is_like(&["a"], &[]) && !is_like(&["a", "…", "d"], &["a", "b"]));
    }
}
