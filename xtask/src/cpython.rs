//! CPython's own tests of networking and processes, natively and under Shunt: every single test
//! must have the same outcome.

use crate::build::{artifact, root};
use crate::netns;
use crate::process::{Job, reap_leftovers};
use crate::program::{PYTHON, script};
use crate::report::Report;
use crate::stats::Stats;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// All modules instead of those that take seconds
    #[arg(long)]
    pub(crate) full: bool,
    /// Run natively again even if the result is known
    #[arg(long)]
    fresh: bool,
    /// Compare native with native, to see which tests are unsteady by themselves
    #[arg(long)]
    native: bool,
    /// When connections are moved under Shunt, as in `shunt run --upgrade`; else eager
    #[arg(long)]
    upgrade: Option<String>,
    /// Only these modules
    modules: Vec<String>,
}

/// One of CPython's test modules.
#[derive(Clone, Copy)]
struct Module {
    name: &'static str,
    long: bool,
    connects: bool,
}

impl Module {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            long: false,
            connects: false,
        }
    }

    /// Takes more than seconds.
    const fn long(self) -> Self {
        Self { long: true, ..self }
    }

    /// Makes TCP connections, some of which must be shunted.
    const fn connects(self) -> Self {
        Self {
            connects: true,
            ..self
        }
    }
}

const MODULES: &[Module] = &[
    Module::new("test_select"),
    Module::new("test_selectors"),
    Module::new("test_poll"),
    Module::new("test_epoll").connects(),
    Module::new("test_socketserver").connects(),
    Module::new("test_ftplib").connects(),
    Module::new("test_smtplib").connects(),
    Module::new("test_httplib").connects(),
    Module::new("test_ssl").connects().long(),
    Module::new("test_socket").connects(),
    Module::new("test_asyncio").connects().long(),
    // Programs that are families of processes.
    Module::new("test_fork1"),
    Module::new("test_pty"),
    Module::new("test_os").connects(),
    Module::new("test_signal").long(),
    Module::new("test_subprocess").long(),
    Module::new("test_threading").long(),
    Module::new("test_multiprocessing_fork").connects().long(),
    Module::new("test_multiprocessing_spawn").connects().long(),
];

/// Test name to outcome; subtests of one name count together.
type Outcomes = BTreeMap<String, Vec<String>>;

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut report = Report::new();
    steps(&mut report, options)?;
    reap_leftovers();
    Ok(report.finish())
}

/// The steps, for `test` as well.
pub(crate) fn steps(report: &mut Report, options: &Options) -> Result<()> {
    let directory = root().join("target/cpython");
    fs::create_dir_all(&directory)?;
    let mut total = Stats::default();
    let modules: Vec<&str> = if options.modules.is_empty() {
        MODULES
            .iter()
            .filter(|module| options.full || !module.long)
            .map(|module| module.name)
            .collect()
    } else {
        options.modules.iter().map(String::as_str).collect()
    };
    for &module in &modules {
        report.step(&format!("cpython {module}"), || {
            let native = native(&directory, module, options.fresh)?;
            let mut stats = None;
            let second = if options.native {
                outcomes(&directory, module, Vec::new(), "again")?
            } else {
                let file = directory.join(format!("{module}.stats"));
                let _ = fs::remove_file(&file);
                let wrap = vec![
                    artifact("shunt").display().to_string(),
                    "run".into(),
                    format!(
                        "--upgrade={}",
                        options.upgrade.as_deref().unwrap_or("eager")
                    ),
                    "--stats".into(),
                    file.display().to_string(),
                    "--".into(),
                ];
                let result = outcomes(&directory, module, wrap, "shunt");
                let sums = Stats::read(&file)?;
                total += &sums;
                stats = Some(sums);
                result?
            };
            let count: usize = native.values().map(Vec::len).sum();
            let natively = compare(&native, &second)?;
            let failed = match natively.len() {
                0 => String::new(),
                _ => format!(", but failed natively only: {}", natively.join(", ")),
            };
            let detail = stats.map(|stats| stats.summary()).unwrap_or_default();
            Ok(format!(
                "{} tests equal{failed}; {detail}",
                count - natively.len()
            ))
        });
    }
    let connects = |name| MODULES.iter().any(|m| m.name == name && m.connects);
    if !options.native && modules.iter().any(|&name| connects(name)) {
        report.step("cpython: connections were shunted", || {
            if total.shunted == 0 {
                bail!("none was: {}", total.summary());
            }
            Ok(total.summary())
        });
    }
    Ok(())
}

