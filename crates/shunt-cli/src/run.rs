//! `shunt run`: becomes the program, with libshunt in its environment.

mod environment;
mod program;
mod start;

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use crate::{RunOptions, Upgrade, locate, sys};

/// As `env(1)` and `timeout(1)`: our own failure, not executable, not found.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the program. Returns only if it could not be started.
pub(crate) fn run(options: &RunOptions) -> ExitCode {
    let Some(library) = locate::library() else {
        eprintln!(
            "shunt: libshunt.so is neither beside shunt nor in ../lib: install it or set SHUNT_LIB"
        );
        return ExitCode::from(FAILED);
    };
    let environment = match environment::prepare(options, &library) {
        Ok(environment) => environment,
        Err(error) => {
            eprintln!("shunt: {error:#}");
            return ExitCode::from(FAILED);
        }
    };
    let name = &options.command[0];
    // What cannot load libshunt still runs, on TCP; its user should know.
    if let Some(obstacle) = locate::program(name).and_then(|file| program::obstacle(&file)) {
        eprintln!(
            "shunt: {} {obstacle}: it will use plain TCP",
            name.display()
        );
    }
    if !is_off(
        options.upgrade,
        std::env::var_os("SHUNT_UPGRADE").as_deref(),
    ) && let Err(error) = start::ensure_daemon()
    {
        eprintln!("shunt: no shuntd: {error:#}; connections will use plain TCP");
    }
    let arguments: Option<Vec<_>> = options
        .command
        .iter()
        .map(|a| CString::new(a.as_bytes()).ok())
        .collect();
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
