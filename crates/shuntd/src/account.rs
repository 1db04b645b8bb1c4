//! What a client counts: its region, and the file that its line goes to should it die
//! without having written it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{OFlags, SealFlags};
use shunt_abi::counters::{self, Header, RECORD_BYTES, RECORDS_AT, Record, SOCKETS, Served, Stage};
use shunt_abi::{PROTOCOL, Reason};
use zerocopy::FromBytes;

use crate::foreign::{Foreign, Lane};

/// Records read at once.
const BATCH: usize = 64;
/// Reasons that are noted of one client.
const NOTES: usize = 1024;

/// A client's counters region, checked. It is read, never mapped.
#[derive(Debug)]
pub(crate) struct Region(Foreign);

impl Region {
    /// `None` unless it is a region: a memory file that nobody can resize.
    pub(crate) fn new(file: Foreign) -> Option<Self> {
        let needed = SealFlags::SHRINK | SealFlags::GROW;
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(needed));
        let fits =
            rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_size as u64 == counters::SIZE as u64);
        (sealed && fits && header(&file).is_some()).then_some(Self(file))
    }

    /// The sockets that are in use, at most `most` of them.
    pub(crate) fn sockets(&self, most: usize) -> Vec<Record> {
        self.read(most)
            .map_or_else(Vec::new, |(_, sockets)| sockets)
    }

    /// What its process says of itself.
    pub(crate) fn owner(&self) -> Option<Owner> {
        header(&self.0).map(Owner::of)
    }

    /// Both: by one system call where there are few sockets.
    pub(crate) fn read(&self, most: usize) -> Option<(Owner, Vec<Record>)> {
        let mut bytes = [0; RECORDS_AT + BATCH * RECORD_BYTES];
        let read = rustix::io::pread(&self.0, &mut bytes[..], 0).ok()?;
        let (head, records) = bytes[..read].split_at_checked(RECORDS_AT)?;
        let header = parse(head)?;
        let used = used(&header);
        let mut sockets = Vec::with_capacity(used.min(BATCH));
        let mut take = |record| {
            sockets.push(record);
            sockets.len() < most
        };
        let first = &records[..records.len().min(used * RECORD_BYTES)];
        if each(first, &mut take) {
            visit(&self.0, BATCH..used, take);
        }
        Some((Owner::of(header), sockets))
    }

    /// Whether two are the same file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        is_same(&self.0, &other.0)
    }
}

/// Whether two descriptors name one file.
fn is_same(one: impl AsFd, other: impl AsFd) -> bool {
    let [one, other] = [rustix::fs::fstat(one), rustix::fs::fstat(other)];
    one.is_ok_and(|one| {
        other.is_ok_and(|other| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
    })
}

/// Whose a region is, as that process says.
#[derive(Debug)]
pub(crate) struct Owner {
    /// Its number in its own PID namespace.
    pub(crate) pid: u32,
    pub(crate) comm: [u8; 16],
    /// The descriptor of its statistics file, or -1.
    pub(crate) lines: i32,
    /// Wake-ups that it has sent and received.
    pub(crate) wakeups: [u64; 2],
    /// By whom it is served.
    pub(crate) served: Served,
}

impl Owner {
    fn of(header: Header) -> Self {
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        Self {
            pid: header.pid.load(relaxed),
            comm: header.comm.each_ref().map(|byte| byte.load(relaxed)),
            lines: header.served.lines.load(relaxed),
            wakeups: header.calls.each_ref().map(|calls| calls.load(relaxed)),
            served: header.served,
        }
    }
}

/// Where a client's line goes.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) region: Region,
    pub(crate) lines: Option<Lines>,
    /// Reasons that its process has been told, by `SO_COOKIE`.
    told: HashMap<u64, Reason>,
}

/// A file for lines.
#[derive(Debug)]
pub(crate) struct Lines {
    /// The file.
    pub(crate) file: Foreign,
    /// The group that its client belonged to when it connected, or when we found it.
    pub(crate) group: u32,
}

impl Account {
    /// What a process counts, and where its line goes.
    pub(crate) fn new(region: Region, lines: Option<Lines>) -> Self {
        Self {
            region,
            lines,
            told: HashMap::new(),
        }
    }

    /// Whether its process says in its region that the bytes of this socket move, or did, through
    /// shared memory.
    pub(crate) fn shows_attached(&self, cookie: u64) -> bool {
        let is_it = |record: &Record| {
            let is_attached = matches!(record.stage(), Stage::Attached | Stage::Aside);
            is_attached && record.cookie.load(Ordering::Relaxed) == cookie
        };
        self.region.sockets(SOCKETS).iter().any(is_it)
    }

    /// By which descriptor its process says in its region that it has this socket.
    pub(crate) fn descriptor_of(&self, cookie: u64) -> Option<i32> {
        let sockets = self.region.sockets(SOCKETS);
        let is_it = |record: &&Record| record.cookie.load(Ordering::Relaxed) == cookie;
        let fd = sockets.iter().find(is_it)?.fd.load(Ordering::Relaxed);
        Some(fd)
    }

    /// Its process is told why a connection is not shunted. It may end before it hears that.
    pub(crate) fn note(&mut self, cookie: u64, reason: Reason) {
        if self.told.len() >= NOTES {
            let sockets = self.region.sockets(SOCKETS);
            let cookies = sockets.iter().map(|s| s.cookie.load(Ordering::Relaxed));
            let open: HashSet<u64> = cookies.collect();
            self.told.retain(|cookie, _| open.contains(cookie));
        }
        if self.told.len() < NOTES {
            self.told.insert(cookie, reason);
        }
    }

