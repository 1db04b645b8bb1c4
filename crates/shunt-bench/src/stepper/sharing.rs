//! One connection, of which one process has both ends, so that nobody waits for
//! bytes: alone, beside others that sleep, and by turns with another.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::turns::Turn;
use super::{Options, Step, serve, serve_timed};
use crate::{cores, sys};

/// Enough for a connection to be moved.
const WARM_UP: u32 = 2_000;

/// Both ends.
struct Ends(TcpStream, TcpStream);

impl Ends {
    fn open() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let to = TcpStream::connect(listener.local_addr()?)?;
        let ends = Self(to, listener.accept()?.0);
        for _ in 0..WARM_UP {
            ends.pass()?;
        }
        Ok(ends)
    }

    /// 8 bytes there.
    fn pass(&self) -> Result<()> {
        let mut buffer = [0; 8];
        (&self.0).write_all(b"8 bytes.")?;
        (&self.1).read_exact(&mut buffer)?;
        ensure!(&buffer == b"8 bytes.", "wrong bytes");
        Ok(())
    }
}

/// Nobody else does anything.
pub(super) fn run(options: &Options) -> Result<()> {
    let ends = Ends::open()?;
    let asleep = || thread::sleep(Duration::from_secs(u64::from(options.limit)));
    let child = match options.step {
        Step::Forked => Some(sys::fork(asleep)?),
        _ => None,
    };
    if options.step == Step::Threaded {
        let limit = Duration::from_secs(u64::from(options.limit));
        thread::spawn(move || thread::sleep(limit));
    }
    let done = serve(options.count, || {
        (0..options.count).try_for_each(|_| ends.pass())
    });
    if let Some(child) = child {
        sys::end(child);
    }
    done
}

/// Two threads.
pub(super) fn by_threads(options: &Options, other: Option<usize>) -> Result<()> {
    let ends: &Ends = Box::leak(Box::new(Ends::open()?));
    let (turn, count) = (Turn::new()?, options.count);
    thread::spawn(move || {
        let _ = other.map(cores::pin);
        turn.follow(count, || {}, || ends.pass().expect("it passes"));
    });
    lead(turn, count, ends)
}

/// Two processes.
pub(super) fn by_processes(options: &Options, other: Option<usize>) -> Result<()> {
    let ends = Ends::open()?;
    let (turn, count) = (Turn::new()?, options.count);
    let child = sys::fork(|| {
        let _ = other.map(cores::pin);
        turn.follow(count, || {}, || ends.pass().expect("it passes"));
    })?;
    let done = lead(turn, count, &ends);
    sys::end(child);
    done
}

fn lead(turn: Turn, count: u64, ends: &Ends) -> Result<()> {
    serve_timed(|| Ok(turn.lead(count, || {}, || ends.pass().expect("it passes"))))
}
