//! Which network namespace this is, and whether a process in another one has a shuntd.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use shunt_abi::PROTOCOL;

use super::Found;
use crate::control::{self, Control};
use crate::library::Fault;

/// Programs of two network namespaces meet only through root's daemon.
pub(super) fn check(pid: Option<u32>) -> Found {
    let own = name("self").map_err(|error| {
        let what = format!("/proc/self/ns/net: {error}");
        Fault::new(what, "mount proc(5) at /proc")
    })?;
    // That of another user's process is not to be seen.
    let other = pid.and_then(|pid| Some((pid, name(&pid.to_string()).ok()?)));
    let Some((pid, other)) = other.filter(|(_, other)| *other != own) else {
        return Ok(own);
    };
    let what = format!("process {pid} is in another network namespace ({other}; this is {own})");
    if is_served(pid) {
        return Ok(what);
    }
    Err(Fault::new(
        format!("{what}, and reaches no shuntd"),
        "let root start `shuntd --system` on the host, which serves all network namespaces; `shunt container print` \
         says what a container needs to reach it",
    ))
}

fn name(process: &str) -> io::Result<String> {
    let link = fs::read_link(format!("/proc/{process}/ns/net"))?;
    Ok(link.display().to_string())
}

/// Whether a process of another network namespace reaches a daemon: by the file that is named to it, or by an
/// address of its namespace or root's file.
fn is_served(pid: u32) -> bool {
    let seen = |path: &Path| {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        Control::is_at(&root.join(path.strip_prefix("/").unwrap_or(path)))
    };
    if let Some(path) = named(pid) {
        return seen(&path);
    }
    let address = format!("shunt/{PROTOCOL}/");
    let is_daemon = |name: &String| name.starts_with(&address);
    let names = control::listening(&format!("/proc/{pid}"));
    names.iter().any(is_daemon) || seen(Path::new(&shunt_abi::host_socket()))
}

/// The file that `SHUNT_SOCKET` names to it.
fn named(pid: u32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let begin = format!("{}=", shunt_abi::SOCKET_VARIABLE);
    let value = variables.find_map(|variable| variable.strip_prefix(begin.as_bytes()))?;
    (!value.is_empty()).then(|| std::ffi::OsString::from_vec(value.to_vec()).into())
}
