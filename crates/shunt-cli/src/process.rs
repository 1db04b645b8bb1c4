//! What can be seen of a process that tells whether its connections can be shunted.

mod mapped;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use shunt_abi::PROTOCOL;

use crate::run::program::{self, Obstacle};
use mapped::Library;

/// One thing that is so, and what to do if it should be otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) what: String,
    pub(crate) advice: Option<String>,
}

impl Finding {
    fn new(what: impl Into<String>, advice: Option<&str>) -> Self {
        Self {
            what: what.into(),
            advice: advice.map(str::to_owned),
        }
    }
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) comm: String,
    library: Library,
    /// The kernel has told its loader to preload nothing (`AT_SECURE`, `getauxval(3)`).
    is_secure: bool,
    obstacle: Option<Obstacle>,
    /// It was started with libshunt.so in `LD_PRELOAD`.
    was_told: bool,
    /// It was started with `--upgrade=off`.
    is_off: bool,
    /// It has an io_uring.
    has_ring: bool,
    /// Its parent has still to collect it (`wait(2)`).
    has_ended: bool,
}

impl Process {
    /// What can be seen of this process, if there is one.
    pub(crate) fn look(pid: u32) -> Option<Self> {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let comm = fs::read(directory.join("comm")).ok()?;
        let environment = fs::read(directory.join("environ")).unwrap_or_default();
        let variables = || environment.split(|byte| *byte == 0);
        let preloads = |variable: &[u8]| {
            variable.starts_with(b"LD_PRELOAD=") && contains(variable, b"libshunt")
        };
        Some(Self {
            pid,
            comm: String::from_utf8_lossy(&comm).trim_end().to_owned(),
            library: Library::of(&directory),
            is_secure: fs::read(directory.join("auxv")).is_ok_and(|auxv| is_secure(&auxv)),
            obstacle: program::obstacle(&directory.join("exe")),
            was_told: variables().any(preloads),
            is_off: variables().any(|variable| variable == b"SHUNT_UPGRADE=off"),
            has_ring: has_ring(&directory.join("fd")),
            has_ended: has_ended(pid),
        })
    }

    /// Whether it can have connections in shared memory.
    pub(crate) fn is_under_shunt(&self) -> bool {
        let version = u32::from(PROTOCOL);
        let is_ours = match self.library {
            Library::Loaded(found) => found.is_none_or(|found| found == version),
            Library::Replaced(found) => found == Some(version),
            Library::Missing | Library::Unknown => false,
        };
        is_ours && self.obstacle != Some(Obstacle::Go) && !self.is_off
    }

    /// What decides about all its connections.
    pub(crate) fn finding(&self) -> Finding {
        let obstacle = self.obstacle.filter(|obstacle| {
            // The rights that count are those with which it was started.
            !matches!(obstacle, Obstacle::SetId | Obstacle::Capable)
        });
        if self.has_ended {
            return Finding::new(
                "has ended, and its parent has not collected it yet",
                Some("name a process that runs: this one has no connections any more"),
            );
        }
        match (self.library, obstacle) {
            (_, Some(Obstacle::Go)) => Finding::new(
                "is a Go program, which calls the kernel past libc, so it uses plain TCP",
                None,
            ),
            (Library::Unknown, _) => Finding::new(
                "cannot be looked at from here",
                Some("ask as its user, or as root"),
            ),
            (Library::Loaded(Some(version)) | Library::Replaced(Some(version)), _)
                if version != u32::from(PROTOCOL) =>
            {
                let what =
                    format!("speaks version {version} of Shunt's protocol, and this is {PROTOCOL}");
                Finding::new(what, Some(AGAIN))
            }
            (Library::Replaced(None), _) => Finding::new(
                "has a libshunt.so that has been replaced since, and may be of another version",
                Some(AGAIN),
            ),
            (Library::Loaded(_) | Library::Replaced(_), _) if self.is_off => Finding::new(
                "runs under Shunt with upgrades switched off",
                Some("start it again without --upgrade=off (SHUNT_UPGRADE)"),
            ),
            (Library::Loaded(_), _) => Finding::new("runs under Shunt", None),
            (Library::Replaced(_), _) => Finding::new(
                "runs under Shunt, with a libshunt.so of this protocol that has been replaced since",
                None,
            ),
            (Library::Missing, Some(obstacle)) => {
                let text = obstacle.to_string();
                let what = text.split_once(':').map_or(&*text, |(what, _)| what);
                Finding::new(format!("{what}, so it uses plain TCP"), None)
            }
            (Library::Missing, None) if self.is_secure => Finding::new(
                "was started with more rights than its user has (setuid, setgid or file capabilities), \
                 so it uses plain TCP",
                Some("start it as the user whose rights it takes"),
            ),
            (Library::Missing, None) if self.was_told => Finding::new(
                "was to load libshunt.so and has not: it could not read the file",
                Some("install Shunt where its user can read it, and start the program again"),
            ),
            (Library::Missing, None) => Finding::new(
                "does not run under Shunt",
                Some(
                    "start it by `shunt run`; whatever cleans its environment, such as sudo or a service \
                     manager, comes before that",
                ),
            ),
        }
    }

