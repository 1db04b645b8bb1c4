//! Whether a program will load libshunt, and call it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use crate::{elf, locate};

/// Why Shunt can do nothing for a program (see `ld.so(8)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It takes its owner's or group's rights.
    SetId,
    /// It takes capabilities.
    Capable,
    /// It has no dynamic loader.
    Static,
    /// It is for another machine or word size.
    Foreign,
    /// Its libc is musl: it would not even start with a library that needs glibc.
    Musl,
    /// It is written in Go, whose programs call the kernel themselves.
    Go,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SetId => "is setuid or setgid: it and what it starts will use plain TCP",
            Self::Capable => "has file capabilities: it and what it starts will use plain TCP",
            Self::Static => "is statically linked: it will use plain TCP",
            Self::Foreign => "is built for another kind of machine: it will use plain TCP",
            Self::Musl => "is linked to musl, not glibc: it and what it starts will use plain TCP",
            Self::Go => "is a Go program, which calls the kernel past libc: it will use plain TCP",
        })
    }
}

/// How many scripts may follow one another, as in the kernel: a script's interpreter may be a
/// script, too.
const SCRIPTS: usize = 5;

/// What a look at a program's file tells.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// What is in its way, or in its interpreter's if it is a script.
    pub(crate) obstacle: Option<Obstacle>,
    /// The interpreter (or loader) that it needs and that is not there.
    pub(crate) missing: Option<PathBuf>,
    /// Its headers speak of more than the file has.
    pub(crate) is_damaged: bool,
}

/// The obstacle in a program's file, or in its interpreter's if it is a script.
pub(crate) fn obstacle(file: &Path) -> Option<Obstacle> {
    look(file).obstacle
}

/// Looks at a program's file, and at its interpreter's if it is a script.
pub(crate) fn look(file: &Path) -> Look {
    scripts(file.to_owned()).unwrap_or_default()
}

fn scripts(mut file: PathBuf) -> Option<Look> {
    for _ in 0..SCRIPTS {
        let mut head = Vec::new();
        let opened = File::open(&file).ok()?;
        (&opened).take(elf::HEAD).read_to_end(&mut head).ok()?;
        let Some(line) = head.strip_prefix(b"#!") else {
            return in_program(&file, &opened, &head);
        };
        file = match interpreter(line)? {
            found if found.exists() => found,
            missing => {
                return Some(Look {
                    missing: Some(missing),
                    ..Look::default()
                });
            }
        };
    }
    None
}

/// The file that a process runs once it has executed this one, and the name that it goes by (`comm`).
pub(crate) fn becomes(file: &Path) -> (PathBuf, OsString) {
    let mut comm = file.file_name().unwrap_or_default().to_owned();
    let mut runs = file.to_owned();
    for _ in 0..SCRIPTS {
        let mut head = Vec::new();
        let read = File::open(&runs).and_then(|file| file.take(SHEBANG).read_to_end(&mut head));
        let line = read.ok().and_then(|_| head.strip_prefix(b"#!"));
        let Some((line, next)) = line.and_then(|line| Some((line, interpreter(line)?))) else {
            break;
        };
        // `env` executes another program, which gives the process its name; an interpreter does not.
        let is_named = line
            .trim_ascii_start()
            .starts_with(next.as_os_str().as_bytes());
        if !is_named {
            comm = next.file_name().unwrap_or_default().to_owned();
        }
        runs = next;
    }
    let comm = comm.as_bytes();
    let comm = OsStr::from_bytes(&comm[..comm.len().min(COMM)]).to_owned();
    (std::fs::canonicalize(&runs).unwrap_or(runs), comm)
}

/// The longest name of a process (`TASK_COMM_LEN`, with a NUL, is 16).
const COMM: usize = 15;
/// So much of a script's first line does the kernel read.
const SHEBANG: u64 = 256;

/// The program that runs a script; `line` begins behind its `#!`.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let path = Path::new(OsStr::from_bytes(words.next()?));
    if path.file_name() != Some(OsStr::new("env")) || !path.exists() {
        return Some(path.to_owned());
    }
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    let name = OsStr::from_bytes(name);
    Some(locate::program(name).unwrap_or_else(|| name.into()))
}

