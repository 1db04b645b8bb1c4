//! libshunt.so: where it is, and whether programs can load it.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use shunt_abi::{PROTOCOL, note};

use crate::{elf, locate};

/// What is wrong with it, and what to do.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) advice: Cow<'static, str>,
}

impl Fault {
    pub(crate) fn new(what: impl Into<String>, advice: impl Into<Cow<'static, str>>) -> Self {
        Self {
            what: what.into(),
            advice: advice.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.advice)
    }
}

/// The file that programs are to load: the one that `SHUNT_LIB` names or, without
/// that, the one that is installed. The loader would say nothing that a user can make
/// sense of, or nothing at all, so what can go wrong there is said here.
pub(crate) fn find() -> Result<PathBuf, Fault> {
    let named = std::env::var_os("SHUNT_LIB").filter(|name| !name.is_empty());
    if let Some(named) = named.map(PathBuf::from) {
        return usable(&named).map_err(|wrong| {
            Fault::new(
                format!("SHUNT_LIB names {}, which {wrong}", named.display()),
                "set it to the path of this version's libshunt.so, or unset it",
            )
        });
    }
    let installed = locate::library().ok_or_else(|| {
        Fault::new(
            "libshunt.so is neither beside shunt nor in ../lib/shunt or ../lib",
            "install it there, or set SHUNT_LIB to its path",
        )
    })?;
    usable(&installed).map_err(|wrong| {
        Fault::new(
            format!("{} {wrong}", installed.display()),
            "install all parts of Shunt anew, from one version",
        )
    })
}

/// Its full path, or what is wrong with it.
fn usable(file: &Path) -> Result<PathBuf, String> {
    let path = std::fs::canonicalize(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist".into(),
        _ => format!("cannot be reached ({error})"),
    })?;
    if !path.is_file() {
        return Err("is not a file".into());
    }
    let unreadable = |error| format!("cannot be read ({error})");
    let opened = File::open(&path).map_err(unreadable)?;
    let mut head = Vec::new();
    (&opened)
        .take(elf::HEAD)
        .read_to_end(&mut head)
        .map_err(unreadable)?;
    let Some(elf) = elf::parse(&head) else {
        return Err("is not a library, or damaged".into());
    };
    if opened.metadata().map_err(unreadable)?.len() < elf.size {
        return Err("is damaged: its end is missing".into());
    }
    if elf.machine != elf::MACHINE {
        return Err("is a library for another kind of machine".into());
    }
    let version = elf.note(&opened, note::OWNER, note::KIND, |value| {
        value.try_into().map(u32::from_le_bytes).ok()
    });
    match version.flatten() {
        None => return Err("is not a libshunt.so of this version".into()),
        Some(version) if version != u32::from(PROTOCOL) => {
            return Err(format!(
                "speaks version {version} of Shunt's protocol, while this shunt speaks {PROTOCOL}"
            ));
        }
        Some(_) => {}
    }
    let mount = rustix::fs::fstatvfs(&opened).map(|about| about.f_flag);
    if mount.is_ok_and(|flags| flags.contains(StatVfsMountFlags::NOEXEC)) {
        return Err("lies in a file system that is mounted noexec".into());
    }
    Ok(path)
}

/// The first directory of a path, or the file itself, that other users cannot get
/// through: programs that become another user's cannot load a library behind it.
pub(crate) fn closed_at(file: &Path) -> Option<&Path> {
    use std::os::unix::fs::PermissionsExt;
    let parts: Vec<_> = file.ancestors().collect();
    parts.into_iter().rev().find(|part| {
        let needed = if *part == file { 0o4 } else { 0o1 };
        part.metadata()
            .is_ok_and(|about| about.permissions().mode() & needed == 0)
    })
}
