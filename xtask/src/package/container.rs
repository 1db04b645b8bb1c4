//! A bare Debian 12 without a network, in which packages are tried.

use crate::image;
use crate::process::{Job, wait_until};
use crate::stats::Stats;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const IMAGE: &str = "shunt-trial";
/// What the trial needs beside the package: programs that talk, those of the guide, and what looks at pages and units.
const PACKAGES: &str = "python3 redis-server redis-tools man-db systemd";
/// Where its shared directory is inside.
pub(super) const SHARED: &str = "/trial";
const ECHO: &str = include_str!("../containers/echo.py");
/// The least share of bytes by ring: those before the connection has shown that it will live go by TCP.
const MOST: f64 = 0.95;
/// The time that a step inside may take.
const LIMIT: Duration = Duration::from_secs(60);

/// It ends with this value.
pub(super) struct Container {
    name: String,
    /// What it shares with this machine.
    shared: PathBuf,
}

impl Container {
    /// Makes the image, unless it is there.
    pub(super) fn prepare() -> Result<()> {
        image::prepare(IMAGE, PACKAGES)
    }

    /// Starts it, with these files in its shared directory.
    pub(super) fn start(directory: &Path, files: &[&Path]) -> Result<Self> {
        let shared = directory.join("trial");
        let _ = fs::remove_dir_all(&shared);
        fs::create_dir_all(&shared)?;
        fs::write(shared.join("echo.py"), ECHO)?;
        for file in files {
            fs::copy(file, shared.join(file.file_name().context("a name")?))?;
        }
        let name = format!("shunt-package.{}", std::process::id());
        let volume = format!("{}:{SHARED}", shared.display());
        let run = ["run", "--detach", "--rm", "--init", "--network", "none"];
        let rest = [
            "--volume", &volume, "--name", &name, IMAGE, "sleep", "infinity",
        ];
        ensure!(
            image::succeeds(&[&run[..], &rest].concat()),
            "docker run failed"
        );
        Ok(Self { name, shared })
    }

    /// A command inside.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(["exec", &self.name]).args(words);
        command
    }

    /// Runs a shell script inside, which must end well; what it printed.
    pub(super) fn shell(&self, script: &str) -> Result<String> {
        let output = self.command(&["sh", "-e", "-c", script]).output()?;
        let [said, complained] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        ensure!(
            output.status.success(),
            "`{script}`: {}\n{said}{complained}",
            output.status
        );
        Ok(said.into_owned())
    }

    /// Installs a package that lies in the shared directory.
    pub(super) fn install(&self, package: &Path) -> Result<String> {
        let file = package.file_name().context("a name")?.display();
        self.shell(&format!("dpkg --install {SHARED}/{file}"))
    }

    /// The names of all files inside, but for those that the kernel and the trial make.
    pub(super) fn files(&self) -> Result<Vec<String>> {
        let listed = self.shell(&format!(
            "find / -path /proc -prune -o -path /sys -prune -o -path /dev -prune \
             -o -path {SHARED} -prune -o -print | sort"
        ))?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Starts two programs by this `shunt`, which talk until they are told to stop.
    pub(super) fn talk(&self, shunt: &str) -> Result<Talk<'_>> {
        for file in ["server", "client", "enough"] {
            let _ = fs::remove_file(self.shared.join(file));
        }
        let start = |role: &str, words: &[&str]| {
            let stats = format!("{SHARED}/{role}");
            let echo = format!("{SHARED}/echo.py");
            let run = [shunt, "run", "--stats", &stats, "--", "python3", &echo];
            Job::spawn(
                role,
                &self.shared,
                &mut self.command(&[&run[..], words].concat()),
            )
        };
        let server = start("server", &["server", "7000", "key", "1"])?;
        wait_for(&server, "listening")?;
        let enough = format!("{SHARED}/enough");
        let client = start("client", &["lasting", "127.0.0.1", "7000", "key", &enough])?;
        wait_for(&client, "under way")?;
        Ok(Talk {
            container: self,
            jobs: [client, server],
        })
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        image::succeeds(&["rm", "--force", &self.name]);
    }
}

fn wait_for(job: &Job, word: &str) -> Result<()> {
    let said = wait_until(LIMIT, || job.output().contains(word));
    ensure!(said, "no {}: {}", job.name, job.tail());
    Ok(())
}

/// Two programs that talk, and check every byte.
pub(super) struct Talk<'a> {
    container: &'a Container,
    jobs: [Job; 2],
}

impl Talk<'_> {
    /// Has them end; both must have found all bytes right, and have moved most of them by ring.
    pub(super) fn finish(mut self) -> Result<String> {
        fs::write(self.container.shared.join("enough"), "")?;
        let mut shares = Vec::new();
        for job in &mut self.jobs {
            let status = job.wait(LIMIT, &[])?;
            ensure!(status.success(), "{}: {status}\n{}", job.name, job.tail());
            let stats = Stats::read(&self.container.shared.join(&job.name))?;
            ensure!(
                stats.ring_share() >= MOST,
                "{}: {}",
                job.name,
                stats.summary()
            );
            shares.push(format!("{} {:.2} %", job.name, 100.0 * stats.ring_share()));
        }
        Ok(format!("by ring: {}", shares.join(", ")))
    }
}
