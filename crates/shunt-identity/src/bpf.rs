//! The system call `bpf(2)`, as far as it is needed: all unsafe code of the crate is here.
//!
//! Each command reads a structure of its own, of which the kernel takes as many bytes as it is told. The layouts are
//! those of the members of `union bpf_attr` in `<linux/bpf.h>`.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use zerocopy::{Immutable, IntoBytes};

use crate::Unavailable;
use crate::assembly::Instruction;

const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;

const MAP_TYPE_ARRAY: u32 = 2;
/// Processes may map its memory (Linux 5.5).
const MAP_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_SOCK_OPS: u32 = 13;
pub(crate) const CGROUP_SOCK_OPS: u32 = 3;

/// Names are for people who look with `bpftool`.
type Name = [u8; 16];

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct MapAttributes {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: Name,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ProgramAttributes {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: Name,
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct LinkAttributes {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}

/// # Safety
///
/// `attributes` is of the layout that the command reads. What addresses in it name is there during the call, as
/// large as the attributes (or the map that they name) say, and what the kernel writes may be written.
unsafe fn bpf<A: IntoBytes + Immutable>(
    command: libc::c_long,
    attributes: &mut A,
) -> io::Result<libc::c_int> {
    let at = &raw mut *attributes;
    // SAFETY: the kernel reads `size_of::<A>()` bytes, all of them initialised (`IntoBytes`), and writes
    // no others. What addresses in them name is there, and large enough, by the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<A>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as libc::c_int)
}

/// # Safety
///
/// That of [`bpf`], and the command makes a descriptor.
unsafe fn bpf_descriptor<A: IntoBytes + Immutable>(
    command: libc::c_long,
    attributes: &mut A,
) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let descriptor = unsafe { bpf(command, attributes) }?;
    // SAFETY: the kernel has just made it for us, closed at `exec` as all of `bpf`.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Memory that a program in the kernel writes, and this process reads: an array of one entry.
#[derive(Debug)]
pub(crate) struct Region {
    descriptor: OwnedFd,
    at: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory belongs to no thread, and all of it is read as atomic words.
unsafe impl Send for Region {}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Region {
    /// One of this number of words, all of them zero.
    pub(crate) fn new(called: &CStr, words: usize) -> io::Result<Self> {
        let mut attributes = MapAttributes {
            map_type: MAP_TYPE_ARRAY,
            key_size: size_of::<u32>() as u32,
            value_size: (words * size_of::<u64>()) as u32,
            max_entries: 1,
            map_flags: MAP_MMAPABLE,
            inner_map_fd: 0,
            numa_node: 0,
            map_name: name(called),
        };
        // SAFETY: the attributes name no memory, and the command makes a descriptor.
        let descriptor = unsafe { bpf_descriptor(MAP_CREATE, &mut attributes) }?;
        let at = map(descriptor.as_fd(), words)?;
        Ok(Self {
            descriptor,
            at,
            words,
        })
    }

    /// # Panics
    ///
    /// If there are not so many words.
    pub(crate) fn word(&self, number: usize) -> &AtomicU64 {
        assert!(number < self.words);
        // SAFETY: the word is there as long as the mapping, which ends with `self`, and lies on a boundary of eight
        // bytes, as a mapping begins at a page. The kernel changes it by single stores, and nothing of ours writes it.
        unsafe { self.at.add(number).as_ref() }
    }
}

/// Maps all words of a region for reading.
fn map(region: BorrowedFd<'_>, words: usize) -> io::Result<NonNull<AtomicU64>> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            words * size_of::<u64>(),
            libc::PROT_READ,
            libc::MAP_SHARED,
            region.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `map` has made the mapping, of this length, and no reference to a word of it outlives `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}

/// Has the kernel check a program of the type `SOCK_OPS` and translate it.
pub(crate) fn load(code: &[Instruction]) -> Result<OwnedFd, Unavailable> {
    // What it says is asked for only when there is something to be said: it costs time.
    load_with(code, &mut []).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EACCES) => {
            let mut log = vec![0; 1 << 16];
            load_with(code, &mut log).map_err(|_| Unavailable::Refused(objection(&log)))
        }
        _ => Err(Unavailable::at("load the eBPF program")(error)),
    })
}

fn load_with(code: &[Instruction], log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attributes = ProgramAttributes {
        prog_type: PROG_TYPE_SOCK_OPS,
        insn_cnt: code.len() as u32,
        insns: code.as_ptr() as u64,
        // It calls no helper that is for programs under the GPL only.
        license: c"Apache-2.0 OR MIT".as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_size: log.len() as u32,
        log_buf: if log.is_empty() {
            0
        } else {
            log.as_mut_ptr() as u64
        },
        kern_version: 0,
        prog_flags: 0,
        prog_name: name(c"shunt_identity"),
        prog_ifindex: 0,
        expected_attach_type: CGROUP_SOCK_OPS,
    };
    // SAFETY: code, licence and log are there during the call, as long as the attributes say, and the
    // command makes a descriptor.
    unsafe { bpf_descriptor(PROG_LOAD, &mut attributes) }
}

/// The line of the verifier's log that says what is wrong: the last one but for statistics.
fn objection(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    let mut lines = text.trim_end_matches('\0').lines();
    let line = lines.rfind(|line| !line.starts_with("processed "));
    line.unwrap_or("no reason given").to_owned()
}

/// Attaches a program to a cgroup, beside those of others, for as long as the descriptor lives (Linux 5.7).
pub(crate) fn attach(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attributes = LinkAttributes {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: cgroup.as_raw_fd() as u32,
        attach_type: CGROUP_SOCK_OPS,
        flags: 0,
    };
    // SAFETY: the attributes name no memory, and the command makes a descriptor.
    unsafe { bpf_descriptor(LINK_CREATE, &mut attributes) }
}

/// With a zero behind it, whatever its length.
fn name(called: &CStr) -> Name {
    let mut name = Name::default();
    for (to, from) in name[..15].iter_mut().zip(called.to_bytes()) {
        *to = *from;
    }
    name
}

#[cfg(test)]
pub(crate) mod query {
    //! What is attached to a cgroup, for tests.

    use super::*;

    const PROG_QUERY: libc::c_long = 16;

    #[derive(IntoBytes, Immutable)]
    #[repr(C)]
    struct QueryAttributes {
        target_fd: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        prog_ids: u64,
        prog_cnt: u32,
        unused: u32,
    }

    /// The numbers of the `SOCK_OPS` programs that are attached to it.
    pub(crate) fn attached(cgroup: BorrowedFd<'_>) -> Vec<u32> {
        let mut ids = [0u32; 64];
        let mut attributes = QueryAttributes {
            target_fd: cgroup.as_raw_fd() as u32,
            attach_type: CGROUP_SOCK_OPS,
            query_flags: 0,
            attach_flags: 0,
            prog_ids: ids.as_mut_ptr() as u64,
            prog_cnt: ids.len() as u32,
            unused: 0,
        };
        // SAFETY: there is room for as many numbers as the attributes say.
        unsafe { bpf(PROG_QUERY, &mut attributes) }.unwrap();
        ids.into_iter().filter(|id| *id != 0).collect()
    }
}
