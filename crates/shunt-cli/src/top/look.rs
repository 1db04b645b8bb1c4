//! Two looks at the counters, one after the other, and what has happened in a second between them.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use compact_str::CompactString;

use crate::ss::Source;
use crate::ss::connection::{Calls, Connection, Counts, Process, Way};

/// How many looks are remembered for each row.
const REMEMBERED: usize = 240;

/// What was there at one time.
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) connections: Vec<Connection>,
    pub(super) processes: HashMap<Who, Used>,
}

/// A process from one look to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Who {
    pub(super) comm: CompactString,
    pub(super) pid: Option<u32>,
    pub(super) container: Option<CompactString>,
}

/// What a process has used since it began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// How often it was woken.
    pub(super) woken: Option<u64>,
    /// Seconds of processor time.
    pub(super) worked: Option<f64>,
}

/// Who looks, again and again.
#[derive(Default)]
pub(super) struct Looker {
    source: Source,
    /// `/proc/PID/stat` of each process that was seen in the last look.
    files: HashMap<u32, File>,
}

/// The most files that are kept open.
const MOST_FILES: usize = 256;

impl Looker {
    /// Asks every daemon that serves this user.
    pub(super) fn look(&mut self) -> Result<Look> {
        let connections = self.source.collect(|_| true)?.connections;
        let mut processes: HashMap<Who, Used> = HashMap::new();
        let mut before = std::mem::take(&mut self.files);
        for end in connections.iter().flat_map(|c| &c.processes) {
            let mut begin = || Used {
                woken: None,
                worked: end
                    .pid
                    .and_then(|pid| self.worked(pid, &end.comm, before.remove(&pid))),
            };
            let used = processes.entry(who(end)).or_insert_with(&mut begin);
            // All ends of a process say the same, at slightly different times.
            used.woken = used
                .woken
                .max(end.counts.as_ref().map(|counts| counts.wakeups_received));
        }
        Ok(Look {
            at: Instant::now(),
            connections,
            processes,
        })
    }

