//! Two looks at the counters, one after the other, and what has happened in a second between them.
//!
//! Looks are frequent and cheap; what is shown is made of one in a [`PACE`]. Of the others, [`Glance`]s, only the bytes
//! of each connection stay, for the bars.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use compact_str::CompactString;
use shunt_abi::message::Message;

use crate::ss::Source;
use crate::ss::connection::{Calls, Connection, Counts, Process, end, in_order};

/// How many looks are remembered for each row.
const REMEMBERED: usize = 240;

/// Nobody can read numbers that change faster; and to make a screen takes much longer than to read the counters.
const PACE: Duration = Duration::from_millis(500);

/// Where looks take long, there is a screen at the first one after this time, however few they were.
const LATE: Duration = Duration::from_secs(2);

/// What was there at one time.
pub(super) struct Look {
    pub(super) at: Instant,
    /// Since the look before.
    pub(super) glances: Vec<Glance>,
    pub(super) connections: Vec<Connection>,
    pub(super) processes: HashMap<Who, Used>,
}

/// The bytes that each connection had moved at one time, both ways.
pub(super) struct Glance {
    pub(super) at: Instant,
    pub(super) moved: HashMap<FlowKey, f64>,
}

/// From one look to the next.
pub(super) struct Span<'a> {
    pub(super) from: Instant,
    pub(super) to: Instant,
    pub(super) glances: &'a [Glance],
}

impl Span<'_> {
    fn seconds(&self) -> f64 {
        self.to.duration_since(self.from).as_secs_f64()
    }

    /// How many bars it has.
    fn bars(&self) -> usize {
        self.glances.len() + 1
    }
}

/// A process from one look to the next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Who {
    pub(super) comm: CompactString,
    pub(super) pid: Option<u32>,
    pub(super) container: Option<CompactString>,
}

/// A number tells processes apart, and takes little time to hash.
impl Hash for Who {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.pid {
            Some(pid) => state.write_u32(pid),
            None => (&self.comm, &self.container).hash(state),
        }
    }
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
    /// How many looks make a screen.
    looks: usize,
    /// When a look was made for the last screen, if it has found anything.
    shown: Option<Instant>,
    /// The looks since.
    glances: Vec<Glance>,
}

/// The most files that are kept open.
const MOST_FILES: usize = 256;

impl Looker {
    /// Looks are this far apart.
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            looks: PACE.as_micros().div_ceil(delay.as_micros()) as usize,
            ..Self::default()
        }
    }

    /// Asks every daemon that serves this user; tells what it has found, with all that it has not told before, if
    /// another screen is due; and at once why it has found nothing.
    pub(super) fn next(&mut self) -> Option<Result<Look>> {
        let is_soon = |shown: Instant| shown.elapsed() < LATE;
        let told = if self.shown.is_some_and(is_soon) && self.glances.len() + 1 < self.looks {
            match self.glance() {
                Ok(glance) => {
                    self.glances.push(glance);
                    return None;
                }
                Err(error) => Err(error),
            }
        } else {
            self.look()
        };
        if told.is_err() {
            self.glances.clear();
        }
        self.shown = told.as_ref().ok().map(|look| look.at);
        Some(told)
    }

    fn glance(&mut self) -> Result<Glance> {
        let lists = self.source.details()?;
        let at = Instant::now();
        let rows = lists.iter().flat_map(|list| &list.connections);
        let mut glance = HashMap::with_capacity(rows.clone().count());
        glance.extend(rows.map(|(row, _)| (key_of(row), moved(row.bytes))));
        Ok(Glance { at, moved: glance })
    }

    fn look(&mut self) -> Result<Look> {
        let glances = std::mem::take(&mut self.glances);
        let lists = self.source.details()?;
        let at = Instant::now();
        let connections = in_order(&lists);
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
            at,
            glances,
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

/// Adds a bar for each look of a span to those of a connection that had moved `from` bytes, and then `to`.
fn remember(past: &mut Past, key: &FlowKey, [from, to]: [f64; 2], span: &Span) {
    let glances = span
        .glances
        .iter()
        .map(|glance| (glance.at, glance.moved.get(key).copied()));
    let (mut since, mut before) = (span.from, from);
    for (at, moved) in glances.chain([(span.to, Some(to))]) {
        // Another connection may have got the same addresses: it has counted less.
        let moved = moved.unwrap_or(before);
        past.push_front(
            ((moved - before).max(0.0) / at.duration_since(since).as_secs_f64()) as u64,
        );
        (since, before) = (at, moved);
    }
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
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowKey {
    local: SocketAddr,
    peer: SocketAddr,
    /// Of its ends; 0: not known.
    pids: [u32; 2],
}

/// Of less than all, and soon: ports and processes tell connections apart.
impl Hash for FlowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [local, peer] = [self.local, self.peer].map(|end| u64::from(end.port()));
        let pids = self.pids.map(u64::from);
        state.write_u64(local << 48 ^ peer << 32 ^ pids[0] << 16 ^ pids[1]);
    }
}

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
    let pids = ENDS.map(|end| process(c, end).and_then(|process| process.pid));
    FlowKey {
        local: c.local,
        peer: c.peer,
        pids: pids.map(Option::unwrap_or_default),
    }
}

