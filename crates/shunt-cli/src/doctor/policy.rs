//! Whether the configuration is valid that a shuntd would read now: its rules decide who is shunted with whom.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Found, program};
use crate::control::Control;
use crate::library::Fault;
use crate::locate;

/// What the host's daemon reads.
const HOSTS: &str = "/etc/shunt/shunt.toml";

/// The status with which `shuntd --check` ends if a rule denies all of a program, or of a user.
const DENIED: i32 = 3;

/// What `shuntd --check` says of it, and whether it denies the program that is named, or all. One that cannot be asked is another check's
/// business.
pub(super) fn check(program: &[OsString]) -> Found {
    if Control::named().is_some() {
        return Ok("that of the host's shuntd, which is not to be seen from here".into());
    }
    let Some(daemon) = locate::daemon() else {
        return Ok("not looked at: there is no shuntd to read it".into());
    };
    let mut command = Command::new(daemon);
    if Control::connect(true).is_some() {
        if rustix::process::geteuid().is_root() {
            command.args(["--system", "--check"]);
        } else if Path::new(HOSTS).exists() {
            // Whether the key can be used, only root could find out.
            command.args(["--check", HOSTS]);
        } else {
            return Ok(format!("{HOSTS} does not exist: the defaults hold"));
        }
    } else {
        command.arg("--check");
    }
    if let Some(whom) = program::whom(program) {
        command.arg("--program").arg(whom.user.to_string());
        command.arg(whom.path).arg(whom.comm);
    }
    let output = command
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        return Ok("not looked at: shuntd cannot be run".into());
    };
    let [said, wrong] = [&output.stdout, &output.stderr]
        .map(|text| String::from_utf8_lossy(text).trim().replace('\n', "; "));
    if output.status.code() == Some(DENIED) {
        return Err(Fault::new(
            said,
            "change that rule (shunt.toml(5)), if it should be otherwise; a shuntd that runs reads the file \
             again at SIGHUP",
        ));
    }
    match (output.status.success(), wrong.strip_prefix("shuntd: ")) {
        (true, _) => Ok(said),
        (false, Some(wrong)) => Err(Fault::new(
            wrong,
            "correct that: no shuntd starts with it, and one that runs keeps what it has read before",
        )),
        (false, None) => Ok(format!("not looked at: shuntd ended by {}", output.status)),
    }
}
