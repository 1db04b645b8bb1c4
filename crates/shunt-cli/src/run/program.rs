//! Whether a program will load libshunt.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::elf;

/// Why a program will not load libshunt (see `ld.so(8)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It takes its owner's or group's rights.
    SetId,
    /// It takes capabilities.
    Capable,
    /// It has no dynamic loader.
    Static,
    /// It is for another machine or word size.
    Foreign,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SetId => "is setuid or setgid",
            Self::Capable => "has file capabilities",
            Self::Static => "is statically linked",
            Self::Foreign => "is built for another kind of machine",
        })
    }
}

/// The obstacle in a program's file, or in its interpreter's if it is a script.
pub(super) fn obstacle(file: &Path) -> Option<Obstacle> {
    in_file(file, true)
}

fn in_file(file: &Path, follow: bool) -> Option<Obstacle> {
    // Headers come first; the dynamic section does not matter here.
    let mut head = Vec::new();
    let opened = File::open(file).ok()?;
    let mode = opened.metadata().ok()?.mode();
    opened.take(64 << 10).read_to_end(&mut head).ok()?;
    if let Some(rest) = head.strip_prefix(b"#!") {
        // Set-id bits of a script mean nothing.
        let line = rest.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let interpreter = line.split(u8::is_ascii_whitespace).next()?;
        let interpreter = Path::new(std::ffi::OsStr::from_bytes(interpreter));
        return follow.then(|| in_file(interpreter, false)).flatten();
    }
    if !elf::is_elf(&head) {
        return None;
    }
    // Root gains nothing from set-id bits of his own files, but is rare enough
    // to be warned in vain.
    if mode & 0o6000 != 0 && mode & 0o111 != 0 {
        return Some(Obstacle::SetId);
    }
    let mut value = [0_u8; 64];
    if rustix::fs::getxattr(file, "security.capability", &mut value[..]).is_ok_and(|size| size > 0)
    {
        return Some(Obstacle::Capable);
    }
    match elf::parse(&head) {
        None => Some(Obstacle::Foreign),
        Some(elf) if elf.machine != elf::MACHINE => Some(Obstacle::Foreign),
        Some(elf) if !elf.has_interpreter => Some(Obstacle::Static),
        Some(_) => None,
    }
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
    fn static_foreign_and_set_id_programs_are_seen() {
        let directory = std::env::temp_dir().join(format!("shunt-obstacle-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut header = [0_u8; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[18..20].copy_from_slice(&elf::MACHINE.to_le_bytes());
        let write = |name: &str, bytes: &[u8], mode: u32| {
            let file = directory.join(name);
            std::fs::write(&file, bytes).unwrap();
            rustix::fs::chmod(&file, mode.into()).unwrap();
            file
        };
        assert_eq!(
            obstacle(&write("static", &header, 0o755)),
            Some(Obstacle::Static)
        );
        assert_eq!(
            obstacle(&write("setuid", &header, 0o4755)),
            Some(Obstacle::SetId)
        );
        let script = format!("#! {} -x\n", directory.join("static").display());
        assert_eq!(
            obstacle(&write("script", script.as_bytes(), 0o755)),
            Some(Obstacle::Static)
        );
        header[4] = 1;
        assert_eq!(
            obstacle(&write("foreign", &header, 0o755)),
            Some(Obstacle::Foreign)
        );
        std::fs::remove_dir_all(directory).unwrap();
    }
}