    /// The processor time of a process, if the number means the same one here as to shuntd. A file tells of the process
    /// with which it was opened, or nothing.
    fn worked(&mut self, pid: u32, comm: &str, file: Option<File>) -> Option<f64> {
        let known = file.and_then(|file| Some((ticks_in(&file, comm)?, file)));
        let (ticks, file) = known.or_else(|| {
            let file = File::open(format!("/proc/{pid}/stat")).ok()?;
            Some((ticks_in(&file, comm)?, file))
        })?;
        if self.files.len() < MOST_FILES {
            self.files.insert(pid, file);
        }
        Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

pub(super) fn who(process: &Process) -> Who {
    Who {
        comm: process.comm.clone(),
        pid: process.pid,
        container: process.container.clone(),
    }
}

/// What such a file says.
fn ticks_in(file: &File, comm: &str) -> Option<u64> {
    let mut line = [0; 1024];
    let length = file.read_at(&mut line, 0).ok()?;
    ticks(std::str::from_utf8(&line[..length]).ok()?, comm)
}

/// `utime` and `stime` of a line of `/proc/PID/stat` (`proc_pid_stat(5)`).
fn ticks(stat: &str, comm: &str) -> Option<u64> {
    // The name is in parentheses and may contain some.
    let (head, rest) = stat.rsplit_once(") ")?;
    if head.split_once(" (")?.1 != comm {
        return None;
    }
    let mut fields = rest.split(' ').skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// What a connection does in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Bytes to the client and to the server, each through the ring and through the kernel.
    pub(super) bytes: [[f64; 2]; 2],
    /// Calls that send, to the client and to the server; `None`: they are not counted.
    pub(super) messages: [Option<f64>; 2],
    /// Calls of both ends: answered without a system call, and by the kernel.
    pub(super) calls: [f64; 2],
    /// Waits of the server's and of the client's end that go to sleep.
    pub(super) sleeps: [Option<f64>; 2],
}

/// Ends by number. The direction with the same number is the one in which an end sends.
const ENDS: [&str; 2] = ["server", "client"];

impl Rates {
    /// Bytes of a direction, whatever their path.
    pub(super) fn way(&self, direction: usize) -> f64 {
        self.bytes[direction].iter().sum()
    }

    /// Bytes of both directions.
    pub(super) fn both(&self) -> f64 {
        self.way(0) + self.way(1)
    }
}

/// Bytes per second of the last looks, the newest first.
pub(super) type Past = VecDeque<u64>;

fn remember(past: &mut Past, rate: f64) {
    past.push_front(rate as u64);
    past.truncate(REMEMBERED);
}

/// A connection with what it does.
pub(super) struct Flow {
    pub(super) connection: Connection,
    /// `None`: it has been seen once.
    pub(super) rates: Option<Rates>,
    pub(super) past: Past,
}

/// A connection from one look to the next.
pub(super) type FlowKey = (SocketAddr, SocketAddr, Vec<Option<u32>>);

/// What `shunt ss` calls the paths of connections.
pub(super) const PATHS: [&str; 3] = ["shm", "rdma", "tcp"];

impl Flow {
    /// The number of its path.
    pub(super) fn path(&self) -> usize {
        let path = PATHS.iter().position(|path| *path == self.connection.path);
        path.unwrap_or(PATHS.len() - 1)
    }

    pub(super) fn key(&self) -> FlowKey {
        key(&self.connection)
    }
}

fn key(c: &Connection) -> FlowKey {
    let pids = c.processes.iter().map(|process| process.pid);
    (c.local, c.peer, pids.collect())
}

/// The connections of now, with what they have done since `before`.
pub(super) fn flows(before: Vec<Flow>, now: Vec<Connection>, between: Duration) -> Vec<Flow> {
    let mut before: HashMap<_, _> = before.into_iter().map(|flow| (flow.key(), flow)).collect();
    let flow = |connection: Connection| {
        let Some(earlier) = before.remove(&key(&connection)) else {
            return Flow {
                connection,
                rates: None,
                past: Past::new(),
            };
        };
        let rates = rates(&earlier.connection, &connection, between);
        let mut past = earlier.past;
        remember(&mut past, rates.both());
        Flow {
            connection,
            rates: Some(rates),
            past,
        }
    };
    now.into_iter().map(flow).collect()
}

fn rates(before: &Connection, now: &Connection, between: Duration) -> Rates {
    // Another connection may have got the same addresses: it has counted less.
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / between.as_secs_f64();
    let way =
        |before: Way, now: Way| [rate(before.ring, now.ring), rate(before.kernel, now.kernel)];
    let bytes = [
        way(before.bytes.to_client, now.bytes.to_client),
        way(before.bytes.to_server, now.bytes.to_server),
    ];
    // What an end has counted, if both looks have seen it.
    let counted = |end: usize, part: fn(&Counts) -> u64| {
        let [before, now] = [before, now].map(|c| counts(c, ENDS[end]).map(part));
        Some(rate(before?, now?))
    };
    let both = |part: fn(&Counts) -> u64| {
        let ends = [0, 1].map(|end| counted(end, part));
        ends.into_iter().flatten().sum()
    };
    let calls = [
        both(|counts| counts.sent.user + counts.received.user),
        both(|counts| counts.sent.kernel + counts.received.kernel),
    ];
    // Calls on a connection that stays on TCP for good are the kernel's alone.
    let is_counted = calls != [0.0; 2] || bytes == [[0.0; 2]; 2];
    let messages = |direction: usize| {
        let sent = counted(direction, |counts| sum(counts.sent));
        sent.or_else(|| counted(1 - direction, |counts| sum(counts.received)))
    };
    let sleeps = |end| counted(end, |counts| counts.sleeps);
    Rates {
        bytes,
        messages: [0, 1].map(|direction| messages(direction).filter(|_| is_counted)),
        calls,
        sleeps: [0, 1].map(|end| sleeps(end).filter(|_| is_counted)),
    }
}

fn counts<'a>(c: &'a Connection, end: &str) -> Option<&'a Counts> {
    let process = c.processes.iter().find(|process| process.end == end)?;
    process.counts.as_ref()
}

fn sum(calls: Calls) -> u64 {
    calls.user + calls.kernel
}

/// A process with what all its connections do.
pub(super) struct Program {
    pub(super) who: Who,
    pub(super) uid: Option<u32>,
    /// Connections in shared memory, by RDMA, and on TCP.
    pub(super) connections: [u32; 3],
    /// Bytes sent and received.
    pub(super) bytes: Option<[f64; 2]>,
    /// Calls that send, its own and those of its peers.
    pub(super) messages: [Option<f64>; 2],
    pub(super) sleeps: Option<f64>,
    pub(super) woken: Option<f64>,
    /// Processors that it keeps busy.
    pub(super) busy: Option<f64>,
    pub(super) past: Past,
}

/// The processes of connections, with what they have used since `before`.
pub(super) fn programs(
    flows: &[Flow],
    before: Vec<Program>,
    used: [&HashMap<Who, Used>; 2],
    between: Duration,
) -> Vec<Program> {
    let pasts = before
        .into_iter()
        .map(|program| (program.who, program.past));
    let mut pasts: HashMap<_, _> = pasts.collect();
    let mut found: HashMap<Who, Program> = HashMap::new();
    for flow in flows {
        for end in &flow.connection.processes {
            let who = who(end);
            let program = found
                .entry(who.clone())
                .or_insert_with(|| program(who, end.uid, used, between));
            program.add(flow, usize::from(end.end != ENDS[0]));
        }
    }
    let mut programs: Vec<_> = found.into_values().collect();
    programs.sort_by(|one, other| one.who.cmp(&other.who));
    for program in &mut programs {
        program.past = pasts.remove(&program.who).unwrap_or_default();
        if let Some([sent, received]) = program.bytes {
            remember(&mut program.past, sent + received);
        }
    }
    programs
}

