//! Starts workers, kills some, listens to all, and compares what is left at the
//! end with what there was at the beginning.

use crate::random::Random;
use crate::system::checked;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// How long a worker may take to end once it should.
const PATIENCE: Duration = Duration::from_secs(90);
/// How much larger shuntd may be at the end.
const MEMORY_SLACK_KB: u64 = 4096;

/// The command line.
pub(crate) struct Options {
    time: Duration,
    seed: u64,
    servers: usize,
    clients: usize,
    shunt: Option<PathBuf>,
    json: bool,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let clock = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let mut options = Self {
            time: Duration::from_secs(600),
            seed: u64::from(clock.subsec_nanos()) ^ clock.as_secs(),
            servers: 3,
            clients: 8,
            shunt: None,
            json: false,
        };
        let mut native = false;
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            let number = |text: &String| {
                text.parse::<u64>()
                    .map_err(|_| format!("{text} is not a number"))
            };
            match word.as_str() {
                "--minutes" => options.time = Duration::from_secs(60 * number(value()?)?),
                "--seconds" => options.time = Duration::from_secs(number(value()?)?),
                "--seed" => options.seed = number(value()?)?,
                "--servers" => {
                    options.servers = usize::try_from(number(value()?)?).unwrap_or(1).max(1)
                }
                "--clients" => {
                    options.clients = usize::try_from(number(value()?)?).unwrap_or(1).max(1)
                }
                "--shunt" => options.shunt = Some(PathBuf::from(value()?)),
                "--native" => native = true,
                "--json" => options.json = true,
                _ => return Err(format!("unknown argument {word}")),
            }
        }
        if native == options.shunt.is_some() {
            return Err("give either --shunt PATH or --native".into());
        }
        Ok(options)
    }
}

/// A worker process.
struct Worker {
    child: Child,
    /// Its own process id (`child` may be a wrapper).
    pid: u32,
    /// Ends a server when dropped.
    stdin: Option<ChildStdin>,
    server: bool,
    ports: Vec<u16>,
    /// Of a client: the servers that it talks to.
    targets: Vec<u64>,
    users: usize,
    retires: Instant,
    /// By when it must be gone.
    due: Option<Instant>,
    connections: u64,
    bytes: u64,
}

/// What shuntd and the machine hold.
#[derive(Clone, Copy, Debug, Default)]
struct Footprint {
    processes: usize,
    descriptors: usize,
    memory_kb: u64,
    shared_kb: u64,
}

struct Director<'a> {
    options: &'a Options,
    directory: PathBuf,
    random: Random,
    workers: BTreeMap<u64, Worker>,
    next: u64,
    lines: Receiver<(u64, String)>,
    says: Sender<(u64, String)>,
    killed: BTreeSet<u32>,
    killed_client: bool,
    broken: u64,
    connections: u64,
    bytes: u64,
    started: u64,
    failures: Vec<String>,
}

/// The whole soak.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    // Daemons that outlive their parents become our children.
    // SAFETY: integers only.
    checked(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) })
        .map_err(|error| error.to_string())?;
    let directory = std::env::temp_dir().join(format!("shunt-soak.{}", std::process::id()));
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let (says, lines) = channel();
    let mut director = Director {
        options,
        directory: directory.clone(),
        random: Random::new(options.seed),
        workers: BTreeMap::new(),
        next: 0,
        lines,
        says,
        killed: BTreeSet::new(),
        killed_client: false,
        broken: 0,
        connections: 0,
        bytes: 0,
        started: 0,
        failures: Vec::new(),
    };
    println!("seed {}", options.seed);
    let result = director.soak();
    let workers: Vec<u64> = director.workers.keys().copied().collect();
    for id in workers {
        director.kill(id);
    }
    let stats = fs::read_to_string(directory.join("stats")).unwrap_or_default();
    let _ = fs::remove_dir_all(&directory);
    if let Some(pid) = descendants(std::process::id())
        .into_iter()
        .find(|&pid| comm(pid) == "shuntd")
    {
        signal(pid, libc::SIGTERM);
    }
    let (begin, end, native) = result?;
    director.summary(begin, end, native, &stats)
}

