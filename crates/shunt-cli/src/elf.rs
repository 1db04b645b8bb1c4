//! As much of the ELF format as tells whether a program will load libshunt and call it,
//! and what libshunt itself is and loads.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// What a 64-bit little-endian ELF file says about its loading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// `e_machine`.
    pub(crate) machine: u16,
    /// The dynamic loader that it asks for (`PT_INTERP`).
    pub(crate) interpreter: Option<String>,
    /// The libraries that it needs (`DT_NEEDED`), as far as the bytes given tell.
    pub(crate) needed: Vec<String>,
    /// How long the file is if nothing of it is missing that is loaded.
    pub(crate) size: u64,
    /// Where in the file its notes are (`PT_NOTE`).
    notes: Vec<Range<u64>>,
    /// Where in the file its writable data are, and their address.
    data: Vec<(Range<u64>, u64)>,
}

impl Elf {
    /// What `take` makes of the value of a note.
    pub(crate) fn note<T>(
        &self,
        file: &File,
        owner: &[u8],
        kind: u32,
        take: impl Fn(&[u8]) -> T,
    ) -> Option<T> {
        self.note_by(|range| read(file, range), owner, kind, take)
    }

    /// The same of a file of which these are the first bytes.
    pub(crate) fn note_in<T>(
        &self,
        bytes: &[u8],
        owner: &[u8],
        kind: u32,
        take: impl Fn(&[u8]) -> T,
    ) -> Option<T> {
        let part = |range: &Range<u64>| {
            let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
            bytes.get(range).map(<[u8]>::to_vec)
        };
        self.note_by(part, owner, kind, take)
    }

    fn note_by<T>(
        &self,
        read: impl Fn(&Range<u64>) -> Option<Vec<u8>>,
        owner: &[u8],
        kind: u32,
        take: impl Fn(&[u8]) -> T,
    ) -> Option<T> {
        self.notes.iter().find_map(|range| {
            let bytes = read(range)?;
            let found = notes(&bytes).find(|note| note.owner == owner && note.kind == kind)?;
            Some(take(found.value))
        })
    }

    /// Whether it was built from Go: by the note or the record that Go's linker leaves,
    /// of which the second is still there when all symbols have been stripped.
    pub(crate) fn is_go(&self, file: &File) -> bool {
        // The build id is note 4 of "Go"; the record is aligned to its size.
        let record = |(range, address): &(Range<u64>, u64)| {
            let padding = (16 - address % 16) % 16;
            read(file, &(range.start + padding..range.end))
                .is_some_and(|bytes| bytes.as_chunks::<16>().0.iter().any(|c| c.starts_with(GO)))
        };
        self.note(file, b"Go\0\0", 4, |_| ()).is_some() || self.data.iter().any(record)
    }
}

/// How the record that Go's `debug/buildinfo` looks for begins.
const GO: &[u8] = b"\xff Go buildinf:";

/// No part of a file that matters here is longer.
const LONGEST: u64 = 1 << 20;

fn read(file: &File, range: &Range<u64>) -> Option<Vec<u8>> {
    let size = range.end.checked_sub(range.start)?.min(LONGEST);
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    let got = file.read_at(&mut bytes, range.start).ok()?;
    bytes.truncate(got);
    Some(bytes)
}

struct Note<'a> {
    owner: &'a [u8],
    kind: u32,
    value: &'a [u8],
}

/// The notes in a segment of them (`elf(5)`, `Elf64_Nhdr`), up to the first damaged one.
fn notes(mut bytes: &[u8]) -> impl Iterator<Item = Note<'_>> {
    std::iter::from_fn(move || {
        let size = |at| Some(u32::from_le_bytes(field(bytes, at)?) as usize);
        let (owner, value, kind) = (size(0)?, size(4)?, size(8)? as u32);
        let start = 12_usize.checked_add(owner)?.checked_next_multiple_of(4)?;
        let end = start.checked_add(value)?;
        let note = Note {
            owner: bytes.get(12..12 + owner)?,
            kind,
            value: bytes.get(start..end)?,
        };
        bytes = bytes.get(end.next_multiple_of(4)..).unwrap_or_default();
        Some(note)
    })
}

/// `e_machine` of this build.
pub(crate) const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// `p_flags`: writable.
const PF_W: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// How much of a file to read for its headers.
pub(crate) const HEAD: u64 = 64 << 10;

/// Whether a file's first bytes are those of an ELF file of any kind.
pub(crate) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// `EI_CLASS` and `EI_DATA`: 64 bits, little-endian.
pub(crate) const CLASS: [u8; 2] = [2, 1];

/// Where in the file the table of its program headers ends, if the bytes given tell.
pub(crate) fn table_end(bytes: &[u8]) -> Option<u64> {
    let table = u64::from_le_bytes(field(bytes, 32)?);
    let half = |at| Some(u64::from(u16::from_le_bytes(field(bytes, at)?)));
    table.checked_add(half(54)? * half(56)?)
}