fn in_program(file: &Path, opened: &File, head: &[u8]) -> Option<Look> {
    if !elf::is_elf(head) {
        return None;
    }
    let found = |obstacle| Look {
        obstacle,
        ..Look::default()
    };
    if let Some(obstacle) = gains_rights(file, opened) {
        return Some(found(Some(obstacle)));
    }
    if head.get(4..6).is_some_and(|class| class != elf::CLASS) {
        return Some(found(Some(Obstacle::Foreign)));
    }
    let elf = elf::parse(head);
    let size = elf
        .as_ref()
        .map_or_else(|| elf::table_end(head), |elf| Some(elf.size));
    if size.is_none_or(|size| opened.metadata().is_ok_and(|about| about.len() < size)) {
        return Some(Look {
            is_damaged: true,
            ..Look::default()
        });
    }
    // Of one whose table of headers is not in the head nothing is known.
    let elf = elf?;
    if elf.machine != elf::MACHINE {
        return Some(found(Some(Obstacle::Foreign)));
    }
    let obstacle = match &elf.interpreter {
        None => Some(Obstacle::Static),
        Some(loader) if loader.contains("/ld-musl-") => Some(Obstacle::Musl),
        Some(_) => elf.is_go(opened).then_some(Obstacle::Go),
    };
    let loader = elf
        .interpreter
        .filter(|loader| !loader.is_empty())
        .map(PathBuf::from);
    let missing = loader.filter(|loader| !loader.exists());
    Some(Look {
        obstacle,
        missing,
        is_damaged: false,
    })
}