/// Without any connection yet.
fn program(
    who: Who,
    uid: Option<u32>,
    used: [&HashMap<Who, Used>; 2],
    between: Duration,
) -> Program {
    let seconds = between.as_secs_f64();
    let [before, now] = used.map(|used| used.get(&who).copied().unwrap_or_default());
    let woken = now.woken.zip(before.woken);
    let worked = now.worked.zip(before.worked);
    Program {
        woken: woken.map(|(now, before)| now.saturating_sub(before) as f64 / seconds),
        busy: worked.map(|(now, before)| (now - before).max(0.0) / seconds),
        who,
        uid,
        connections: [0; 3],
        bytes: None,
        messages: [None; 2],
        sleeps: None,
        past: Past::new(),
    }
}

impl Program {
    /// One more of its connections, of which it has this end.
    fn add(&mut self, flow: &Flow, end: usize) {
        self.connections[flow.path()] += 1;
        let Some(rates) = flow.rates else { return };
        let bytes = self.bytes.get_or_insert_default();
        for (i, direction) in [end, 1 - end].into_iter().enumerate() {
            bytes[i] += rates.way(direction);
            add(&mut self.messages[i], rates.messages[direction]);
        }
        add(&mut self.sleeps, rates.sleeps[end]);
    }
}

fn add(sum: &mut Option<f64>, part: Option<f64>) {
    if let Some(part) = part {
        *sum.get_or_insert_default() += part;
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;
    use crate::ss::connection::connection;
    use crate::ss::connection::tests::{detail, row};

    #[test]
    fn processor_time_is_that_of_the_same_process() {
        let stat = "7 (a) b) S 1 1 1 0 -1 4194560 9 9 9 9 120 30 0 0 20 0";
        assert_eq!(ticks(stat, "a) b"), Some(150));
        assert_eq!(ticks(stat, "other"), None);
        assert_eq!(ticks("", ""), None);
        let own = std::process::id();
        assert!(
            Looker::default()
                .worked(own, "no such name", None)
                .is_none()
        );
    }

    #[test]
    fn the_file_of_a_process_is_opened_once_and_tells_of_no_other_one() {
        let mut looker = Looker::default();
        let own = std::process::id();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        let comm = comm.trim_end();
        assert!(looker.worked(own, comm, None).is_some());
        let file = looker.files.remove(&own).unwrap();
        // By this flag, which changes nothing here, the open file is known again.
        fcntl_setfl(&file, OFlags::NONBLOCK).unwrap();
        assert!(looker.worked(own, comm, Some(file)).is_some());
        let flags = fcntl_getfl(&looker.files[&own]).unwrap();
        assert!(flags.contains(OFlags::NONBLOCK));
        // That of a process which has ended says nothing: another one may have its number.
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let ended = File::open(format!("/proc/{}/stat", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ticks_in(&ended, "sleep"), None);
        assert!(looker.worked(own, comm, Some(ended)).is_some());
    }

    /// Two looks, two seconds apart.
    fn between(before: Connection, now: Connection) -> Rates {
        let time = Duration::from_secs(2);
        let before = flows(Vec::new(), vec![before], time);
        assert_eq!(before[0].rates, None);
        let now = flows(before, vec![now], time);
        assert_eq!(now[0].past.len(), 1);
        now[0].rates.unwrap()
    }

    #[test]
    fn rates_are_per_second_and_by_direction() {
        let mut row = row();
        row.pids = [7, 8];
        let before = connection(&row, Some(&detail()));
        row.bytes = [[17, 1], [0, 4]];
        let mut later = detail();
        later.ends[0].sent[0] += 6;
        later.ends[1].sent[1] += 2;
        later.ends[1].sleeps += 1;
        let rates = between(before, connection(&row, Some(&later)));
        assert_eq!(rates.bytes, [[5.0, 0.0], [0.0, 2.0]]);
        assert_eq!(rates.messages, [Some(3.0), Some(1.0)]);
        assert_eq!(rates.calls, [3.0, 1.0]);
        assert_eq!(rates.sleeps, [Some(0.0), Some(0.5)]);
    }

    #[test]
    fn a_connection_that_has_counted_less_is_another_one() {
        let row = row();
        let mut smaller = row;
        smaller.bytes = [[0; 2]; 2];
        let rates = between(connection(&row, None), connection(&smaller, None));
        assert_eq!(rates.both(), 0.0);
        assert_eq!(rates.messages, [None; 2]);
    }

    #[test]
    fn messages_of_an_unknown_sender_are_those_received() {
        let mut row = row();
        let mut later = detail();
        later.ends[0].received[0] += 8;
        let [before, now] = [detail(), later].map(|detail| connection(&row, Some(&detail)));
        assert_eq!(between(before, now).messages, [Some(0.0), Some(4.0)]);
        // Bytes that nobody's calls have moved: calls are not counted.
        let before = connection(&row, Some(&detail()));
        row.bytes[0][1] += 9;
        let now = connection(&row, Some(&detail()));
        assert_eq!(between(before, now).messages, [None; 2]);
    }
}