impl Director<'_> {
    fn soak(&mut self) -> Result<(Footprint, Footprint, bool), String> {
        // A short run brings shuntd to life; what it holds then is the beginning.
        self.start_server()?;
        self.until("the first server", |this| {
            this.workers.values().all(|worker| worker.pid != 0)
        })?;
        self.start_client(3)?;
        self.drain()?;
        sleep(Duration::from_secs(1));
        let begin = self.footprint();

        let start = Instant::now();
        let mut report = start + Duration::from_secs(10);
        let mut kill = start + Duration::from_secs(2);
        while start.elapsed() < self.options.time && self.failures.is_empty() {
            self.look()?;
            self.replace()?;
            let now = Instant::now();
            if now >= kill {
                self.kill_one();
                kill = now + Duration::from_millis(self.random.magnitude(100, 4000));
            }
            if now >= report {
                report += Duration::from_secs(10);
                self.progress(start);
            }
            sleep(Duration::from_millis(20));
        }
        self.progress(start);
        if self.failures.is_empty() {
            self.drain()?;
        }
        // What ended must be cleaned up soon.
        let limit = Instant::now() + Duration::from_secs(10);
        let mut end = self.footprint();
        while Instant::now() < limit && leaks(&begin, &end).is_some() {
            sleep(Duration::from_millis(200));
            end = self.footprint();
        }
        Ok((begin, end, self.options.shunt.is_none()))
    }

    /// Keeps the numbers of servers and clients up; retires old servers.
    fn replace(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let fresh = self
            .workers
            .values()
            .filter(|worker| worker.server && worker.retires > now)
            .count();
        for _ in fresh..self.options.servers {
            self.start_server()?;
        }
        let clients = self
            .workers
            .values()
            .filter(|worker| !worker.server)
            .count();
        for _ in clients..self.options.clients {
            let count = 4 + self.random.below(24);
            self.start_client(count)?;
        }
        for worker in self.workers.values_mut() {
            if worker.server
                && worker.retires <= now
                && worker.users == 0
                && worker.pid != 0
                && worker.stdin.is_some()
            {
                worker.stdin = None;
                worker.due = Some(now + PATIENCE);
            }
        }
        Ok(())
    }

    fn command(&mut self) -> Result<Command, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        // One in eight stays plain, so that mixed pairs occur.
        let wrap = self
            .options
            .shunt
            .as_ref()
            .filter(|_| self.next < 2 || !self.random.one_in(8));
        let Some(shunt) = wrap else {
            return Ok(Command::new(program));
        };
        let mut command = Command::new(shunt);
        let upgrade = if self.random.one_in(2) {
            "eager"
        } else {
            "adaptive"
        };
        command
            .arg("run")
            .arg(format!("--upgrade={upgrade}"))
            .arg("--stats")
            .arg(self.directory.join("stats"));
        command.arg("--").arg(program);
        Ok(command)
    }

    fn start_server(&mut self) -> Result<(), String> {
        let mut command = self.command()?;
        command.arg("server").arg(self.random.next().to_string());
        let life = Duration::from_millis(self.random.magnitude(3000, 30_000));
        self.start(command, true, Vec::new(), life)
    }

    fn start_client(&mut self, count: usize) -> Result<(), String> {
        let now = Instant::now();
        let servers: Vec<u64> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.server && worker.pid != 0 && worker.retires > now)
            .map(|(&id, _)| id)
            .collect();
        if servers.is_empty() {
            return Ok(());
        }
        let mut targets: Vec<u64> = (0..2)
            .map(|_| servers[self.random.below(servers.len())])
            .collect();
        targets.dedup();
        let mut command = self.command()?;
        command
            .arg("client")
            .arg(self.random.next().to_string())
            .arg(count.to_string());
        for id in &targets {
            if let Some(server) = self.workers.get_mut(id) {
                server.users += 1;
                let ports: Vec<String> = server.ports.iter().map(u16::to_string).collect();
                command.arg(format!("{}:{}", server.pid, ports.join(":")));
            }
        }
        self.start(command, false, targets, PATIENCE)
    }

    fn start(
        &mut self,
        mut command: Command,
        server: bool,
        targets: Vec<u64>,
        life: Duration,
    ) -> Result<(), String> {
        let mut child = command
            .stdin(if server {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("start {:?}: {error}", command.get_program()))?;
        let id = self.next;
        self.next += 1;
        self.started += 1;
        if let Some(out) = child.stdout.take() {
            let says = self.says.clone();
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if says.send((id, line)).is_err() {
                        return;
                    }
                }
            });
        }
        let retires = Instant::now() + life;
        let worker = Worker {
            stdin: child.stdin.take(),
            child,
            pid: 0,
            server,
            ports: Vec::new(),
            targets,
            users: 0,
            retires,
            due: (!server).then_some(retires),
            connections: 0,
            bytes: 0,
        };
        self.workers.insert(id, worker);
        Ok(())
    }

    /// Hears what workers say and notices who has ended.
    fn look(&mut self) -> Result<(), String> {
        while let Ok((id, line)) = self.lines.try_recv() {
            self.hear(id, &line);
        }
        let mut ended: Vec<(u64, ExitStatus)> = Vec::new();
        let mut late = Vec::new();
        for (&id, worker) in &mut self.workers {
            match worker.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => ended.push((id, status)),
                None if worker.due.is_some_and(|due| Instant::now() > due) => late.push(id),
                None => {}
            }
        }
        for (id, status) in ended {
            // Its last lines may still be under way; they are heard later by number.
            sleep(Duration::from_millis(1));
            while let Ok((id, line)) = self.lines.try_recv() {
                self.hear(id, &line);
            }
            self.gone(id, Some(status));
        }
        for id in late {
            if let Some(worker) = self.workers.get(&id) {
                let kind = if worker.server { "server" } else { "client" };
                self.failures
                    .push(format!("{kind} {} did not end in time", worker.pid));
                print_stacks(worker.pid);
            }
            self.kill(id);
        }
        Ok(())
    }

    fn hear(&mut self, id: u64, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (kind, pid) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (pid, rest): (u64, &str) = (pid.parse().unwrap_or(0), words.next().unwrap_or(""));
        let peer = u32::try_from(pid).unwrap_or(0);
        let speaker = self.workers.get(&id).map_or(0, |worker| worker.pid);
        match kind {
            "HELLO" => {
                if let Some(worker) = self.workers.get_mut(&id) {
                    worker.pid = peer;
                    worker.ports = rest
                        .split(' ')
                        .filter_map(|word| word.parse().ok())
                        .collect();
                }
            }
            "TICK" => {
                let bytes = rest.parse().unwrap_or(0);
                if let Some(worker) = self.workers.get_mut(&id).filter(|worker| !worker.server) {
                    self.connections += pid.saturating_sub(worker.connections);
                    self.bytes += u64::saturating_sub(bytes, worker.bytes);
                    (worker.connections, worker.bytes) = (pid, bytes);
                }
            }
            "BROKEN" => {
                self.broken += 1;
                let explained = self.killed.contains(&peer) || (peer == 0 && self.killed_client);
                if !explained {
                    self.fail(format!("{speaker} lost living {peer}: {rest}"));
                }
            }
            "HANG" => {
                self.fail(format!("{speaker} hangs on {peer}: {rest}"));
                print_stacks(speaker);
                print_stacks(peer);
            }
            _ => self.fail(format!("{speaker}: {line}")),
        }
    }

    fn fail(&mut self, text: String) {
        println!("FAILED: {text}");
        self.failures.push(text);
    }

    /// Forgets a worker; one that was not killed must have succeeded.
    fn gone(&mut self, id: u64, status: Option<ExitStatus>) {
        let Some(worker) = self.workers.remove(&id) else {
            return;
        };
        for target in &worker.targets {
            if let Some(server) = self.workers.get_mut(target) {
                server.users -= 1;
            }
        }
        let Some(status) = status else { return };
        let unexpected = worker.server && worker.due.is_none();
        if !self.killed.contains(&worker.pid) && (unexpected || !status.success()) {
            let kind = if worker.server { "server" } else { "client" };
            self.fail(format!("{kind} {} ended: {status}", worker.pid));
        }
    }

    /// Kills a random worker in the middle of whatever it does.
    fn kill_one(&mut self) {
        let alive: Vec<u64> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.pid != 0)
            .map(|(&id, _)| id)
            .collect();
        if let Some(&id) = alive.get(self.random.below(alive.len())) {
            let Some(worker) = self.workers.get(&id) else {
                return;
            };
            self.killed.insert(worker.pid);
            self.killed_client |= !worker.server;
            signal(worker.pid, libc::SIGKILL);
        }
    }

    fn kill(&mut self, id: u64) {
        if let Some(worker) = self.workers.get_mut(&id) {
            self.killed.insert(worker.pid);
            for pid in descendants(worker.child.id()) {
                signal(pid, libc::SIGKILL);
            }
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
        self.gone(id, None);
    }

    /// Lets the clients finish, then ends the servers.
    fn drain(&mut self) -> Result<(), String> {
        self.until("clients to end", |this| {
            this.workers.values().all(|worker| worker.server)
        })?;
        self.until("servers to say hello", |this| {
            this.workers.values().all(|worker| worker.pid != 0)
        })?;
        for worker in self.workers.values_mut() {
            worker.stdin = None;
            worker.due = Some(Instant::now() + PATIENCE);
        }
        self.until("servers to end", |this| this.workers.is_empty())
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let limit = Instant::now() + PATIENCE * 2;
        while !done(self) {
            self.look()?;
            if Instant::now() > limit {
                return Err(format!("waited too long for {what}"));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn footprint(&self) -> Footprint {
        let family = descendants(std::process::id());
        let own = family.iter().copied().find(|&pid| comm(pid) == "shuntd");
        // Without one of our own we look at the one that serves us.
        let daemon = own.or_else(|| self.options.shunt.as_ref().and_then(|_| anyones_daemon()));
        let path = |name: &str| format!("/proc/{}/{name}", daemon.unwrap_or(0));
        Footprint {
            processes: family.len(),
            descriptors: fs::read_dir(path("fd")).map_or(0, Iterator::count),
            memory_kb: field_kb(&path("status"), "VmRSS:"),
            shared_kb: field_kb("/proc/meminfo", "Shmem:"),
        }
    }

    fn progress(&self, start: Instant) {
        let now = self.footprint();
        println!(
            "[{:5.0} s] {} connections, {} MB checked, {} processes started, {} killed, {} broken by that; shuntd: {} descriptors, {} kB",
            start.elapsed().as_secs_f64(),
            self.connections,
            self.bytes / 1_000_000,
            self.started,
            self.killed.len(),
            self.broken,
            now.descriptors,
            now.memory_kb
        );
    }

    fn summary(
        &mut self,
        begin: Footprint,
        end: Footprint,
        native: bool,
        stats: &str,
    ) -> Result<(), String> {
        if self.failures.is_empty()
            && let Some(text) = leaks(&begin, &end)
        {
            self.fail(text);
        }
        let ring = sum_of(stats, "\"ring_bytes\":");
        let kernel = sum_of(stats, "\"kernel_bytes\":");
        let shunted = sum_of(stats, "\"shunted\":");
        if !native && self.failures.is_empty() && (shunted == 0 || ring == 0) {
            self.fail("no connection was shunted".into());
        }
        println!(
            "begin: {} processes, shuntd {} descriptors, {} kB; end: {} processes, {} descriptors, {} kB; shared memory of the machine {} kB, then {} kB",
            begin.processes,
            begin.descriptors,
            begin.memory_kb,
            end.processes,
            end.descriptors,
            end.memory_kb,
            begin.shared_kb,
            end.shared_kb
        );
        if !native {
            println!(
                "statistics of those who lived: {shunted} ends shunted, {ring} bytes in rings, {kernel} by the kernel"
            );
        }
        let failures = self.failures.len();
        if self.options.json {
            println!(
                "{{\"seed\":{},\"connections\":{},\"bytes\":{},\"processes\":{},\"killed\":{},\"broken\":{},\"failures\":{failures},\
                 \"shunted\":{shunted},\"ring_bytes\":{ring},\"kernel_bytes\":{kernel},\
                 \"begin\":{{\"processes\":{},\"descriptors\":{},\"memory_kb\":{}}},\
                 \"end\":{{\"processes\":{},\"descriptors\":{},\"memory_kb\":{}}}}}",
                self.options.seed,
                self.connections,
                self.bytes,
                self.started,
                self.killed.len(),
                self.broken,
                begin.processes,
                begin.descriptors,
                begin.memory_kb,
                end.processes,
                end.descriptors,
                end.memory_kb
            );
        }
        println!(
            "soak: {} connections, {} MB checked, {} killed, {failures} failures",
            self.connections,
            self.bytes / 1_000_000,
            self.killed.len()
        );
        if failures == 0 {
            Ok(())
        } else {
            Err(format!(
                "{failures} failures; repeat with --seed {}",
                self.options.seed
            ))
        }
    }
}

/// What has grown, if anything.
fn leaks(begin: &Footprint, end: &Footprint) -> Option<String> {
    if end.processes > begin.processes {
        return Some(format!(
            "{} processes are left, {} at the beginning",
            end.processes, begin.processes
        ));
    }
    if end.descriptors > begin.descriptors {
        return Some(format!(
            "shuntd holds {} descriptors, {} at the beginning",
            end.descriptors, begin.descriptors
        ));
    }
    if end.memory_kb > begin.memory_kb + MEMORY_SLACK_KB {
        return Some(format!(
            "shuntd takes {} kB, {} at the beginning",
            end.memory_kb, begin.memory_kb
        ));
    }
    None
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
        {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn anyones_daemon() -> Option<u32> {
    let pids = fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|&pid| comm(pid) == "shuntd")
}

/// The number behind a name in a file of `/proc`.
fn field_kb(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(Path::new(path)).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The sum of the numbers that follow `key` in the statistics.
fn sum_of(stats: &str, key: &str) -> u64 {
    let numbers = stats.split(key).skip(1).map(|rest| {
        let rest = rest.trim_start();
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse::<u64>().unwrap_or(0)
    });
    numbers.sum()
}

fn signal(pid: u32, number: libc::c_int) {
    if pid > 1
        && let Ok(pid) = libc::pid_t::try_from(pid)
    {
        // SAFETY: integers only; the process is one of ours.
        unsafe { libc::kill(pid, number) };
    }
}

fn print_stacks(pid: u32) {
    if pid == 0 {
        return;
    }
    println!("---- stacks of {pid} ({})", comm(pid));
    let output = Command::new("timeout")
        .args([
            "-k",
            "5",
            "30",
            "gdb",
            "-batch",
            "-nx",
            "-ex",
            "thread apply all bt 25",
            "-p",
            &pid.to_string(),
        ])
        .stdin(Stdio::null())
        .output();
    for line in output
        .iter()
        .flat_map(|output| output.stdout.split(|&byte| byte == b'\n'))
    {
        if line.starts_with(b"#") || line.starts_with(b"Thread") {
            println!("{}", String::from_utf8_lossy(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Footprint, leaks, sum_of};

    #[test]
    fn statistics_are_summed() {
        assert_eq!(sum_of("{\"a\": 12,\"b\":1}\n{\"a\":30}", "\"a\":"), 42);
    }

    #[test]
    fn growth_is_a_leak() {
        let small = Footprint {
            processes: 1,
            descriptors: 5,
            memory_kb: 1000,
            shared_kb: 0,
        };
        assert_eq!(leaks(&small, &small), None);
        assert!(
            leaks(
                &small,
                &Footprint {
                    descriptors: 6,
                    ..small
                }
            )
            .is_some()
        );
        assert!(
            leaks(
                &small,
                &Footprint {
                    memory_kb: 9000,
                    ..small
                }
            )
            .is_some()
        );
    }
}
