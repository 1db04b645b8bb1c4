//! `shunt why` names the true reason: programs that cannot be shunted, each for another one, and what is
//! said of their connections.

mod case;

use crate::build::{artifact, root};
use crate::process::{Job, check, wait_until};
use crate::report::Report;
use anyhow::{Context, Result, bail};
use case::{CASES, Case, Place};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(15);

/// The task.
pub(crate) fn run() -> Result<bool> {
    Report::of(steps)
}

/// One step for each case.
pub(crate) fn steps(report: &mut Report) -> Result<()> {
    let room = Room::new()?;
    for case in CASES {
        let name = format!("why / {}", case.name);
        if let Some(reason) = room.lacks(case) {
            report.skip(&name, reason);
            continue;
        }
        report.step(&name, || room.try_case(case));
    }
    Ok(())
}

/// A directory with the programs.
struct Room(PathBuf);

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Room {
    fn new() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("shunt-why.{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
        let room = Self(directory);
        let builds: [(&str, &[&str]); 3] = [
            ("peer", &[]),
            ("peer-static", &["-static"]),
            ("peer-go", &["-DGO"]),
        ];
        for (name, options) in builds {
            let mut command = Command::new("cc");
            command
                .args(["-O1", "-Wall", "-Wextra", "-o"])
                .arg(room.file(name));
            check(command.arg(root().join("tests/why/peer.c")).args(options))?;
        }
        // Root's, for everybody else.
        fs::copy(room.file("peer"), room.file("peer-setuid"))?;
        fs::set_permissions(room.file("peer-setuid"), fs::Permissions::from_mode(0o4755))?;
        Ok(room)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What this machine has not that the case needs.
    fn lacks(&self, case: &Case) -> Option<&'static str> {
        match case.needs {
            Some((command, reason)) => {
                let tried = Command::new("sh").args(["-c", command]).output();
                (!tried.is_ok_and(|out| out.status.success())).then_some(reason)
            }
            None => None,
        }
    }

    fn try_case(&self, case: &Case) -> Result<String> {
        let place = Place::new(case, &self.0)?;
        let ends = self.start(&place, case)?;
        let (address, port) = (place.address(), ends.port);
        let about = match case.about {
            case::About::Connection => format!("{address}:{port}"),
            case::About::Server => ends.server.job.pid().to_string(),
        };
        // What is said may be provisional at first.
        let mut said = String::new();
        let is_right = wait_until(LIMIT, || {
            let output = place.shunt().args(["why", &about]).output();
            said = output.map_or_else(
                |error| error.to_string(),
                |out| String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned(),
            );
            case.said.iter().all(|part| said.contains(part))
        });
        // A client without a server would end by itself.
        ends.client.stop()?;
        ends.server.stop()?;
        if !is_right {
            bail!("`shunt why {about}` does not say {:?}:\n{said}", case.said);
        }
        Ok(String::new())
    }

    /// Starts both ends.
    fn start(&self, place: &Place, case: &Case) -> Result<Ends> {
        let mut server = place.command(true, self.words(case.server));
        let address = place.address();
        let server = Started::new("why-server", &self.0, server.args(["listen", address]))?;
        let port = server.line(|text| text.lines().find_map(|line| line.parse::<u16>().ok()))?;
        let mut client = place.command(false, self.words(case.client));
        client.args(["connect", address, &port.to_string(), case.how]);
        let client = Started::new("why-client", &self.0, &mut client)?;
        client.line(|text| text.contains("ready").then_some(()))?;
        Ok(Ends {
            client,
            server,
            port,
        })
    }

    /// The words that start one end.
    fn words(&self, words: &[&str]) -> Vec<PathBuf> {
        let known = |word: &&str| match *word {
            "shunt" => artifact("shunt"),
            name if name.starts_with("peer") => self.file(name),
            other => PathBuf::from(other),
        };
        words.iter().map(known).collect()
    }
}

/// Two programs with a connection.
struct Ends {
    client: Started,
    server: Started,
    port: u16,
}

/// Two programs that talk through shared memory as long as this lives, two minutes at most.
pub(crate) struct Pair {
    ends: Ends,
    _room: Room,
}

impl Pair {
    pub(crate) fn new() -> Result<Self> {
        let room = Room::new()?;
        let place = Place::new(&case::BOTH, &room.0)?;
        let ends = room.start(&place, &case::BOTH)?;
        Ok(Self { ends, _room: room })
    }

    /// Where the server is.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ends.port)
    }
}

/// A program that goes on until it is stopped.
struct Started {
    job: Job,
}

impl Started {
    fn new(name: &str, directory: &Path, command: &mut Command) -> Result<Self> {
        let job = Job::spawn(name, directory, command)?;
        Ok(Self { job })
    }

    /// What `find` makes of its output, once it does.
    fn line<T>(&self, find: impl Fn(&str) -> Option<T>) -> Result<T> {
        let mut found = None;
        wait_until(LIMIT, || {
            found = find(&self.job.output());
            found.is_some()
        });
        found.with_context(|| format!("it does not say what it should:\n{}", self.job.tail()))
    }

    fn stop(self) -> Result<()> {
        self.job.stop(Signal::KILL).map(drop)
    }
}
