//! `shunt run`: becomes the program, with libshunt in its environment.

pub(crate) mod chain;
mod environment;
pub(crate) mod filter;
pub(crate) mod program;
mod start;
mod starter;

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use crate::{RunOptions, Upgrade, library, sys};

/// As `env(1)` and `timeout(1)`: our own failure, not executable, not found.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the program. Returns only if it could not be started.
pub(crate) fn run(options: &RunOptions) -> ExitCode {
    let library = match library::find() {
        Ok(library) => library,
        Err(fault) => {
            eprintln!("shunt: {fault}");
            return ExitCode::from(FAILED);
        }
    };
    // What cannot load libshunt still runs, on TCP; its user should know.
    let mut outlook = chain::outlook(&options.command, &library);
    let deadly = filter::deadly_call();
    if let Some(call) = deadly {
        outlook.refuses = true;
        outlook.warning = Some(format!(
            "a filter of system calls (seccomp) ends whoever calls {call}, which Shunt needs: \
             {} runs without Shunt, on plain TCP",
            options.command[0].display()
        ));
    }
    let preloaded = (!outlook.refuses).then_some(library.as_path());
    let environment = match environment::prepare(options, preloaded) {
        Ok(environment) => environment,
        Err(error) => {
            eprintln!("shunt: {error:#}");
            return ExitCode::from(FAILED);
        }
    };
    if let Some(warning) = outlook.warning {
        eprintln!("shunt: {warning}");
    }
    let off = deadly.is_some()
        || is_off(
            options.upgrade,
            std::env::var_os("SHUNT_UPGRADE").as_deref(),
        );
    // It also writes the statistics of processes that are killed.
    let counted = options.stats.is_some() || std::env::var_os("SHUNT_STATS").is_some();
    if (!off || counted && deadly.is_none())
        && let Err(error) = start::ensure_daemon()
    {
        let lost = if off {
            "a process that is killed will be missing in the statistics"
        } else {
            "connections will use plain TCP"
        };
        eprintln!("shunt: no shuntd: {error:#}; {lost}");
    }
    let arguments: Option<Vec<_>> = options
        .command
        .iter()
        .map(|a| CString::new(a.as_bytes()).ok())
        .collect();
    let name = &options.command[0];
    let Some(arguments) = arguments else {
        return ExitCode::from(FAILED);
    };
    let Err(error) = sys::become_program(&arguments, &environment);
    eprintln!("shunt: cannot run {}: {error}", name.display());
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    ExitCode::from(if missing { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// Whether upgrades are off, so that no daemon is needed.
fn is_off(option: Option<Upgrade>, inherited: Option<&OsStr>) -> bool {
    option.map_or(inherited == Some(OsStr::new("off")), |upgrade| {
        upgrade == Upgrade::Off
    })
}
