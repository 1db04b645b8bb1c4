//! Where in the sources a call is made, from its address and its caller's.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::call::{self, Call};

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

impl Place {
    /// Whether bytes of the program's move there between it and the kernel, in the place of a call of
    /// its own: what the kernel says is the program's to hear.
    pub(crate) fn is_the_programs(&self) -> bool {
        const MOVING: [&str; 7] = [
            "recvmsg", "recvfrom", "sendmsg", "sendto", "read", "pread64", "pwritev2",
        ];
        const FILES: [&str; 4] = [
            "engine/io/",
            "engine/stream/recv",
            "engine/stream/send",
            "engine/stream/transfer",
        ];
        MOVING.contains(&self.call.name) && FILES.iter().any(|file| self.name.starts_with(file))
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
            let place = places.entry((kind.name, name.clone())).or_insert(Place {
                call: kind,
                name,
                keys: Vec::new(),
                times: 0,
            });
            place.times += times;
            if !place.keys.contains(&key) {
                place.keys.push(key);
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
