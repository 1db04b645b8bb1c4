//! Where in the sources a call is made, from its address and its caller's.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::call::{self, Call, Span};

/// A function that makes one kind of call, at one place or more.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) call: &'static Call,
    /// `crate/file.rs function`.
    pub(crate) name: String,
    /// How `shunt-refuse` names the calls.
    pub(crate) keys: Vec<String>,
    /// How often they were met.
    pub(crate) times: u64,
}

/// Where all calls of a kind are meant.
const EVERYWHERE: &str = "everywhere";

/// Calls that the library makes for the program, so that what the kernel says is the program's to
/// hear: its bytes move there, or it has asked for just that.
const THE_PROGRAMS: [(&str, &str); 18] = [
    ("recvmsg", "engine/io/"),
    ("recvmsg", "engine/stream/recv"),
    ("recvfrom", "engine/stream/recv"),
    ("sendmsg", "engine/io/"),
    ("sendmsg", "engine/stream/send"),
    ("sendmsg", "engine/thread/sleep.rs"),
    ("sendto", "engine/stream/send"),
    ("read", "engine/stream/transfer"),
    ("pread64", "engine/stream/transfer"),
    ("preadv2", "engine/stream/transfer"),
    ("pwritev2", "engine/stream/transfer"),
    ("fcntl F_DUPFD", "engine/life/mode.rs"),
    ("epoll_ctl EPOLL_CTL_ADD", "engine/epoll/nested.rs"),
    ("epoll_ctl EPOLL_CTL_ADD", "engine/epoll/register.rs"),
    // Counters (`eventfd(2)`) that never fill.
    ("read", "engine/epoll/"),
    ("write", "engine/epoll/"),
    ("read", "shuntd/daemon"),
    ("write", "shuntd/daemon"),
];

impl Place {
    /// Whether there is nothing to be tried.
    pub(crate) fn is_left_out(&self) -> bool {
        let is_it =
            |&(call, file): &(&str, &str)| call == self.call.name && self.name.starts_with(file);
        THE_PROGRAMS.iter().any(is_it)
    }

    /// The refusals that are tried here alone.
    pub(crate) fn at_a_place(&self) -> impl Iterator<Item = (i32, Span)> {
        self.call.at_a_place().filter(|_| self.name != EVERYWHERE)
    }

    /// Those that are tried here, if it is all places together.
    pub(crate) fn everywhere(&self) -> impl Iterator<Item = i32> {
        self.call.everywhere().filter(|_| self.name == EVERYWHERE)
    }
}

/// A function, inlined or not, and the file that it is in.
type Frame = (String, String);

/// Functions by address, as debugging information tells them.
pub(crate) struct Symbols {
    file: PathBuf,
    frames: HashMap<u64, Vec<Frame>>,
}

impl Symbols {
    pub(crate) fn of(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            frames: HashMap::new(),
        }
    }

    /// What a log of `shunt-refuse` tells of, sorted. Calls that are the program's own, only handed on by the
    /// library, are left out.
    pub(crate) fn places(&mut self, log: &str) -> Result<Vec<Place>> {
        let mut met = Vec::new();
        for line in log.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [number, argument, address, caller, times] = words[..] else {
                bail!("{line:?} is no line of a log");
            };
            let hex = |word| u64::from_str_radix(word, 16);
            let kind = call::find(number.parse()?, argument.parse()?);
            if let Some(kind) = kind {
                met.push((
                    kind,
                    number,
                    argument,
                    hex(address)?,
                    hex(caller)?,
                    times.parse::<u64>()?,
                ));
            }
        }
        self.learn(
            met.iter()
                .flat_map(|&(.., address, caller, _)| [address, caller.saturating_sub(1)]),
        )?;
        let mut places: BTreeMap<(&str, String), Place> = BTreeMap::new();
        for (kind, number, argument, address, caller, times) in met {
            let Some((name, told_by_caller)) = self.name(address, caller) else {
                continue;
            };
            let caller = if told_by_caller { caller } else { 0 };
            let key = format!("{number} {argument} {address:x} {caller:x}");
            let by_tcp = kind.name == "sendto" && name.starts_with("engine/stream/");
            let kind = if by_tcp { &call::BY_TCP } else { kind };
            for name in [name, EVERYWHERE.to_owned()] {
                add(&mut places, kind, name, &key, times);
            }
        }
        Ok(places.into_values().collect())
    }

    /// The function, and whether only the caller tells which it is; `None`: it is not ours.
    fn name(&self, address: u64, caller: u64) -> Option<(String, bool)> {
        let here = self.frames.get(&address).filter(|_| address != 0);
        if let Some(name) = here.and_then(|frames| function(frames)) {
            return name.map(|name| (name, false));
        }
        let there = self
            .frames
            .get(&caller.saturating_sub(1))
            .filter(|_| caller != 0);
        if let Some(name) = there.and_then(|frames| function(frames)) {
            return name.map(|name| (name, true));
        }
        // Not even its caller has a name of its own.
        let (name, _) = here?.first()?;
        Some((short(name).to_owned(), false))
    }

    fn learn(&mut self, addresses: impl Iterator<Item = u64>) -> Result<()> {
        let mut new: Vec<u64> = addresses
            .filter(|a| *a != 0 && !self.frames.contains_key(a))
            .collect();
        new.sort_unstable();
        new.dedup();
        if new.is_empty() {
            return Ok(());
        }
        let words: Vec<String> = new.iter().map(|address| format!("{address:x}")).collect();
        let output = Command::new("addr2line")
            .args(["-a", "-f", "-i", "-C", "-e"])
            .arg(&self.file)
            .args(&words)
            .output()
            .context("addr2line (binutils)")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let address = u64::from_str_radix(line.trim_start_matches("0x"), 16)?;
            let frames = self.frames.entry(address).or_default();
            while lines.peek().is_some_and(|next| !next.starts_with("0x")) {
                let name = lines.next().unwrap_or_default().to_owned();
                let file = lines.next().unwrap_or_default();
                frames.push((name, file.split(':').next().unwrap_or_default().to_owned()));
            }
        }
        Ok(())
    }
}