/// The same of a row of shuntd's.
fn key_of(row: &Message) -> FlowKey {
    FlowKey {
        local: end(row, 0),
        peer: end(row, 1),
        pids: row.pids,
    }
}

/// The sum of what a connection has moved, each way and by each path. Programs count it, and may count anything.
fn moved(bytes: [[u64; 2]; 2]) -> f64 {
    bytes.as_flattened().iter().map(|bytes| *bytes as f64).sum()
}

/// The connections of now, with what they have done since `before`.
pub(super) fn flows(before: Vec<Flow>, now: Vec<Connection>, span: &Span) -> Vec<Flow> {
    let mut before: HashMap<_, _> = before.into_iter().map(|flow| (flow.key(), flow)).collect();
    let flow = |connection: Connection| {
        let key = key(&connection);
        let Some(earlier) = before.remove(&key) else {
            return Flow {
                connection,
                rates: None,
                past: Past::new(),
            };
        };
        let rates = rates(&earlier.connection, &connection, span.seconds());
        let mut past = earlier.past;
        let bytes = [&earlier.connection, &connection].map(|c| moved(ways(c)));
        remember(&mut past, &key, bytes, span);
        Flow {
            connection,
            rates: Some(rates),
            past,
        }
    };
    now.into_iter().map(flow).collect()
}

fn ways(c: &Connection) -> [[u64; 2]; 2] {
    [c.bytes.to_client, c.bytes.to_server].map(|way| [way.ring, way.kernel])
}

fn rates(before: &Connection, now: &Connection, seconds: f64) -> Rates {
    // Another connection may have got the same addresses: it has counted less.
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    let [earlier, later] = [before, now].map(ways);
    let bytes = [0, 1].map(|way| [0, 1].map(|path| rate(earlier[way][path], later[way][path])));
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

fn process<'a>(c: &'a Connection, end: &str) -> Option<&'a Process> {
    c.processes.iter().find(|process| process.end == end)
}

fn counts<'a>(c: &'a Connection, end: &str) -> Option<&'a Counts> {
    process(c, end)?.counts.as_ref()
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

/// The processes of connections, with what they have used in a span.
pub(super) fn programs(
    flows: &[Flow],
    before: Vec<Program>,
    used: [&HashMap<Who, Used>; 2],
    span: &Span,
) -> Vec<Program> {
    let pasts = before
        .into_iter()
        .map(|program| (program.who, program.past));
    let mut pasts: HashMap<_, _> = pasts.collect();
    let mut found: HashMap<Who, Program> = HashMap::new();
    for flow in flows {
        for end in &flow.connection.processes {
            let who = who(end);
            let program = found.entry(who).or_insert_with_key(|who| {
                let past = pasts.remove(who).unwrap_or_default();
                program(who, end.uid, used, past, span)
            });
            program.add(flow, usize::from(end.end != ENDS[0]), span.bars());
        }
    }
    let mut programs: Vec<_> = found.into_values().collect();
    programs.sort_by(|one, other| one.who.cmp(&other.who));
    programs
}

/// Without any connection yet: the bars of this span are empty.
fn program(
    who: &Who,
    uid: Option<u32>,
    used: [&HashMap<Who, Used>; 2],
    mut past: Past,
    span: &Span,
) -> Program {
    (0..span.bars()).for_each(|_| past.push_front(0));
    past.truncate(REMEMBERED);
    let seconds = span.seconds();
    let [before, now] = used.map(|used| used.get(who).copied().unwrap_or_default());
    let woken = now.woken.zip(before.woken);
    let worked = now.worked.zip(before.worked);
    Program {
        woken: woken.map(|(now, before)| now.saturating_sub(before) as f64 / seconds),
        busy: worked.map(|(now, before)| (now - before).max(0.0) / seconds),
        who: who.clone(),
        uid,
        connections: [0; 3],
        bytes: None,
        messages: [None; 2],
        sleeps: None,
        past,
    }
}

impl Program {
    /// One more of its connections, of which it has this end, with so many new bars.
    fn add(&mut self, flow: &Flow, end: usize, bars: usize) {
        self.connections[flow.path()] += 1;
        let Some(rates) = flow.rates else { return };
        let bytes = self.bytes.get_or_insert_default();
        for (i, direction) in [end, 1 - end].into_iter().enumerate() {
            bytes[i] += rates.way(direction);
            add(&mut self.messages[i], rates.messages[direction]);
        }
        add(&mut self.sleeps, rates.sleeps[end]);
        for (sum, bar) in self.past.iter_mut().zip(&flow.past).take(bars) {
            *sum = sum.saturating_add(*bar);
        }
    }
}

fn add(sum: &mut Option<f64>, part: Option<f64>) {
    if let Some(part) = part {
        *sum.get_or_insert_default() += part;
    }
}

#[cfg(test)]
mod tests;