    /// What decides about some of its connections.
    pub(crate) fn remark(&self) -> Option<Finding> {
        let text = "has an io_uring: connections that it uses there stay on TCP";
        self.has_ring.then(|| {
            Finding::new(
                text,
                Some("`shunt run --io-uring=deny`, if it can do without"),
            )
        })
    }
}

const AGAIN: &str = "start it again, so that it loads the libshunt.so that is installed now";

/// The state of a process, as a letter (`proc_pid_stat(5)`).
pub(crate) fn state(pid: u32) -> Option<u8> {
    let mut text = [0; 512];
    let length = fs::File::open(format!("/proc/{pid}/stat"))
        .and_then(|mut file| file.read(&mut text))
        .ok()?;
    // The name before it is in parentheses and may contain some.
    let at = text[..length].windows(3).rfind(|at| at.starts_with(b") "));
    at.map(|at| at[2])
}

/// Whether all threads of a process have ended: of a first one that has ended alone the state is the same.
fn has_ended(pid: u32) -> bool {
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    matches!(state(pid), Some(b'Z' | b'X')) && threads() <= 1
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Pairs of words, up to a zero type (`elf(5)`, `Elf64_auxv_t`).
fn is_secure(auxv: &[u8]) -> bool {
    const AT_SECURE: u64 = 23;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    let mut pairs = auxv.chunks_exact(16);
    pairs.any(|pair| word(&pair[..8]) == AT_SECURE && word(&pair[8..]) != 0)
}

fn has_ring(descriptors: &Path) -> bool {
    let Ok(entries) = fs::read_dir(descriptors) else {
        return false;
    };
    let mut targets = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.any(|target| target == Path::new("anon_inode:[io_uring]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(library: Library) -> Process {
        Process {
            pid: 7,
            comm: "redis".into(),
            library,
            is_secure: false,
            obstacle: None,
            was_told: false,
            is_off: false,
            has_ring: false,
            has_ended: false,
        }
    }

    #[test]
    fn this_process_does_not_run_under_shunt() {
        let found = Process::look(std::process::id()).unwrap();
        assert!(!found.is_under_shunt(), "{found:?}");
        assert_eq!(found.finding().what, "does not run under Shunt");
        assert_eq!(found.remark(), None);
        assert!(Process::look(0).is_none());
    }

    /// A process, whether it can be shunted, and what is said of it.
    type Case = (Library, fn(&mut Process), bool, &'static str);

    #[test]
    fn each_obstacle_has_its_sentence() {
        let loaded = Library::Loaded(Some(PROTOCOL.into()));
        let with = |library, change: fn(&mut Process)| {
            let mut process = process(library);
            change(&mut process);
            (process.is_under_shunt(), process.finding().what)
        };
        let replaced = Library::Replaced;
        let cases: [Case; 12] = [
            (loaded, |_| (), true, "runs under Shunt"),
            (Library::Loaded(None), |_| (), true, "runs under Shunt"),
            (Library::Loaded(Some(1)), |_| (), false, "speaks version 1"),
            (
                replaced(Some(PROTOCOL.into())),
                |_| (),
                true,
                "that has been replaced",
            ),
            (replaced(Some(1)), |_| (), false, "speaks version 1"),
            (replaced(None), |_| (), false, "may be of another version"),
            (loaded, |p| p.is_off = true, false, "switched off"),
            (
                loaded,
                |p| p.obstacle = Some(Obstacle::Go),
                false,
                "Go program",
            ),
            (
                Library::Missing,
                |p| p.obstacle = Some(Obstacle::Static),
                false,
                "statically linked",
            ),
            (
                Library::Missing,
                |p| p.is_secure = true,
                false,
                "more rights",
            ),
            (
                Library::Missing,
                |p| p.was_told = true,
                false,
                "could not read the file",
            ),
            (Library::Unknown, |_| (), false, "cannot be looked at"),
        ];
        for (library, change, shunted, text) in cases {
            let (is_under_shunt, what) = with(library, change);
            assert!(what.contains(text), "{what}: {text}");
            assert_eq!(is_under_shunt, shunted, "{text}");
        }
    }

    #[test]
    fn the_loader_is_told_by_the_auxiliary_vector() {
        let vector = |pairs: &[[u64; 2]]| -> Vec<u8> {
            let words = pairs.iter().flatten();
            words.flat_map(|word| word.to_ne_bytes()).collect()
        };
        assert!(is_secure(&vector(&[[3, 23], [23, 1], [0, 0]])));
        assert!(!is_secure(&vector(&[[3, 23], [23, 0], [0, 0]])));
        assert!(!is_secure(&[1, 2, 3]));
    }
}