/// Reads a file's headers; `None` if they are not those of a 64-bit
/// little-endian ELF file, or damaged.
pub(crate) fn parse(bytes: &[u8]) -> Option<Elf> {
    if !is_elf(bytes) || bytes.get(4..6)? != CLASS {
        return None;
    }
    let machine = u16::from_le_bytes(field(bytes, 18)?);
    let table = usize::try_from(u64::from_le_bytes(field(bytes, 32)?)).ok()?;
    let size = usize::from(u16::from_le_bytes(field(bytes, 54)?));
    let count = usize::from(u16::from_le_bytes(field(bytes, 56)?));
    let mut elf = Elf {
        machine,
        interpreter: None,
        needed: Vec::new(),
        size: 0,
        notes: Vec::new(),
        data: Vec::new(),
    };
    let mut loads = Vec::new();
    let mut dynamic = None;
    for i in 0..count {
        let at = table.checked_add(i.checked_mul(size)?)?;
        let word = |offset: usize| -> Option<u64> {
            Some(u64::from_le_bytes(field(bytes, at.checked_add(offset)?)?))
        };
        // p_type; p_flags, p_offset, p_vaddr and p_filesz are at 4, 8, 16 and 32.
        let (offset, address, size) = (word(8)?, word(16)?, word(32)?);
        let range = offset..offset.checked_add(size)?;
        match u32::from_le_bytes(field(bytes, at)?) {
            PT_LOAD => {
                loads.push((offset, address, size));
                elf.size = elf.size.max(range.end);
                if u32::from_le_bytes(field(bytes, at.checked_add(4)?)?) & PF_W != 0 {
                    elf.data.push((range, address));
                }
            }
            PT_DYNAMIC => dynamic = Some((offset, size)),
            PT_INTERP => elf.interpreter = Some(text(bytes, range).unwrap_or_default()),
            PT_NOTE => elf.notes.push(range),
            _ => {}
        }
    }
    if let Some((offset, size)) = dynamic {
        elf.needed = needed(bytes, offset, size, &loads).unwrap_or_default();
    }
    Some(elf)
}

/// A string that ends with a NUL.
fn text(bytes: &[u8], range: Range<u64>) -> Option<String> {
    let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
    let text = bytes.get(range)?.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// The names in the dynamic section; `loads` are (offset, address, size).
fn needed(bytes: &[u8], offset: u64, size: u64, loads: &[(u64, u64, u64)]) -> Option<Vec<String>> {
    let start = usize::try_from(offset).ok()?;
    let section = bytes.get(start..start.checked_add(usize::try_from(size).ok()?)?)?;
    let entries = || {
        section.as_chunks::<16>().0.iter().filter_map(|entry| {
            let (tag, value) = (field(entry, 0)?, field(entry, 8)?);
            Some((u64::from_le_bytes(tag), u64::from_le_bytes(value)))
        })
    };
    let address = entries().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let load = loads
        .iter()
        .find(|(_, at, size)| address.checked_sub(*at).is_some_and(|d| d < *size))?;
    let strings = bytes.get(usize::try_from(address - load.1 + load.0).ok()?..)?;
    let name = |at: u64| {
        let text = strings
            .get(usize::try_from(at).ok()?..)?
            .split(|byte| *byte == 0)
            .next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    entries()
        .filter(|(tag, _)| *tag == DT_NEEDED)
        .map(|(_, at)| name(at))
        .collect()
}

/// `N` bytes at an offset.
fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_dynamic_program_that_needs_libc() {
        let elf = parse(&std::fs::read("/proc/self/exe").unwrap()).unwrap();
        assert_eq!(elf.machine, MACHINE);
        assert!(
            elf.interpreter
                .as_ref()
                .is_some_and(|path| path.contains("/ld-"))
        );
        assert!(elf.needed.iter().any(|name| name == "libc.so.6"), "{elf:?}");
    }

    #[test]
    fn notes_are_read_up_to_the_first_damaged_one() {
        let good = b"\x03\0\0\0\x02\0\0\0\x07\0\0\0abc\0xy\0\0";
        let both = [&good[..], &good[..]].concat();
        let found: Vec<_> = notes(&both).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].owner, found[1].kind), (&b"abc"[..], 7));
        assert_eq!(found[1].value, b"xy");
        for length in 0..good.len() - 2 {
            assert_eq!(notes(&good[..length]).count(), 0, "{length}");
        }
        assert_eq!(notes(&[0xff; 64]).count(), 0);
    }

    #[test]
    fn damaged_files_are_no_elf_and_no_panic() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        for length in (0..512).chain([4096]) {
            let _ = parse(&whole[..length.min(whole.len())]);
        }
        let mut wild = whole[..4096.min(whole.len())].to_vec();
        for at in 16..256 {
            let kept = std::mem::replace(&mut wild[at], 0xff);
            let _ = parse(&wild);
            wild[at] = kept;
        }
        assert_eq!(parse(b"#!/bin/sh"), None);
    }
}
