//! Finds the parts of Shunt and the programs that it runs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where libshunt.so is installed: beside this executable, or in the `lib` directory of
/// the same prefix.
pub(crate) fn library() -> Option<PathBuf> {
    let directory = own_directory()?;
    [
        "libshunt.so",
        "../lib/shunt/libshunt.so",
        "../lib/libshunt.so",
    ]
    .map(|relative| directory.join(relative))
    .into_iter()
    .find(|path| path.exists())
}

/// Where shuntd is: beside this executable or on `PATH`.
pub(crate) fn daemon() -> Option<PathBuf> {
    let beside = own_directory().map(|directory| directory.join("shuntd"));
    beside
        .filter(|path| is_executable(path))
        .or_else(|| on_path(OsStr::new("shuntd")))
}

/// Where shunt-bench is: beside this executable, or in the `lib` directory of the
/// same prefix.
pub(crate) fn bench() -> Option<PathBuf> {
    let directory = own_directory()?;
    ["shunt-bench", "../lib/shunt/shunt-bench"]
        .map(|relative| directory.join(relative))
        .into_iter()
        .find(|path| is_executable(path))
}

/// The file that `execvp(3)` will most likely run for this name.
pub(crate) fn program(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    on_path(name)
}

fn on_path(name: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| is_executable(file))
}

pub(crate) fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn own_directory() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_path_buf())
}
