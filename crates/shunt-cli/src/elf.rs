//! As much of the ELF format as tells whether a program will load libshunt, and
//! what libshunt itself loads.

/// What a 64-bit little-endian ELF file says about its loading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// `e_machine`.
    pub(crate) machine: u16,
    /// It asks for a dynamic loader (`PT_INTERP`).
    pub(crate) has_interpreter: bool,
    /// The libraries that it needs (`DT_NEEDED`).
    pub(crate) needed: Vec<String>,
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
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// Whether a file's first bytes are those of an ELF file of any kind.
pub(crate) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// Reads a file's headers; `None` if they are not those of a 64-bit
/// little-endian ELF file, or damaged.
pub(crate) fn parse(bytes: &[u8]) -> Option<Elf> {
    // EI_CLASS and EI_DATA: 64 bits, little-endian.
    if !is_elf(bytes) || bytes.get(4..6)? != [2, 1] {
        return None;
    }
    let machine = u16::from_le_bytes(field(bytes, 18)?);
    let table = usize::try_from(u64::from_le_bytes(field(bytes, 32)?)).ok()?;
    let size = usize::from(u16::from_le_bytes(field(bytes, 54)?));
    let count = usize::from(u16::from_le_bytes(field(bytes, 56)?));
    let mut elf = Elf {
        machine,
        has_interpreter: false,
        needed: Vec::new(),
    };
    let mut loads = Vec::new();
    let mut dynamic = None;
    for i in 0..count {
        let at = table.checked_add(i.checked_mul(size)?)?;
        let word = |offset: usize| -> Option<u64> {
            Some(u64::from_le_bytes(field(bytes, at.checked_add(offset)?)?))
        };
        // p_type; p_offset, p_vaddr and p_filesz are at 8, 16 and 32.
        match u32::from_le_bytes(field(bytes, at)?) {
            PT_LOAD => loads.push((word(8)?, word(16)?, word(32)?)),
            PT_DYNAMIC => dynamic = Some((word(8)?, word(32)?)),
            PT_INTERP => elf.has_interpreter = true,
            _ => {}
        }
    }
    if let Some((offset, size)) = dynamic {
        elf.needed = needed(bytes, offset, size, &loads).unwrap_or_default();
    }
    Some(elf)
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
        assert!(elf.has_interpreter);
        assert!(elf.needed.iter().any(|name| name == "libc.so.6"), "{elf:?}");
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