    /// The client has ended: the user's lane writes its line if the client has not.
    pub(crate) fn settle(self, pid: u32, lane: &Arc<Lane>) {
        if let Some(lines) = self.lines {
            lane.write(LastLine {
                pid,
                group: lines.group,
                region: self.region.0.hand_over(),
                lines: lines.file.hand_over(),
                told: self.told,
            });
        }
    }
}

/// Whether a descriptor is open for appending only: whatever it is, nobody reads from it
/// what he could not, nor overwrites anything.
pub(crate) fn takes_lines(file: impl AsFd) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| {
        flags.contains(OFlags::APPEND) && flags & OFlags::ACCMODE == OFlags::WRONLY
    })
}

/// A line to be written by a thread that may wait for the file.
#[derive(Debug)]
pub(crate) struct LastLine {
    pid: u32,
    /// The group that it is written in the name of.
    pub(crate) group: u32,
    region: OwnedFd,
    lines: OwnedFd,
    told: HashMap<u64, Reason>,
}

impl LastLine {
    /// Writes it unless its process has.
    pub(crate) fn write(self) {
        let Some(header) = header(&self.region) else {
            return;
        };
        if header.written.load(std::sync::atomic::Ordering::Relaxed) != 0 {
            return;
        }
        visit(&self.region, 0..used(&header), |record| {
            let told = self.told.get(&record.cookie.load(Ordering::Relaxed));
            let so_far = Reason::from_number(record.reason.load(Ordering::Relaxed));
            if let Some(told) = told.filter(|_| so_far.is_some_and(Reason::is_provisional)) {
                record.reason.store(*told as u8, Ordering::Relaxed);
            }
            header.add_dead(&record);
            true
        });
        let mut line = String::new();
        if header.write_line(&mut line, self.pid).is_ok() {
            // One write, so that lines of several processes do not mix.
            let _ = rustix::io::write(&self.lines, line.as_bytes());
        }
    }
}

fn header(file: impl AsFd) -> Option<Header> {
    let mut bytes = [0; size_of::<Header>()];
    let read = rustix::io::pread(file, &mut bytes[..], 0).ok()?;
    parse(bytes.get(..read)?)
}

/// The header that a region begins with, if it is one of this version.
fn parse(bytes: &[u8]) -> Option<Header> {
    let (header, _) = Header::read_from_prefix(bytes).ok()?;
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    let ours = header.magic.load(relaxed) == counters::MAGIC
        && header.protocol.load(relaxed) == u32::from(PROTOCOL);
    ours.then_some(header)
}

/// How many records have ever been in use.
fn used(header: &Header) -> usize {
    let used = header.used.load(std::sync::atomic::Ordering::Relaxed);
    SOCKETS.min(used as usize)
}

/// Calls `visit` for each socket in use that has one of these records, until it says no.
fn visit(file: impl AsFd, records: Range<usize>, mut visit: impl FnMut(Record) -> bool) {
    let file = file.as_fd();
    let end = records.end;
    let mut bytes = [0; BATCH * RECORD_BYTES];
    for first in records.step_by(BATCH) {
        let some = &mut bytes[..BATCH.min(end - first) * RECORD_BYTES];
        let at = (RECORDS_AT + first * RECORD_BYTES) as u64;
        let Ok(read) = rustix::io::pread(file, &mut some[..], at) else {
            return;
        };
        if !each(&some[..read], &mut visit) {
            return;
        }
    }
}

/// Calls `visit` for each of these records that is in use; `false`: it has said no.
fn each(records: &[u8], mut visit: impl FnMut(Record) -> bool) -> bool {
    let records = records.chunks_exact(RECORD_BYTES);
    let mut records = records.map_while(|record| Record::read_from_bytes(record).ok());
    records.all(|record| !record.is_live() || visit(record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::Lanes;
    use rustix::fs::MemfdFlags;
    use std::fs::File;
    use std::mem::offset_of;

    /// A region of this version with so many records in use, each with its number as its descriptor.
    fn region(records: usize) -> Region {
        let file = rustix::fs::memfd_create("region", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, counters::SIZE as u64).unwrap();
        let write = |bytes: &[u8], at: usize| {
            assert_eq!(rustix::io::pwrite(&file, bytes, at as u64), Ok(bytes.len()));
        };
        write(&counters::MAGIC.to_ne_bytes(), 0);
        write(
            &u32::from(PROTOCOL).to_ne_bytes(),
            offset_of!(Header, protocol),
        );
        write(&(records as u32).to_ne_bytes(), offset_of!(Header, used));
        for number in 0..records {
            let at = RECORDS_AT + number * RECORD_BYTES;
            write(&[Stage::Attached as u8], at + offset_of!(Record, stage));
            write(&(number as i32).to_ne_bytes(), at + offset_of!(Record, fd));
        }
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let lane = Lanes::new().unwrap().of(0);
        Region::new(Foreign::new(file, &lane)).unwrap()
    }

    #[test]
    fn all_records_are_read_whichever_batch_they_are_in() {
        for records in [0, 1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH + 5] {
            let region = region(records);
            for most in [1, BATCH, BATCH + 1, SOCKETS] {
                let sockets = region.sockets(most);
                let fds = sockets
                    .iter()
                    .map(|record| record.fd.load(Ordering::Relaxed));
                let expected = 0..records.min(most) as i32;
                assert!(fds.eq(expected), "{records} records, {most} wanted");
            }
        }
    }

    #[test]
    fn files_of_two_file_systems_are_two_be_their_inodes_the_same() {
        let [one, other] = ["/proc", "/sys"].map(|root| File::open(root).unwrap());
        let inode = |file: &File| rustix::fs::fstat(file).unwrap().st_ino;
        assert_eq!(inode(&one), inode(&other));
        assert!(!is_same(&one, &other));
        assert!(is_same(&one, one.try_clone().unwrap()));
    }
}
