//! What is compared, and how the ends of each side are started.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use serde::Serialize;

/// A way to carry bytes between two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    /// The kernel's, on the loopback interface.
    Tcp,
    Unix,
    Pipe,
    /// Shunt's ring without Shunt: nothing between two processes can be faster
    /// that is built of it.
    Ring,
    /// TCP sockets under Shunt.
    Shunt,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Pipe => "pipe",
            Self::Ring => "ring",
            Self::Shunt => "shunt",
        }
    }
}

/// When `shunt run` is to move connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upgrade {
    Eager,
    Adaptive,
    /// As it is by default, and the sockets of short connections that are closed are used again (a test's switch).
    Again,
}

/// Where things are, and a directory for what a run leaves.
pub(crate) struct Lab {
    bench: PathBuf,
    shunt: PathBuf,
    pub(crate) directory: PathBuf,
    number: AtomicU64,
}

impl Lab {
    pub(crate) fn open() -> Result<Self> {
        let bench = std::env::current_exe()?;
        let shunt = std::env::var_os("SHUNT_BENCH_SHUNT").map(PathBuf::from);
        let beside = ["shunt", "../../bin/shunt"]
            .map(|name| bench.with_file_name(name))
            .into_iter()
            .find(|path| path.is_file());
        let shunt = shunt.or(beside).context("there is no shunt beside me")?;
        let directory = std::env::temp_dir().join(format!("shunt-bench.{}", std::process::id()));
        fs::create_dir(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        // Servers that give up root must still reach their files.
        fs::set_permissions(&directory, Permissions::from_mode(0o777))?;
        Ok(Self {
            bench,
            shunt,
            directory,
            number: AtomicU64::new(0),
        })
    }

    /// A path that nothing has used yet.
    pub(crate) fn fresh(&self, what: &str) -> PathBuf {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        self.directory.join(format!("{what}.{number}"))
    }

    /// This program as a stepper, natively or under Shunt. Statistics are only for those
    /// that are not compared with native ones: they cost something.
    pub(crate) fn stepper(&self, under: Option<(Upgrade, Option<&Path>)>) -> Command {
        let mut command = self.command(&self.bench, under);
        command.arg("stepper");
        command
    }

    /// A command natively, or under Shunt with its statistics in a file.
    pub(crate) fn command(
        &self,
        program: &Path,
        under: Option<(Upgrade, Option<&Path>)>,
    ) -> Command {
        let Some((upgrade, statistics)) = under else {
            let mut command = Command::new(program);
            command.env_remove("LD_PRELOAD");
            return command;
        };
        let mut command = Command::new(&self.shunt);
        command.arg("run");
        if let Some(file) = statistics {
            command.arg("--stats").arg(file);
        }
        command.arg(match upgrade {
            Upgrade::Eager => "--upgrade=eager",
            Upgrade::Adaptive | Upgrade::Again => "--upgrade=adaptive",
        });
        if upgrade == Upgrade::Again {
            command.env("SHUNT_RECYCLE", "1");
        }
        command.arg("--").arg(program);
        command
    }

    /// A worker, likewise.
    pub(crate) fn worker(&self, under: Option<(Upgrade, &Path)>) -> Command {
        let under = under.map(|(upgrade, file)| (upgrade, Some(file)));
        let mut command = self.command(&self.bench, under);
        command.arg("worker");
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