/// Which tests have failed natively only: that says nothing of Shunt. (`test_storlines` of `test_ftplib` looks for what its server
/// may not have received yet.)
///
/// # Errors
/// Other tests have another outcome here.
fn compare(native: &Outcomes, second: &Outcomes) -> Result<Vec<String>> {
    let none = vec!["not run".to_owned()];
    let (mut natively, mut differences) = (Vec::new(), Vec::new());
    let names: std::collections::BTreeSet<&String> = native.keys().chain(second.keys()).collect();
    for name in names {
        let [a, b] = [native, second].map(|all| all.get(name).unwrap_or(&none).join("+"));
        match (&*a, &*b) {
            ("failure" | "error", "ok") => natively.push(name.clone()),
            (a, b) if a != b => differences.push(format!("{name}: native {a}, here {b}")),
            _ => {}
        }
    }
    if !differences.is_empty() {
        bail!(
            "{} tests differ\n    {}",
            differences.len(),
            differences.join("\n    ")
        );
    }
    Ok(natively)
}

/// The native result, from the last time if this interpreter gave one.
fn native(directory: &Path, module: &str, fresh: bool) -> Result<Outcomes> {
    let version = Command::new(PYTHON)
        .args(["-c", "import sys; print(sys.version, end='')"])
        .output()?;
    let place = if netns::private() {
        "own network namespace"
    } else {
        "host"
    };
    let key = format!(
        "{}; {place}\n",
        String::from_utf8_lossy(&version.stdout).replace('\n', " ")
    );
    let cache = directory.join(format!("{module}.native"));
    if !fresh
        && let Ok(text) = fs::read_to_string(&cache)
        && let Some(rest) = text.strip_prefix(&key)
    {
        return Ok(parse(rest));
    }
    let result = outcomes(directory, module, Vec::new(), "native")?;
    let text = fs::read_to_string(results_file(directory, module, "native"))?;
    fs::write(cache, key + &text)?;
    Ok(result)
}

fn results_file(directory: &Path, module: &str, variant: &str) -> PathBuf {
    directory.join(format!("{module}.{variant}.results"))
}

/// Runs one module and returns what each of its tests gave.
fn outcomes(
    directory: &Path,
    module: &str,
    mut words: Vec<String>,
    variant: &str,
) -> Result<Outcomes> {
    let work = std::env::temp_dir().join(format!("shunt-cpython.{}", std::process::id()));
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work)?;
    let xml = directory.join(format!("{module}.{variant}.xml"));
    let _ = fs::remove_file(&xml);
    words.extend(
        [
            PYTHON,
            "-m",
            "test",
            "-v",
            "--timeout",
            "500",
            "-i",
            "*VSOCK*",
        ]
        .map(String::from),
    );
    if module == "test_socketserver" {
        // The resource only opens the gate: its tests stay on loopback.
        words.extend(["-u", "network"].map(String::from));
    }
    words.extend([
        "--junit-xml".into(),
        xml.display().to_string(),
        module.into(),
    ]);
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .current_dir(&work)
        .env("LC_ALL", "C.UTF-8");
    let mut job = Job::spawn(&format!("{module}.{variant}"), directory, &mut command)?;
    let status = job.wait(Duration::from_secs(600), &[]);
    let _ = fs::remove_dir_all(&work);
    let status = status?;
    if !xml.exists() {
        bail!(
            "{module} ({variant}) left no results ({status}); see target/cpython\n{}",
            job.tail()
        );
    }
    let text = Command::new(PYTHON)
        .arg(script("cpython_results.py"))
        .arg(&xml)
        .output()
        .context("results")?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    fs::write(results_file(directory, module, variant), &text)?;
    let outcomes = parse(&text);
    if outcomes.is_empty() {
        bail!(
            "{module} ({variant}) ran no test ({status}); see target/cpython\n{}",
            job.tail()
        );
    }
    Ok(outcomes)
}

fn parse(text: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for (name, outcome) in text.lines().filter_map(|line| line.split_once('\t')) {
        outcomes
            .entry(name.to_owned())
            .or_default()
            .push(outcome.to_owned());
    }
    for list in outcomes.values_mut() {
        list.sort();
    }
    outcomes
}