fn add(
    places: &mut BTreeMap<(&str, String), Place>,
    call: &'static Call,
    name: String,
    key: &str,
    times: u64,
) {
    let place = places.entry((call.name, name.clone())).or_insert(Place {
        call,
        name,
        keys: Vec::new(),
        times: 0,
    });
    place.times += times;
    if !place.keys.iter().any(|known| known == key) {
        place.keys.push(key.to_owned());
    }
}

/// `crate/file.rs`, of a file of ours.
fn source(file: &str) -> Option<String> {
    let (_, path) = file.split_once("/crates/")?;
    Some(
        path.replacen("/src/", "/", 1)
            .trim_start_matches("shunt-")
            .to_owned(),
    )
}

fn short(name: &str) -> &str {
    let name = name.split("<").next().unwrap_or(name);
    name.rsplit("::")
        .find(|part| !part.starts_with('{'))
        .unwrap_or(name)
}

/// The innermost function of ours that is no wrapper of a call. `Some(None)`: it only hands on what the
/// program calls. `None`: only wrappers.
fn function(frames: &[Frame]) -> Option<Option<String>> {
    let ours: Vec<(&str, String)> = frames
        .iter()
        .filter_map(|(name, file)| Some((name.as_str(), source(file)?)))
        .collect();
    let is_wrapper = |file: &str| {
        file.starts_with("engine/sys")
            || file.starts_with("engine/real.rs")
            || file == "shuntd/sys.rs"
    };
    let at = ours.iter().position(|(_, file)| !is_wrapper(file))?;
    let file = &ours[at].1;
    if file.starts_with("preload/") {
        return Some(None);
    }
    // A closure goes by the name of the function that it is in.
    let name = ours[at..]
        .iter()
        .filter(|(_, other)| other == file)
        .map(|(name, _)| short(name))
        .find(|name| !name.starts_with('{') && *name != "closure_env#0")
        .unwrap_or("closure");
    Some(Some(format!("{file} {name}")))
}

#[cfg(test)]
mod tests {
    use super::function;

    fn frames(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter()
            .map(|(name, file)| ((*name).to_owned(), (*file).to_owned()))
            .collect()
    }

    #[test]
    fn the_innermost_function_that_is_no_wrapper_names_the_place() {
        let place = frames(&[
            ("syscall3", "/registry/syscalls/lib.rs"),
            ("fcntl", "/x/crates/shunt-engine/src/sys.rs"),
            ("{closure#0}", "/x/crates/shunt-engine/src/wake/channel.rs"),
            (
                "shunt_engine::wake::channel::make",
                "/x/crates/shunt-engine/src/wake/channel.rs",
            ),
        ]);
        assert_eq!(
            function(&place),
            Some(Some("engine/wake/channel.rs make".to_owned()))
        );
    }

    #[test]
    fn what_is_handed_on_is_not_ours() {
        let place = frames(&[("send", "/x/crates/shunt-preload/src/export/data.rs")]);
        assert_eq!(function(&place), Some(None));
        assert_eq!(
            function(&frames(&[(
                "map",
                "/x/crates/shunt-engine/src/sys/memory.rs"
            )])),
            None
        );
    }
}
