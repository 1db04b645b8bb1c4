//! Whether a shuntd serves this user, or can be started.

use std::num::NonZeroU32;
use std::process::{Command, Stdio};

use anyhow::Error;
use shunt_abi::{PROTOCOL, control_name};

use super::Found;
use crate::control::{Control, neighbours};
use crate::library::Fault;
use crate::locate;

/// Every daemon that answers must work: a program takes the first.
pub(super) fn check() -> Found {
    // Who has the address of root's daemon keeps nobody from his own.
    let Some((user, pid)) = Control::usurper(true) else {
        if let Some(name) = deaf_host() {
            return Err(deaf("root's", &name));
        }
        return serving();
    };
    serving().map(|text| {
        format!(
            "{text}; warning: user {user} has taken the address of root's shuntd ({}), who must end before root \
             can start `shuntd --system`",
            process(pid)
        )
    })
}

/// The address of root's daemon, if somebody listens there who takes nobody.
fn deaf_host() -> Option<String> {
    let is_asked = Control::named().is_none() && Control::connect(true).is_none();
    Control::listened_at(true).filter(|_| is_asked)
}

fn serving() -> Found {
    let daemons = Control::all();
    if daemons.is_empty() {
        let neighbours = neighbours().map_or_else(String::new, |text| format!("; {text}"));
        return startable().map(|text| text + &others() + &neighbours);
    }
    let mut lines = Vec::new();
    for daemon in daemons {
        let process = process(daemon.pid);
        let serves = if daemon.host { "the host" } else { "this user" };
        let crosses = daemon
            .greet("shunt-doctor")
            .map_err(|error| fault(&error, &daemon))?;
        let finds = if crosses {
            "finds ends by mirrored sequence numbers, in all network namespaces"
        } else {
            "finds ends by their addresses, in one network namespace"
        };
        lines.push(format!(
            "{process} serves {serves}, protocol {PROTOCOL}; it {finds}"
        ));
    }
    Ok(lines.join("; ") + &others())
}

/// Somebody listens at the address of a daemon, and has so many waiting that nobody can connect.
fn deaf(whose: &str, name: &str) -> Fault {
    Fault::new(
        format!("who listens at the address of {whose} shuntd (@{name}) takes no connections"),
        "`ss -xlp`, for root, names the process: it must end, or go on if it is a shuntd that is stopped",
    )
}

/// A message of [`Control`] says what is wrong and, behind a colon, what to do.
fn fault(error: &Error, daemon: &Control) -> Fault {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((what, advice)) => Fault::new(what, advice.to_owned()),
        None if daemon.host => Fault::new(text, "let root restart it".to_owned()),
        None => {
            let advice = daemon.pid.map_or_else(
                || "restart it in its PID namespace".to_owned(),
                |pid| format!("`kill {pid}` ends it, and the next `shunt run` starts another"),
            );
            Fault::new(text, advice)
        }
    }
}

/// How a process is named to the user; none has a number here that runs in a PID namespace
/// that we cannot see.
fn process(pid: Option<NonZeroU32>) -> String {
    pid.map_or_else(
        || "a process of another PID namespace".to_owned(),
        |pid| format!("pid {pid}"),
    )
}

/// There is none; `shunt run` would start one.
fn startable() -> Found {
    if let Some(path) = Control::named() {
        return Err(Fault::new(
            format!("none of root's listens at {}", path.display()),
            "start `shuntd --system` on the host, or unset SHUNT_SOCKET",
        ));
    }
    if let Some((user, pid)) = Control::usurper(false) {
        return Err(Fault::new(
            format!(
                "user {user} has taken the address of your shuntd ({})",
                process(pid)
            ),
            "that process must end; root's `shuntd --system` has another address",
        ));
    }
    if let Some(name) = Control::listened_at(false) {
        return Err(deaf("your", &name));
    }
    let program = locate::daemon().ok_or_else(|| {
        Fault::new(
            "none runs, and the program is neither beside shunt nor on PATH",
            "install shuntd beside shunt",
        )
    })?;
    let name = program.display();
    let output = Command::new(&program)
        .arg("--version")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output();
    let advice = "install all parts of Shunt anew, from one version";
    let output = output.map_err(|error| {
        Fault::new(
            format!("none runs, and {name} cannot be run: {error}"),
            advice,
        )
    })?;
    let version = String::from_utf8_lossy(&output.stdout);
    let version = version.trim();
    if version != concat!("shuntd ", env!("CARGO_PKG_VERSION")) {
        let what = format!("none runs, and {name} is not of this version, but \"{version}\"");
        return Err(Fault::new(what, advice));
    }
    Ok(format!("none runs yet; `shunt run` starts {name}"))
}

/// Daemons of other versions have other addresses, so nothing keeps them from running
/// beside ours.
fn others() -> String {
    of_another_version().map_or_else(String::new, |name| {
        format!(
            "; one of another version runs beside it (@{name}), for programs of that version only"
        )
    })
}

/// The address of such a daemon.
pub(crate) fn of_another_version() -> Option<String> {
    // Names may be no text.
    let names = std::fs::read("/proc/net/unix").unwrap_or_default();
    let names = String::from_utf8_lossy(&names);
    let user = rustix::process::geteuid().as_raw();
    let ours = [control_name(None), control_name(Some(user))];
    // `shunt/PROTOCOL/...`
    let whose = |name: &str| Some(name.strip_prefix("shunt/")?.split_once('/')?.1.to_owned());
    let is_other = |name: &&str| {
        let owner = whose(name);
        owner.is_some()
            && ours.iter().any(|our| whose(our) == owner)
            && !ours.iter().any(|our| our == name)
    };
    let mut names = names
        .lines()
        .filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'));
    names.find(is_other).map(str::to_owned)
}
