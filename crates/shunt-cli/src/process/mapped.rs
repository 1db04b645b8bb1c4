//! The libshunt.so that a process has mapped, and the version of the protocol that it speaks.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use shunt_abi::note;

use crate::elf;

/// Whether a process has libshunt.so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    /// With the version of the protocol that it speaks, if its file can be read.
    Loaded(Option<u32>),
    /// The file has been removed or replaced since. With the version of what is mapped, if that can be read.
    Replaced(Option<u32>),
    Missing,
    /// We may not look.
    Unknown,
}

impl Library {
    /// What the process with this directory in `/proc` has.
    pub(super) fn of(directory: &Path) -> Self {
        let Ok(maps) = fs::read(directory.join("maps")) else {
            return Self::Unknown;
        };
        let maps = String::from_utf8_lossy(&maps);
        let Some(mapping) = maps.lines().filter_map(Mapping::of).find(Mapping::is_it) else {
            return Self::Missing;
        };
        if mapping.is_deleted() {
            return Self::Replaced(mapping.version(directory));
        }
        let root = directory.join("root");
        let path = root.join(mapping.path.trim_start_matches('/'));
        let file = open_plain(&path, OFlags::NOFOLLOW);
        Self::Loaded(file.ok().and_then(|file| version(&file)))
    }
}

/// A line of `/proc/PID/maps` (`proc_pid_maps(5)`) that is of a file.
struct Mapping<'a> {
    /// As the line has it, and as an entry of `/proc/PID/map_files` is named.
    addresses: &'a str,
    path: &'a str,
}

/// What the kernel writes behind the name of a file that has this name no more.
const DELETED: &str = " (deleted)";

impl<'a> Mapping<'a> {
    fn of(line: &'a str) -> Option<Self> {
        Some(Self {
            addresses: line.split(' ').next()?,
            path: &line[line.find('/')?..],
        })
    }

    fn is_it(&self) -> bool {
        let name = self.path.trim_end_matches(DELETED).rsplit('/').next();
        name.is_some_and(|name| name.starts_with("libshunt"))
    }

    fn is_deleted(&self) -> bool {
        self.path.ends_with(DELETED)
    }

    /// The version of a file that has no name any more: by the kernel's link to it, which root may follow, or from
    /// memory. Of a library's mappings the first one begins with the file.
    fn version(&self, directory: &Path) -> Option<u32> {
        let link = directory.join("map_files").join(self.addresses);
        let file = open_plain(&link, OFlags::empty());
        file.ok()
            .and_then(|file| version(&file))
            .or_else(|| self.version_in_memory(directory))
    }

    fn version_in_memory(&self, directory: &Path) -> Option<u32> {
        let (start, end) = self.addresses.split_once('-')?;
        let [start, end] = [start, end].map(|word| u64::from_str_radix(word, 16).ok());
        let start = start?;
        let size = end?.checked_sub(start)?.min(elf::HEAD);
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        let memory = File::open(directory.join("mem")).ok()?;
        memory.read_exact_at(&mut bytes, start).ok()?;
        let elf = elf::parse(&bytes)?;
        elf.note_in(&bytes, note::OWNER, note::KIND, number)?
    }
}

/// The version that a libshunt.so speaks.
fn version(file: &File) -> Option<u32> {
    let mut head = Vec::new();
    file.take(elf::HEAD).read_to_end(&mut head).ok()?;
    elf::parse(&head)?.note(file, note::OWNER, note::KIND, number)?
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().map(u32::from_le_bytes).ok()
}

/// Opens a file whose name another user may have given since to something else, which to open alone has effects: a
/// device, a pipe, a link to one.
fn open_plain(path: &Path, flags: OFlags) -> std::io::Result<File> {
    let named = open(path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&named)?.st_mode) != FileType::RegularFile {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    File::open(format!("/proc/self/fd/{}", named.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_file_is_opened() {
        let directory = std::env::temp_dir().join(format!("shunt-plain-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let [plain, link, pipe] = ["plain", "link", "pipe"].map(|name| directory.join(name));
        fs::write(&plain, "text").unwrap();
        std::os::unix::fs::symlink(&plain, &link).unwrap();
        let mode = Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
        let opened = [plain, link, pipe].map(|path| open_plain(&path, OFlags::NOFOLLOW).is_ok());
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(opened, [true, false, false]);
        for flags in [OFlags::NOFOLLOW, OFlags::empty()] {
            assert!(open_plain(Path::new("/dev/null"), flags).is_err());
        }
    }

    #[test]
    fn lines_of_maps_tell_whether_a_file_has_its_name_still() {
        let line = |path| format!("7f0000001000-7f0000002000 r--p 00000000 fe:00 4711    {path}");
        let lines = [
            ("/usr/lib/shunt/libshunt.so", true, false),
            ("/usr/lib/shunt/libshunt.so (deleted)", true, true),
            ("/usr/lib/libshunting/libc.so.6 (deleted)", false, true),
        ];
        for (path, is_it, is_deleted) in lines {
            let line = line(path);
            let found = Mapping::of(&line).unwrap();
            assert_eq!(found.addresses, "7f0000001000-7f0000002000");
            assert_eq!((found.is_it(), found.is_deleted()), (is_it, is_deleted));
        }
        assert!(Mapping::of(&line("[heap]")).is_none());
    }
}
