//! The host's shuntd: the director starts it, kills it at random moments, and looks what the kernel keeps of it.

use crate::system::checked;
use rustix::process::Signal;
use shunt_harness::process::{signal, wait_until};
use std::fs::{self, File};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take to listen, and the kernel to forget what it had.
const PATIENCE: Duration = Duration::from_secs(20);

/// A `shuntd --system`.
pub(super) struct Daemon {
    program: PathBuf,
    directory: PathBuf,
    /// `None` between its death and the next start.
    child: Option<Child>,
    due: Instant,
    pub(super) kills: u64,
}

impl Daemon {
    /// Starts it with an empty configuration.
    pub(super) fn new(program: &Path, directory: &Path) -> Result<Self, String> {
        let mut daemon = Self {
            program: program.to_owned(),
            directory: directory.to_owned(),
            child: None,
            due: Instant::now(),
            kills: 0,
        };
        fs::write(daemon.directory.join("shunt.toml"), "").map_err(|error| error.to_string())?;
        daemon.start()?;
        Ok(daemon)
    }

    /// Its socket file.
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join("run/socket")
    }

    /// Its number, while it is there.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn is_there(&self) -> bool {
        self.child.is_some()
    }

    pub(super) fn start_if_due(&mut self) -> Result<(), String> {
        if Instant::now() >= self.due {
            self.start()?;
        }
        Ok(())
    }

    /// Starts it, unless it is there, and waits until it listens.
    pub(super) fn start(&mut self) -> Result<(), String> {
        if self.child.is_some() {
            return Ok(());
        }
        let log = self.directory.join("shuntd.log");
        let out = File::create(&log).map_err(|error| error.to_string())?;
        let child = Command::new(&self.program)
            .args(["--system", "--verbose", "--socket"])
            .arg(self.socket())
            .arg("--config")
            .arg(self.directory.join("shunt.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(out)
            .spawn()
            .map_err(|error| format!("start {}: {error}", self.program.display()))?;
        self.child = Some(child);
        let says = |text: &str| fs::read_to_string(&log).is_ok_and(|said| said.contains(text));
        if !wait_until(PATIENCE, || says("ends are paired by")) {
            let said = fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("shuntd does not listen: {said}"));
        }
        Ok(())
    }

    /// Kills it, and looks whether all that it had in the kernel for eBPF has gone with it. The next one starts after the
    /// pause.
    pub(super) fn kill(&mut self, pause: Duration) -> Result<(), String> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let objects = Object::of(child.id());
        signal(child.id(), Signal::KILL);
        let status = child.wait().map_err(|error| error.to_string())?;
        if std::os::unix::process::ExitStatusExt::signal(&status) != Some(libc::SIGKILL) {
            return Err(format!("shuntd ended by itself: {status}"));
        }
        if !wait_until(PATIENCE, || !objects.iter().any(Object::is_there)) {
            return Err(format!("the kernel keeps some of {objects:?}"));
        }
        self.kills += 1;
        self.due = Instant::now() + pause;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(child.id(), Signal::TERM);
            let _ = child.wait();
        }
    }
}

/// What a descriptor of eBPF's names, by a number of its kind.
#[derive(Debug, Clone, Copy)]
enum Object {
    Program(u32),
    Map(u32),
    Link(u32),
}

impl Object {
    /// Those of a process.
    fn of(pid: u32) -> Vec<Self> {
        let mut found = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            found.extend(text.lines().filter_map(Self::parse));
        }
        found
    }

    fn parse(line: &str) -> Option<Self> {
        let (name, number) = line.split_once(":\t")?;
        let number = number.trim().parse().ok()?;
        match name {
            "prog_id" => Some(Self::Program(number)),
            "map_id" => Some(Self::Map(number)),
            "link_id" => Some(Self::Link(number)),
            _ => None,
        }
    }

    /// Whether the kernel has it still (`bpf(2)`).
    fn is_there(&self) -> bool {
        const PROG_GET_FD_BY_ID: libc::c_long = 13;
        const MAP_GET_FD_BY_ID: libc::c_long = 14;
        const LINK_GET_FD_BY_ID: libc::c_long = 30;
        let (command, id) = match *self {
            Self::Program(id) => (PROG_GET_FD_BY_ID, id),
            Self::Map(id) => (MAP_GET_FD_BY_ID, id),
            Self::Link(id) => (LINK_GET_FD_BY_ID, id),
        };
        // The number, and two fields that are not used.
        let attributes = [id, 0, 0];
        // SAFETY: the kernel reads as many bytes of the attributes as it is told, and writes none.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                &raw const attributes,
                size_of_val(&attributes),
            )
        };
        let Ok(descriptor) = checked(libc::c_int::try_from(result).unwrap_or(-1)) else {
            return false;
        };
        // SAFETY: the kernel has just made it for us, and nobody else owns it.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Object;

    #[test]
    fn objects_are_read_from_descriptors() {
        let lines = ["pos:\t0", "map_type:\t9", "map_id:\t417", "prog_tag:\tabc"];
        let objects: Vec<Object> = lines.into_iter().filter_map(Object::parse).collect();
        assert!(matches!(objects[..], [Object::Map(417)]));
    }
}