/// Whether the kernel will tell the loader that the program has more rights than its
/// user: then it preloads nothing, and forgets `LD_PRELOAD`.
fn gains_rights(file: &Path, opened: &File) -> Option<Obstacle> {
    let about = opened.metadata().ok()?;
    let ignored = rustix::thread::no_new_privs().unwrap_or(false)
        || rustix::fs::fstatvfs(opened)
            .is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOSUID));
    if ignored {
        return None;
    }
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    // A set-group-id bit without the group's x means something else.
    if about.mode() & 0o4000 != 0 && about.uid() != user.as_raw()
        || about.mode() & 0o2010 == 0o2010 && about.gid() != group.as_raw()
    {
        return Some(Obstacle::SetId);
    }
    // Root has all rights anyway.
    let mut value = [0_u8; 64];
    let capable = !user.is_root()
        && rustix::fs::getxattr(file, "security.capability", &mut value[..])
            .is_ok_and(|size| size > 0);
    capable.then_some(Obstacle::Capable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_and_scripts_have_none() {
        assert_eq!(obstacle(Path::new("/proc/self/exe")), None);
        assert_eq!(obstacle(Path::new("/nonexistent")), None);
        assert_eq!(obstacle(Path::new("/etc/passwd")), None);
    }

    #[test]
    fn a_script_is_run_by_what_its_first_line_names() {
        assert_eq!(interpreter(b"/bin/sh\n"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b" /bin/sh -e x\nrest"), Some("/bin/sh".into()));
        assert_eq!(
            interpreter(b"/usr/bin/env sh"),
            locate::program("sh".as_ref())
        );
        let split = interpreter(b"/usr/bin/env -S A=b sh -e\n");
        assert_eq!(split, locate::program("sh".as_ref()));
        assert_eq!(interpreter(b"\n"), None);
        let missing = interpreter(b"/usr/bin/env no-such-language\n");
        assert_eq!(missing, Some("no-such-language".into()));
    }

    #[test]
    fn a_process_goes_by_the_name_of_what_was_executed() {
        let directory = std::env::temp_dir().join(format!("shunt-becomes-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let shell = std::fs::canonicalize("/bin/sh").unwrap();
        let becomes = |name: &str, line: &str| {
            let file = directory.join(name);
            std::fs::write(&file, line).unwrap();
            becomes(&file)
        };
        let long = becomes("a-very-long-name", "#!/bin/sh -e\n");
        assert_eq!(long, (shell.clone(), "a-very-long-nam".into()));
        assert_eq!(
            becomes("x", "#!/usr/bin/env sh\n"),
            (shell.clone(), "sh".into())
        );
        assert_eq!(super::becomes(Path::new("/bin/sh")), (shell, "sh".into()));
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn static_foreign_and_set_id_programs_are_seen() {
        let directory = std::env::temp_dir().join(format!("shunt-obstacle-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, bytes: &[u8], mode: u32| {
            let file = directory.join(name);
            std::fs::write(&file, bytes).unwrap();
            rustix::fs::chmod(&file, mode.into()).unwrap();
            file
        };
        let none = program(None, b"");
        let statically = write("static", &none, 0o755);
        assert_eq!(obstacle(&statically), Some(Obstacle::Static));
        let script = format!("#! {} -x\n", statically.display());
        let script = write("script", script.as_bytes(), 0o755);
        assert_eq!(obstacle(&script), Some(Obstacle::Static));
        let twice = format!("#!{}\n", script.display());
        let twice = write("twice", twice.as_bytes(), 0o755);
        assert_eq!(obstacle(&twice), Some(Obstacle::Static));
        let endless = directory.join("endless");
        let line = format!("#!{}\n", endless.display());
        assert_eq!(obstacle(&write("endless", line.as_bytes(), 0o755)), None);

        let musl = program(Some(b"/lib/ld-musl-x86_64.so.1\0"), b"");
        assert_eq!(obstacle(&write("musl", &musl, 0o755)), Some(Obstacle::Musl));
        let glibc = program(Some(b"/lib64/ld-linux-x86-64.so.2\0"), b"");
        assert_eq!(obstacle(&write("glibc", &glibc, 0o755)), None);
        let go = program(
            Some(b"/lib64/ld-linux-x86-64.so.2\0"),
            b"\xff Go buildinf:\x08\x02",
        );
        assert_eq!(obstacle(&write("go", &go, 0o755)), Some(Obstacle::Go));

        let cut = write("cut", &glibc[..200], 0o755);
        assert!(look(&cut).is_damaged && obstacle(&cut).is_none());
        let cut = write("shorter", &glibc[..100], 0o755);
        assert!(look(&cut).is_damaged && obstacle(&cut).is_none());
        let mut far = glibc.clone();
        far[64..].fill(0); // A table of headers that is far behind.
        far[32..40].copy_from_slice(&(elf::HEAD).to_le_bytes());
        far.resize(elf::HEAD as usize + 112, 0);
        assert_eq!(look(&write("far", &far, 0o755)), Look::default());

        let no_loader = program(Some(b"/no/ld.so.1\0"), b"");
        let look = look(&write("no-loader", &no_loader, 0o755));
        assert_eq!(look.missing, Some("/no/ld.so.1".into()));

        let mut foreign = none;
        foreign[4] = 1;
        let foreign = write("foreign", &foreign, 0o755);
        assert_eq!(obstacle(&foreign), Some(Obstacle::Foreign));

        // What is one's own gives one no more rights.
        let own = write("setuid", &glibc, 0o4755);
        assert_eq!(obstacle(&own), None);
        let mounted = rustix::fs::statvfs(&own).unwrap().f_flag;
        if rustix::process::getuid().is_root() && !mounted.contains(StatVfsMountFlags::NOSUID) {
            std::os::unix::fs::chown(&own, Some(65534), None).unwrap();
            rustix::fs::chmod(&own, 0o4755.into()).unwrap();
            assert_eq!(obstacle(&own), Some(Obstacle::SetId));
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// As much of a program as is looked at: a loader's name and writable data.
    fn program(loader: Option<&[u8]>, data: &[u8]) -> Vec<u8> {
        let mut file = vec![0_u8; 512];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&elf::MACHINE.to_le_bytes());
        file[32] = 64; // Program headers: where, how long, how many.
        (file[54], file[56]) = (56, 2);
        let mut part = |i: usize, kind: u8, at: usize, bytes: &[u8]| {
            let header = 64 + 56 * i;
            (file[header], file[header + 4]) = (kind, 2);
            file[header + 8..header + 10].copy_from_slice(&(at as u16).to_le_bytes());
            file[header + 16..header + 18].copy_from_slice(&(at as u16).to_le_bytes());
            file[header + 32] = bytes.len() as u8;
            file[at..at + bytes.len()].copy_from_slice(bytes);
        };
        part(0, 1, 256, data);
        if let Some(loader) = loader {
            part(1, 3, 384, loader);
        }
        file
    }
}
