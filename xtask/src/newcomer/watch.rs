//! Runs a script and writes down, section by section, what it said, how long it took
//! and how long it was silent.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What stands between two lines that begin with [`MARK`].
pub(super) struct Section {
    pub(super) name: String,
    pub(super) lines: Vec<String>,
    pub(super) status: Option<i32>,
    pub(super) cpu: String,
    pub(super) took: Duration,
    pub(super) silence: Duration,
}

const MARK: &str = "== ";

/// Runs it, its output shown as well.
pub(super) fn run(command: &mut Command) -> Result<Vec<Section>> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("start {:?}", command.get_program()))?;
    // Our copies of the writing end, or the end of the output never comes.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut sections: Vec<Section> = Vec::new();
    let (mut began, mut last) = (Instant::now(), Instant::now());
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        let now = Instant::now();
        if let Some(section) = sections
            .last_mut()
            .filter(|section| section.status.is_none())
        {
            section.silence = section.silence.max(now - last);
            section.took = now - began;
        }
        last = now;
        let mark = line.strip_prefix(MARK);
        match (mark, sections.last_mut()) {
            (Some(mark), Some(section)) if mark.starts_with("status ") => {
                section.status = mark[7..].parse().ok();
            }
            (Some(mark), Some(section)) if mark.starts_with("cpu ") => {
                mark[4..].clone_into(&mut section.cpu);
            }
            (Some(name), _) => {
                began = now;
                sections.push(Section {
                    name: name.to_owned(),
                    lines: Vec::new(),
                    status: None,
                    cpu: String::new(),
                    took: Duration::ZERO,
                    silence: Duration::ZERO,
                });
            }
            (None, Some(section)) => section.lines.push(line),
            (None, None) => {}
        }
    }
    child.wait()?;
    Ok(sections)
}
