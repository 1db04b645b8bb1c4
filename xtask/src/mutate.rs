//! `cargo xtask mutate`: faults that are put into the path machine (decision 14), one at a time and in a copy of its crate. One of its
//! checks must catch each: its unit tests, or the models under shuttle or loom.

mod table;

use crate::build::{cargo, root};
use crate::process::{Job, check, wait_until};
use crate::progress;
use crate::report::Report;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use table::{MUTATIONS, Mutation};

/// A check that takes longer does not end: without a fault each is done in a tenth of that.
const LIMIT: Duration = Duration::from_secs(180);

/// Where the machine stands.
const SOURCES: &str = "crates/shunt-shm/src/path";

/// What the copy has of the repository.
const COPIED: [&str; 4] = [
    "Cargo.toml",
    "Cargo.lock",
    "crates/shunt-abi",
    "crates/shunt-shm",
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these, by their numbers in the table
    #[arg(long, value_delimiter = ',')]
    only: Vec<usize>,
}

/// A check of the path machine. `checker`: the model checker under which it runs; `None`: the unit tests, which have no models.
struct Check {
    name: &'static str,
    checker: Option<&'static str>,
}

/// The one that costs least comes first.
const CHECKS: [Check; 3] = [
    Check {
        name: "unit tests",
        checker: None,
    },
    Check {
        name: "shuttle",
        checker: Some("shuttle"),
    },
    Check {
        name: "loom",
        checker: Some("loom"),
    },
];

/// What a check has found.
enum Found {
    Nothing,
    /// These tests failed, or what the whole of them ended with.
    Fault(String),
    NoEnd,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let numbers = 1..=MUTATIONS.len();
    if let Some(wrong) = options.only.iter().find(|only| !numbers.contains(*only)) {
        bail!(
            "there is no mutation {wrong}, only 1 to {}",
            MUTATIONS.len()
        );
    }
    for mutation in MUTATIONS {
        mutation.applied(&root())?;
    }
    let copy = copy()?;
    let mut rows = Vec::new();
    let good = Report::of(|report| {
        for check in &CHECKS {
            if !report.step(&format!("no mutation, {}", check.name), || {
                check.passes(&copy)
            }) {
                return Ok(());
            }
        }
        for (number, mutation) in numbers.zip(MUTATIONS) {
            if options.only.is_empty() || options.only.contains(&number) {
                report.step(&format!("{number}. {}", mutation.fault), || {
                    let caught = mutation.caught_by(number, &copy)?;
                    rows.push(format!("| {number} | {} | {caught} |", mutation.fault));
                    Ok(caught.replace(" | ", ", "))
                });
            }
        }
        Ok(())
    })?;
    for row in rows {
        println!("{row}");
    }
    Ok(good)
}

/// Copies what the checks need to a workspace of its own.
fn copy() -> Result<PathBuf> {
    let copy = root().join("target/mutate/copy");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    fs::create_dir_all(&copy)?;
    let mut command = Command::new("cp");
    command.args(["-r", "--parents"]).args(COPIED).arg(&copy);
    check(command.current_dir(root()))?;
    let manifest = copy.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    fs::write(
        &manifest,
        replaced(&text, ", \"xtask\"]", "]").context("Cargo.toml")?,
    )?;
    Ok(copy)
}

/// The text with one part replaced, which must stand there exactly once.
fn replaced(text: &str, from: &str, to: &str) -> Result<String> {
    match text.matches(from).count() {
        1 => Ok(text.replacen(from, to, 1)),
        times => bail!("this stands there {times} times, not once:\n{from}"),
    }
}

impl Mutation {
    fn path(&self, tree: &Path) -> PathBuf {
        tree.join(SOURCES).join(self.file)
    }

    /// The source with the fault in it, made of the one in that tree.
    fn applied(&self, tree: &Path) -> Result<String> {
        let path = self.path(tree);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        replaced(&text, self.from, self.to)
            .with_context(|| format!("{}: {}", self.file, self.fault))
    }

    /// Which check catches it, and in how many seconds, as two cells of a table.
    fn caught_by(&self, number: usize, copy: &Path) -> Result<String> {
        let path = self.path(copy);
        let whole = fs::read_to_string(&path)?;
        fs::write(&path, self.applied(copy)?)?;
        let caught = Self::find(number, copy);
        fs::write(&path, whole)?;
        caught
    }

