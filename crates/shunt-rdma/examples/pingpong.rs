//! What the protocol costs beside the NIC itself, over an emulated one with a delay of 1 µs: a round trip of 8 bytes, and messages of 8
//! bytes a second, each in turn with the bare transport. `pingpong [ROUNDS]`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shunt_rdma::fabric::{Fabric, Manners, Nic, Queue, Registered};
use shunt_rdma::link::Link;
use shunt_rdma::port::Port;
use shunt_rdma::transport::{
    Access, BATCH, Completion, Post, QueueId, Region, Target, Transport, Write,
};

#[path = "../tests/trial/memory.rs"]
mod memory;

use memory::Memory;

const DELAY: u64 = 1000;
/// How long each side of each comparison runs in one turn.
const TURN: Duration = Duration::from_millis(300);
const NOTHING: Completion = Completion::Failed {
    queue: QueueId(0),
    status: 0,
};

fn manners() -> Manners {
    Manners {
        delay: DELAY,
        ..Manners::GOOD
    }
}

/// One end of a bare queue pair, with eight bytes to send and eight to be written.
struct Bare {
    nic: Nic,
    queue: Queue,
    source: Registered,
    target: Registered,
    peer: Option<Target>,
    posted: u64,
    done: u64,
}

impl Bare {
    fn new(fabric: &Fabric, words: &'static [AtomicU64; 2]) -> Self {
        let nic = fabric.nic().expect("a NIC");
        let queue = nic.queue().expect("a queue pair");
        let region = |n: usize, access| {
            // SAFETY: the word has 8 bytes, is static, and is used by atomics only.
            unsafe { nic.register(words[n].as_ptr().cast(), 8, access) }
        };
        Self {
            source: region(0, Access::Source).expect("memory"),
            target: region(1, Access::Target).expect("memory"),
            nic,
            queue,
            peer: None,
            posted: 0,
            done: 0,
        }
    }

    fn pair(fabric: &Fabric) -> [Self; 2] {
        let words = || &*Box::leak(Box::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let mut ends = [Self::new(fabric, words()), Self::new(fabric, words())];
        let endpoints = ends.each_ref().map(|end| end.nic.endpoint(&end.queue));
        let targets = ends.each_ref().map(|end| end.target.target());
        for (i, end) in ends.iter_mut().enumerate() {
            let connected = end.nic.connect(&end.queue, &endpoints[1 - i]);
            connected.expect("a connection");
            end.peer = Some(targets[1 - i]);
        }
        ends
    }

    fn send(&mut self) {
        self.posted += 1;
        let tag = self.posted.is_multiple_of(64).then_some(self.posted);
        let write = Write {
            region: &self.source,
            offset: 0,
            length: 8,
            trailer: None,
            target: self.peer.expect("connected"),
            immediate: 1,
        };
        let posted = self.nic.post(&self.queue, &Post::Write(write), tag);
        posted.expect("a post");
    }

    /// How many messages have come.
    fn poll(&mut self) -> u64 {
        let mut completions = [NOTHING; BATCH];
        let n = self.nic.poll(&mut completions).expect("the NIC");
        let mut messages = 0;
        for completion in &completions[..n] {
            match completion {
                Completion::Sent { tag, .. } => self.done = *tag,
                Completion::Written { .. } => messages += 1,
                other => panic!("{other:?}"),
            }
        }
        messages
    }
}

/// One end of a link with one connection.
struct Ringed {
    port: Port<'static, Nic>,
    id: QueueId,
}

impl Ringed {
    fn pair(fabric: &Fabric) -> [Self; 2] {
        let mut ports = [0, 1].map(|_| Port::new(fabric.nic().expect("a NIC")));
        let queues = ports
            .each_ref()
            .map(|p| p.transport().queue().expect("a queue pair"));
        let endpoints = [0, 1].map(|i| ports[i].transport().endpoint(&queues[i]));
        let mut ids = [QueueId(0); 2];
        for (i, queue) in queues.into_iter().enumerate() {
            let port = &mut ports[i];
            let (own, peer) = (&endpoints[i], &endpoints[1 - i]);
            port.transport()
                .connect(&queue, peer)
                .expect("a connection");
            let mut link = Link::new(port.transport(), queue, own, peer);
            let memory: &'static Memory = Box::leak(Box::new(Memory::new(1)));
            let lines = memory.lines(0);
            lines.own.begin(1, lines.out);
            // SAFETY: the memory is never given back.
            unsafe { link.open(port.transport(), 0, 1, lines) }.expect("pinned rings");
            ids[i] = port.add(link);
        }
        let [one, other] = ports;
        let mut ends = [
            Self {
                port: one,
                id: ids[0],
            },
            Self {
                port: other,
                id: ids[1],
            },
        ];
        // Each looks in its turn, since each waits for the other.
        while ends.each_mut().map(Self::enter) != [true; 2] {
            thread::yield_now();
        }
        ends
    }

