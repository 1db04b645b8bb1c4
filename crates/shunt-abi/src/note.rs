//! The note by which libshunt.so tells the `shunt` command, before any program loads
//! it, that it is libshunt and which version it speaks.

use zerocopy::{Immutable, IntoBytes};

/// Whose note it is, as `n_name` says it.
pub const OWNER: &[u8; 6] = b"Shunt\0";
/// `n_type`: what follows is the version, four bytes.
pub const KIND: u32 = 1;

/// An ELF note (`elf(5)`, `Elf64_Nhdr`) that holds [`PROTOCOL`](crate::PROTOCOL).
#[derive(Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Note {
    name_size: u32,
    value_size: u32,
    kind: u32,
    /// Padded to a multiple of four bytes.
    name: [u8; 8],
    protocol: u32,
}

/// What libshunt.so carries.
pub const NOTE: Note = Note {
    name_size: OWNER.len() as u32,
    value_size: 4,
    kind: KIND,
    name: *b"Shunt\0\0\0",
    protocol: crate::PROTOCOL as u32,
};