    fn find(number: usize, copy: &Path) -> Result<String> {
        for check in &CHECKS {
            let log = format!("{number}-{}", check.directory());
            let (found, seconds) = check.run(&log, copy)?;
            let how = match found {
                Found::Nothing => continue,
                Found::Fault(how) => how,
                Found::NoEnd => "it does not end".to_owned(),
            };
            return Ok(format!("{}: {how} | {seconds:.1} s", check.name));
        }
        bail!("nothing has caught it");
    }
}

impl Check {
    /// Where its artifacts go.
    fn directory(&self) -> &'static str {
        self.checker.unwrap_or("unit")
    }

    fn command(&self, copy: &Path) -> Command {
        let target = root().join("target/mutate").join(self.directory());
        let mut command = cargo();
        command
            .current_dir(copy)
            .args(["test", "-p", "shunt-shm", "--lib", "--quiet"])
            .arg("--target-dir")
            .arg(target);
        if let Some(checker) = self.checker {
            command
                .arg("--release")
                // It is built for each mutation.
                .env("CARGO_PROFILE_RELEASE_LTO", "off")
                .env("CARGO_INCREMENTAL", "1")
                .env("RUSTFLAGS", format!("--cfg model --cfg {checker}"));
        }
        command
    }

    /// Builds it, runs it, and says what it has found, and how long that took without the build.
    fn run(&self, log: &str, copy: &Path) -> Result<(Found, f64)> {
        // What does not compile is no fault that a check could find.
        progress::run(self.command(copy).arg("--no-run")).context("it does not compile")?;
        let started = Instant::now();
        let mut command = self.command(copy);
        command.args(["path::", "--", "--nocapture"]);
        let mut job = Job::spawn(log, &root().join("target/mutate"), &mut command)?;
        let has_ended = wait_until(LIMIT, || !matches!(job.finished(), Ok(None)));
        let seconds = started.elapsed().as_secs_f64();
        let found = match job.finished()? {
            _ if !has_ended => Found::NoEnd,
            Some(status) if status.success() => Found::Nothing,
            status => {
                let ended = || status.map_or_else(String::new, |status| status.to_string());
                Found::Fault(failed_tests(&job.output()).unwrap_or_else(ended))
            }
        };
        Ok((found, seconds))
    }

    /// That it finds nothing in the machine as it is; what it says of the states that it has visited, or the orders of steps.
    fn passes(&self, copy: &Path) -> Result<String> {
        let log = format!("0-{}", self.directory());
        match self.run(&log, copy)? {
            (Found::Nothing, _) => {}
            (Found::Fault(how), _) => bail!("{how}; see target/mutate/{log}.log"),
            (Found::NoEnd, _) => bail!("it does not end within {} s", LIMIT.as_secs()),
        }
        let output = fs::read_to_string(root().join(format!("target/mutate/{log}.log")))?;
        let counts = output.lines().filter(|line| {
            [" states", " orders"]
                .iter()
                .any(|count| line.contains(count))
        });
        let counts: Vec<_> = counts.map(|line| line.trim_start_matches('.')).collect();
        Ok(counts.join("; "))
    }
}

/// The first test of which the end of the output says that it failed, and how many others did.
fn failed_tests(output: &str) -> Option<String> {
    let (_, list) = output.rsplit_once("\nfailures:\n")?;
    let names = list.lines().map_while(|line| line.strip_prefix("    "));
    let names: Vec<_> = names.collect();
    let name = names.first()?.rsplit("::").next()?;
    Some(match names.len() - 1 {
        0 => format!("`{name}`"),
        others => format!("`{name}` and {others} more"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mutation_names_a_text_that_stands_once_in_the_machine() {
        for mutation in MUTATIONS {
            let text = fs::read_to_string(mutation.path(&root())).unwrap();
            assert_ne!(mutation.applied(&root()).unwrap(), text);
        }
    }

    #[test]
    fn a_text_that_is_not_there_or_twice_is_an_error() {
        assert_eq!(replaced("a b", "b", "c").unwrap(), "a c");
        assert!(replaced("a b", "c", "d").is_err() && replaced("b b", "b", "c").is_err());
    }

    #[test]
    fn the_tests_that_failed_are_named_at_the_end() {
        let output = "x\nfailures:\n    path::a::one\n    path::two\n\ntest result: FAILED.\n";
        assert_eq!(failed_tests(output).unwrap(), "`one` and 1 more");
        let output = "x\nfailures:\n    path::a::one\n\n";
        assert_eq!(failed_tests(output).unwrap(), "`one`");
        assert_eq!(failed_tests("aborted"), None);
    }
}
