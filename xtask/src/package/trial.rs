//! What a user does with the packages, from the first installation to the last trace.

use super::container::{Container, SHARED};
use super::{Made, pages};
use crate::guide::Guide;
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;

/// Where the package puts the program.
const SHUNT: &str = "/usr/bin/shunt";
const CONFIGURATION: &str = "/etc/shunt/shunt.toml";
/// A path that shells, and those who forget to quote, find hard; without a space or a colon, which
/// `LD_PRELOAD` cannot have.
const ODD: &str = "/srv/it's-[odd]*ü&";

/// Tries all of it. `false`: something does not hold.
pub(super) fn run(directory: &Path, made: &Made, newer: &Path) -> Result<bool> {
    let mut report = Report::new();
    if let Err(error) = Container::prepare() {
        report.skip("package", &format!("{error:#}"));
        return Ok(report.finish());
    }
    let files = [made.package.as_path(), newer, made.tarball.as_path()];
    let container = Container::start(directory, &files)?;
    let before = container.files()?;
    let mut good = true;
    let mut step = |name: &str, work: &mut dyn FnMut() -> Result<String>| {
        // What follows a failure would only repeat it.
        good = good && report.step(name, work);
    };
    let at = &container;
    step("getting started", &mut || getting_started(at, &before));
    step("install", &mut || install(at, &made.package));
    step("use", &mut || use_it(at));
    step("manual", &mut || manual(at));
    step("completions", &mut || completions(at));
    step("units", &mut || units(at));
    step("upgrade with a connection open", &mut || upgrade(at, newer));
    step("remove with a connection open", &mut || remove(at));
    step("purge", &mut || purge(at, &before));
    step("tarball", &mut || tarball(at, &made.tarball));
    Ok(report.finish())
}

/// The guide, as its reader follows it: from the installation to the removal.
fn getting_started(at: &Container, before: &[String]) -> Result<String> {
    let guide = Guide::read(true)?;
    // What the guide leaves in the background goes with the shell, whose group it is in: later steps would see its
    // connections.
    let script = format!(
        "cd {SHARED}; sudo() {{ \"$@\"; }}; trap 'trap \"\" TERM; kill 0' EXIT\n{}",
        guide.script()
    );
    let done = guide.replay(&mut at.command(&["setsid", "--wait", "bash", "-c", &script]))?;
    nothing_left(at, before)?;
    Ok(done)
}

fn install(at: &Container, package: &Path) -> Result<String> {
    at.install(package)?;
    let wrong = at.shell("dpkg --verify shunt")?;
    ensure!(wrong.is_empty(), "{wrong}");
    at.shell("dpkg-query --show --showformat='${Package} ${Version}, needs ${Depends}' shunt")
}

/// Two programs talk, and `shunt ss` shows that they do so through shared memory.
fn use_it(at: &Container) -> Result<String> {
    let talk = at.talk(SHUNT)?;
    let list: Value = serde_json::from_str(&at.shell("shunt ss --json")?)?;
    let rows = list["connections"].as_array().context("no connections")?;
    let [row] = &rows[..] else {
        anyhow::bail!("not one connection: {list:#}");
    };
    let ring = |way: &str| row["bytes"][way]["ring"].as_u64().unwrap_or(0);
    ensure!(
        row["path"] == "shm" && ring("to_client") > 0 && ring("to_server") > 0,
        "not shunted: {row:#}"
    );
    talk.finish()
}

fn manual(at: &Container) -> Result<String> {
    let pages = pages()?;
    for page in &pages {
        at.shell(&format!("man --where {} {}", page.section, page.name))?;
        // It can be formatted, too.
        at.shell(&format!(
            "man --warnings {} {} | grep --quiet .",
            page.section, page.name
        ))?;
    }
    Ok(format!("{} pages", pages.len()))
}

fn completions(at: &Container) -> Result<String> {
    at.shell(
        "bash -e -c '. /usr/share/bash-completion/completions/shunt; complete -p shunt'
         test -s /usr/share/zsh/vendor-completions/_shunt
         test -s /usr/share/fish/vendor_completions.d/shunt.fish",
    )?;
    Ok(String::new())
}

