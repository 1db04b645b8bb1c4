//! The environment of a program under Shunt.

use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::RunOptions;

const PRELOAD: &str = "LD_PRELOAD";

/// Our environment plus what libshunt needs, as `NAME=value` strings; without a library
/// to load if the program would not start with it.
pub(super) fn prepare(options: &RunOptions, library: Option<&Path>) -> Result<Vec<CString>> {
    let mut variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    if let Some(library) = library {
        let preload = preload(std::env::var_os(PRELOAD).as_deref(), library.as_os_str())?;
        set(&mut variables, PRELOAD, preload);
    }
    if let Some(value) = options
        .upgrade
        .and_then(|upgrade| upgrade.to_possible_value())
    {
        set(&mut variables, "SHUNT_UPGRADE", value.get_name().into());
    }
    if let Some(value) = options.io_uring.and_then(|ring| ring.to_possible_value()) {
        set(&mut variables, "SHUNT_IO_URING", value.get_name().into());
    }
    if let Some(file) = &options.stats {
        // The program may change its directory before it writes.
        let absolute = std::path::absolute(file).context("--stats needs a file name")?;
        // As libshunt will open it, which has nobody to complain to.
        OpenOptions::new()
            .append(true)
            .create(true)
            .custom_flags(libc::O_NONBLOCK) // A pipe without a reader.
            .open(&absolute)
            .with_context(|| format!("cannot write statistics to {}", absolute.display()))?;
        set(&mut variables, "SHUNT_STATS", absolute.into());
    }
    variables
        .into_iter()
        .map(|(name, value)| {
            let bytes = [name.into_vec(), value.into_vec()].join(&b'=');
            CString::new(bytes).context("the environment holds a NUL")
        })
        .collect()
}

/// The library behind what is there already: others' libraries come first.
fn preload(existing: Option<&OsStr>, library: &OsStr) -> Result<OsString> {
    let separates = |byte: &u8| matches!(byte, b':' | b' ');
    ensure!(
        !library.as_bytes().iter().any(separates),
        "{} cannot be preloaded: LD_PRELOAD has no way to write a colon or a space in a path; \
         install Shunt, or a copy of libshunt.so for SHUNT_LIB, elsewhere",
        library.display()
    );
    let existing = existing.unwrap_or_default();
    if existing.is_empty() {
        return Ok(library.to_owned());
    }
    let mut value = existing.to_owned();
    if !existing
        .as_bytes()
        .split(separates)
        .any(|part| part == library.as_bytes())
    {
        value.push(":");
        value.push(library);
    }
    Ok(value)
}

fn set(variables: &mut Vec<(OsString, OsString)>, name: &str, value: OsString) {
    variables.retain(|(other, _)| other != name);
    variables.push((name.into(), value));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(existing: Option<&str>) -> OsString {
        preload(existing.map(OsStr::new), OsStr::new("/x/libshunt.so")).unwrap()
    }

    #[test]
    fn the_library_comes_last_and_once() {
        assert_eq!(joined(None), "/x/libshunt.so");
        assert_eq!(joined(Some("")), "/x/libshunt.so");
        assert_eq!(joined(Some("/a.so /b.so")), "/a.so /b.so:/x/libshunt.so");
        assert_eq!(joined(Some("/x/libshunt.so:/b.so")), "/x/libshunt.so:/b.so");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        assert!(preload(None, OsStr::new("/my programs/libshunt.so")).is_err());
    }
}
