//! Counters regions as libshunt makes them.

use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use shunt_abi::PROTOCOL;
use shunt_abi::counters::{Header, MAGIC, RECORD_BYTES, RECORDS_AT, Record, SIZE, Served, Stage};
use shunt_abi::message::{Kind, Message, Role};

use super::{Client, WATCHDOG};

pub const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// More sockets than have records in the part of a region that is mapped first.
pub const MANY: usize = 3000;

/// A region with [`MANY`] connections, each attached and with 5 bytes sent through its ring;
/// it says that `used` records have been in use.
pub fn region(written: u32, used: u32, size: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("shunt-counters", flags).unwrap();
    rustix::fs::ftruncate(&file, size).unwrap();
    let mut header = Vec::new();
    header.extend(MAGIC.to_ne_bytes());
    for word in [u32::from(PROTOCOL), written, used, 0] {
        header.extend(word.to_ne_bytes());
    }
    header.extend(*b"we\"ird\0\0\0\0\0\0\0\0\0\0");
    rustix::io::pwrite(&file, &header, 0).unwrap();
    let mut record = [0_u8; RECORD_BYTES];
    record[8..12].copy_from_slice(&(-1_i32).to_ne_bytes());
    (record[16], record[19]) = (Stage::Attached as u8, 1);
    record[64] = 5;
    if size >= SIZE as u64 {
        rustix::io::pwrite(&file, &record.repeat(MANY), RECORDS_AT as u64).unwrap();
    }
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// A region of a process that listens on a socket, has its statistics in a file, and is
/// served by the daemon at `name`.
pub fn region_of(pid: u32, name: &str, netns: u64, lines: i32, listener: i32) -> OwnedFd {
    let file = region(0, 1, SIZE as u64, SealFlags::empty());
    let write = |bytes: &[u8], at: usize| {
        assert_eq!(rustix::io::pwrite(&file, bytes, at as u64), Ok(bytes.len()));
    };
    write(&pid.to_ne_bytes(), offset_of!(Header, pid));
    let served = offset_of!(Header, served);
    write(&netns.to_ne_bytes(), served + offset_of!(Served, netns));
    write(&lines.to_ne_bytes(), served + offset_of!(Served, lines));
    write(name.as_bytes(), served + offset_of!(Served, name));
    write(&listener.to_ne_bytes(), RECORDS_AT + offset_of!(Record, fd));
    write(
        &[Stage::Listener as u8],
        RECORDS_AT + offset_of!(Record, stage),
    );
    rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
    file
}

/// A region of a process that has a connection in shared memory.
pub fn region_with(socket: impl AsFd, cookie: u64, role: Role) -> OwnedFd {
    let file = region(0, 1, SIZE as u64, SealFlags::empty());
    let write = |bytes: &[u8], at: usize| {
        assert_eq!(
            rustix::io::pwrite(&file, bytes, (RECORDS_AT + at) as u64),
            Ok(bytes.len())
        );
    };
    let fd = socket.as_fd().as_raw_fd();
    write(&cookie.to_ne_bytes(), offset_of!(Record, cookie));
    write(&fd.to_ne_bytes(), offset_of!(Record, fd));
    write(&[role as u8], offset_of!(Record, role));
    rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
    file
}

/// Shows it.
pub fn show_region(client: &Client, region: &OwnedFd) {
    client.send(&Message::new(Kind::Counters), Some(region.as_fd()));
}

pub fn append(path: &str) -> File {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .unwrap()
}

pub fn show(client: &Client, region: &OwnedFd, file: impl AsFd) {
    client.send(&Message::new(Kind::Counters), Some(region.as_fd()));
    client.send(&Message::new(Kind::Statistics), Some(file.as_fd()));
}

/// Waits until the file has a line of this process; all lines.
pub fn lines_with(path: &str, pid: u32) -> Vec<String> {
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if text.contains(&format!("{{\"pid\":{pid},")) {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(start.elapsed() < WATCHDOG, "no line of {pid}: {text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
