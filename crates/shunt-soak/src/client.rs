//! A client: batches of connections to random servers, each batch driven by a
//! random mechanism.

use crate::connection::{Connection, Failure};
use crate::event::{Loop, Mechanism};
use crate::process::{ended, say, tick, tick_in_background};
use crate::random::Random;
use crate::{system, watch};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::thread;

/// A server as the director names it: `pid:port:port:…`, and the addresses at which it can be asked.
struct Target {
    pid: u32,
    addresses: Vec<Ipv4Addr>,
    ports: Vec<u16>,
}

/// `client SEED COUNT ADDRESS,… TARGET…`.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    const USAGE: &str = "client SEED COUNT ADDRESS,… pid:port:port…";
    let [seed, count, addresses, targets @ ..] = arguments else {
        return Err(USAGE.into());
    };
    let addresses = addresses
        .split(',')
        .map(|word| word.parse().map_err(|_| USAGE))
        .collect::<Result<Vec<Ipv4Addr>, _>>()?;
    let mut random = Random::new(seed.parse().map_err(|_| USAGE)?);
    let mut left: usize = count.parse().map_err(|_| USAGE)?;
    let targets = targets
        .iter()
        .map(|text| parse(text, &addresses).ok_or(USAGE))
        .collect::<Result<Vec<_>, _>>()?;
    if targets.is_empty() {
        return Err(USAGE.into());
    }
    system::ignore_sigpipe();
    watch::start();
    say(&format!("HELLO {}", std::process::id()));
    tick_in_background();
    while left > 0 {
        let batch = left.min(1 + random.below(8));
        left -= batch;
        let mechanism = Mechanism::ALL[random.below(Mechanism::ALL.len())];
        if mechanism == Mechanism::Blocking {
            thread::scope(|scope| {
                for _ in 0..batch {
                    let random = Random::new(random.next());
                    scope.spawn(|| blocking(&targets, random));
                }
            });
        } else {
            events(mechanism, &targets, batch, &mut random)
                .map_err(|error| format!("{}: {error}", mechanism.name()))?;
        }
    }
    tick();
    Ok(())
}

fn parse(text: &str, addresses: &[Ipv4Addr]) -> Option<Target> {
    let mut words = text.split(':');
    let pid = words.next()?.parse().ok()?;
    let ports = words
        .map(|word| word.parse().ok())
        .collect::<Option<Vec<u16>>>()?;
    let addresses = addresses.to_vec();
    (!ports.is_empty()).then_some(Target {
        pid,
        addresses,
        ports,
    })
}

fn choose<'a>(targets: &'a [Target], random: &mut Random) -> (&'a Target, SocketAddrV4) {
    let target = &targets[random.below(targets.len())];
    let address = target.addresses[random.below(target.addresses.len())];
    let port = target.ports[random.below(target.ports.len())];
    (target, SocketAddrV4::new(address, port))
}

fn refused(target: &Target, error: &std::io::Error) {
    // A server that was killed is gone, or its backlog with it.
    let gone = matches!(
        error.raw_os_error(),
        Some(libc::ECONNREFUSED | libc::ECONNRESET)
    );
    say(&format!(
        "{} {} connect: {error}",
        if gone { "BROKEN" } else { "BAD" },
        target.pid
    ));
}

fn blocking(targets: &[Target], mut random: Random) {
    let (target, to) = choose(targets, &mut random);
    let socket = system::socket(0)
        .and_then(|socket| system::connect(socket.as_raw_fd(), to).map(|_| socket));
    match socket {
        Ok(socket) => {
            let mut connection =
                Connection::client(socket, false, target.pid, "client blocking", random);
            let result = connection.run_blocking();
            ended(&connection, &result, "client blocking");
        }
        Err(error) => refused(target, &error),
    }
}

fn events(
    mechanism: Mechanism,
    targets: &[Target],
    batch: usize,
    random: &mut Random,
) -> std::io::Result<()> {
    let name = format!("client {}", mechanism.name());
    let mut set = Loop::new(mechanism, None, Random::new(random.next()))?;
    for _ in 0..batch {
        let (target, to) = choose(targets, random);
        // Non-blocking from birth, or made so after a blocking connect.
        let road = random.below(3);
        let socket = system::socket(if road == 0 { libc::SOCK_NONBLOCK } else { 0 })?;
        let connected = match system::connect(socket.as_raw_fd(), to) {
            Ok(connected) => connected,
            Err(error) => {
                refused(target, &error);
                continue;
            }
        };
        if road > 0 {
            system::set_non_blocking(socket.as_raw_fd(), road == 1)?;
        }
        let random = Random::new(random.next());
        set.add(Connection::client(
            socket, !connected, target.pid, &name, random,
        ))?;
    }
    while !set.is_empty() {
        for (connection, result) in set.turn(1000)?.ended {
            let result: Result<(), Failure> = result;
            ended(&connection, &result, &name);
        }
    }
    Ok(())
}
