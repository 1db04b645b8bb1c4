//! A server: one listener for each mechanism. It ends when its standard input
//! does and all connections have.

use crate::connection::Connection;
use crate::event::{Loop, Mechanism};
use crate::process::{ended, say, tick, tick_in_background};
use crate::random::Random;
use crate::{system, watch};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

static STOPPING: AtomicBool = AtomicBool::new(false);
/// Connections served by threads of their own.
static BLOCKING: AtomicUsize = AtomicUsize::new(0);

/// `server SEED ADDRESS`.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    const USAGE: &str = "server SEED ADDRESS";
    let [seed, address] = arguments else {
        return Err(USAGE.into());
    };
    let mut random = Random::new(seed.parse().map_err(|_| USAGE)?);
    let address = address.parse().map_err(|_| USAGE)?;
    system::ignore_sigpipe();
    watch::start();
    let mut hello = format!("HELLO {}", std::process::id());
    let mut loops = Vec::new();
    let mut blocking = None;
    for mechanism in Mechanism::ALL {
        let flags = if mechanism == Mechanism::Blocking {
            0
        } else {
            libc::SOCK_NONBLOCK
        };
        let (listener, port) =
            system::listener(flags, address).map_err(|error| format!("listen: {error}"))?;
        hello += &format!(" {port}");
        let random = Random::new(random.next());
        if mechanism == Mechanism::Blocking {
            blocking = Some((listener, random));
        } else {
            loops.push((mechanism, listener, random));
        }
    }
    if let Some((listener, random)) = blocking {
        thread::spawn(move || accept_blocking(&listener, random));
    }
    let threads: Vec<_> = loops
        .into_iter()
        .map(|(mechanism, listener, random)| {
            thread::spawn(move || serve(mechanism, &listener, random))
        })
        .collect();
    say(&hello);
    tick_in_background();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    STOPPING.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    while BLOCKING.load(Ordering::Relaxed) > 0 {
        thread::sleep(Duration::from_millis(10));
    }
    tick();
    Ok(())
}

fn accept_blocking(listener: &OwnedFd, mut random: Random) {
    loop {
        match system::accept(listener.as_raw_fd(), 0) {
            Ok(Some(socket)) => {
                let random = Random::new(random.next());
                BLOCKING.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || {
                    let mut connection = Connection::server(socket, "server blocking", random);
                    let result = connection.run_blocking();
                    ended(&connection, &result, "server blocking");
                    drop(connection);
                    BLOCKING.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Ok(None) => {}
            Err(error) => return say(&format!("BAD 0 server accept: {error}")),
        }
    }
}

fn serve(mechanism: Mechanism, listener: &OwnedFd, mut random: Random) -> Result<(), String> {
    let name = format!("server {}", mechanism.name());
    let text = |error: std::io::Error| format!("{name}: {error}");
    let mut set = Loop::new(
        mechanism,
        Some(listener.as_raw_fd()),
        Random::new(random.next()),
    )
    .map_err(text)?;
    while !(STOPPING.load(Ordering::Relaxed) && set.is_empty()) {
        let turn = set.turn(200).map_err(text)?;
        for (connection, result) in &turn.ended {
            ended(connection, result, &name);
        }
        drop(turn.ended);
        for _ in 0..if turn.incoming {
            1 + random.below(4)
        } else {
            0
        } {
            // Non-blocking from birth, or made so by either road.
            let road = random.below(3);
            let flags = if road == 0 { libc::SOCK_NONBLOCK } else { 0 };
            let Some(socket) = system::accept(listener.as_raw_fd(), flags).map_err(text)? else {
                break;
            };
            if road > 0 {
                system::set_non_blocking(socket.as_raw_fd(), road == 1).map_err(text)?;
            }
            set.add(Connection::server(
                socket,
                &name,
                Random::new(random.next()),
            ))
            .map_err(text)?;
        }
    }
    Ok(())
}