    fn enter(&mut self) -> bool {
        self.port.progress(|_| {}).expect("the NIC");
        let (nic, link) = self.port.link(self.id).expect("a link");
        link.enter(0) || link.room(0) > 0 || {
            link.propose(nic, 0, 0);
            false
        }
    }

    fn send(&mut self) -> bool {
        let (nic, link) = self.port.link(self.id).expect("a link");
        let sent = link.send(nic, 0, &[7; 8]).expect("the link");
        if sent == 0 {
            self.port.progress(|_| {}).expect("the NIC");
        }
        sent == 8
    }

    /// How many messages have come.
    fn poll(&mut self) -> u64 {
        let any = self.port.progress(|_| {}).expect("the NIC");
        if !any {
            return 0;
        }
        let (nic, link) = self.port.link(self.id).expect("a link");
        let mut bytes = [0; 4096];
        link.receive(nic, 0, &mut bytes).expect("the link") as u64 / 8
    }
}

/// Runs both ends until the time is over; how often the first one's step was whole.
fn run<T: Send>(
    ends: &mut [T; 2],
    first: fn(&mut T, &AtomicBool) -> u64,
    other: fn(&mut T),
) -> f64 {
    let stop = AtomicBool::new(false);
    let ended = AtomicBool::new(false);
    let [one, two] = ends;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                other(two);
            }
        });
        let watch = scope.spawn(|| {
            thread::sleep(TURN);
            stop.store(true, Ordering::Relaxed);
        });
        let begun = Instant::now();
        let mut steps = 0;
        while !stop.load(Ordering::Relaxed) {
            steps += first(one, &stop);
        }
        let seconds = begun.elapsed().as_secs_f64();
        ended.store(true, Ordering::Relaxed);
        watch.join().expect("the watch");
        steps as f64 / seconds
    })
}

fn bare_round(end: &mut Bare, _: &AtomicBool) -> u64 {
    end.send();
    while end.poll() == 0 {}
    1
}

fn bare_answer(end: &mut Bare) {
    for _ in 0..end.poll() {
        end.send();
    }
}

fn ringed_round(end: &mut Ringed, _: &AtomicBool) -> u64 {
    while !end.send() {}
    while end.poll() == 0 {}
    1
}

fn ringed_answer(end: &mut Ringed) {
    for _ in 0..end.poll() {
        while !end.send() {}
    }
}

/// As many as the send queue takes, and no more than the peer has receives for.
fn bare_stream(end: &mut Bare, _: &AtomicBool) -> u64 {
    if end.posted - end.done < 192 {
        end.send();
        return 1;
    }
    end.poll();
    0
}

fn ringed_stream(end: &mut Ringed, _: &AtomicBool) -> u64 {
    u64::from(end.send())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .map_or(7, |n| n.parse().expect("a number"));
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        let mut bare = Bare::pair(&Fabric::new(manners()));
        rates[0].push(run(&mut bare, bare_round, bare_answer));
        let mut ringed = Ringed::pair(&Fabric::new(manners()));
        rates[1].push(run(&mut ringed, ringed_round, ringed_answer));
        let mut bare = Bare::pair(&Fabric::new(manners()));
        let count = |end: &mut Bare| {
            end.poll();
        };
        rates[2].push(run(&mut bare, bare_stream, count));
        let mut ringed = Ringed::pair(&Fabric::new(manners()));
        let count = |end: &mut Ringed| {
            end.poll();
        };
        rates[3].push(run(&mut ringed, ringed_stream, count));
    }
    let [bare, ringed, bare_rate, ringed_rate] = rates.map(median);
    println!(
        "8 bytes, delay 1 us, medians of {rounds}: round trip {:.2} us bare, {:.2} us by rings ({:.3}); messages a second {:.0} bare, {:.0} by rings \
         ({:.3})",
        1e6 / bare,
        1e6 / ringed,
        bare / ringed,
        bare_rate,
        ringed_rate,
        ringed_rate / bare_rate,
    );
}