/// The units have no mistake that systemd knows, and stay off.
fn units(at: &Container) -> Result<String> {
    let said = at.shell(
        "systemd-analyze verify /usr/lib/systemd/system/shuntd.service /usr/lib/systemd/system/shuntd.socket \
             /usr/lib/systemd/system/shunt-metrics.service 2>&1
         export XDG_RUNTIME_DIR=/tmp
         systemd-analyze --user verify /usr/lib/systemd/user/shuntd.service /usr/lib/systemd/user/shuntd.socket 2>&1",
    )?;
    let ours: Vec<_> = said.lines().filter(|line| line.contains("shunt")).collect();
    ensure!(ours.is_empty(), "{}", ours.join("\n"));
    at.shell("! ls /etc/systemd/system/multi-user.target.wants | grep shunt")?;
    Ok(String::new())
}

/// A connection goes on while the package is replaced, what was written into the configuration stays,
/// and new programs run under the new version.
fn upgrade(at: &Container, newer: &Path) -> Result<String> {
    at.shell(&format!("echo '# mine' >> {CONFIGURATION}"))?;
    let file = "stat --format=%i /usr/lib/shunt/libshunt.so";
    let old = at.shell(file)?;
    let talk = at.talk(SHUNT)?;
    at.install(newer)?;
    ensure!(at.shell(file)? != old, "the library is the old one");
    at.shell(&format!("grep --quiet '# mine' {CONFIGURATION}"))?;
    let over = talk.finish()?;
    let after = at.talk(SHUNT)?.finish()?;
    Ok(format!("{over}; afterwards: {after}"))
}

/// A connection goes on; programs whose environment still names the library run without it; the
/// configuration stays.
fn remove(at: &Container) -> Result<String> {
    // As `systemctl enable` and a daemon leave them.
    at.shell(
        "mkdir -p /etc/systemd/system/multi-user.target.wants /run/shunt
         cd /etc/systemd/system/multi-user.target.wants
         ln -s /lib/systemd/system/shuntd.service /lib/systemd/system/shunt-metrics.service .
         touch /run/shunt/1",
    )?;
    let talk = at.talk(SHUNT)?;
    at.shell("dpkg --remove shunt")?;
    let said = at.shell(
        "LD_PRELOAD=/usr/lib/shunt/libshunt.so python3 -c 'import socket; print(\"runs\")'
         test ! -e /usr/lib/shunt && test ! -e /usr/bin/shunt && test ! -e /run/shunt",
    )?;
    ensure!(said == "runs\n", "it said {said}");
    at.shell(&format!("grep --quiet '# mine' {CONFIGURATION}"))?;
    talk.finish()
}

/// Nothing is left of it.
fn purge(at: &Container, before: &[String]) -> Result<String> {
    at.shell("dpkg --purge shunt")?;
    nothing_left(at, before)?;
    Ok(String::new())
}

fn nothing_left(at: &Container, before: &[String]) -> Result<()> {
    let left: Vec<_> = at
        .files()?
        .into_iter()
        .filter(|file| !before.contains(file) && !is_others(file))
        .collect();
    ensure!(left.is_empty(), "left: {}", left.join(" "));
    Ok(())
}

/// What apt, dpkg, `man` and systemd make for themselves.
fn is_others(file: &str) -> bool {
    [
        "/var/cache/apt/",
        "/var/cache/man/",
        "/var/lib/apt/",
        "/var/lib/dpkg/",
        "/var/log/",
        "/run/systemd/",
        "/tmp/systemd",
    ]
    .iter()
    .any(|directory| file.starts_with(directory))
}

/// It runs from an odd path, where nothing is installed.
fn tarball(at: &Container, tarball: &Path) -> Result<String> {
    let file = tarball.file_name().context("a name")?.display();
    at.shell(&format!(
        "mkdir -p \"{ODD}\"
         python3 -m tarfile --extract '/trial/{file}' \"{ODD}\""
    ))?;
    let top = at.shell(&format!("ls -d \"{ODD}\"/*"))?;
    let shunt = format!("{}/bin/shunt", top.trim());
    at.talk(&shunt)?.finish()
}
