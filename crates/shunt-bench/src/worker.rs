//! One end of a measurement.
//!
//! A worker prints where it can be reached (a server) or `ready` (a client, once
//! it is connected and warm), goes when its standard input ends, and prints one
//! line of JSON at its end.

pub(crate) mod channel;
mod crowd;
mod echo;
mod filter;
mod flow;
mod ring;

use std::io::Read;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{cores, sys};
use channel::{Channel, Listener};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, value_enum)]
    pub(crate) role: Role,
    #[arg(long, value_enum)]
    pub(crate) work: Work,
    #[arg(long, value_enum)]
    pub(crate) carrier: Carrier,
    /// Where the server is (clients), or may be (servers on paths).
    #[arg(long, default_value = "")]
    pub(crate) address: String,
    #[arg(long)]
    pub(crate) core: Option<usize>,
    /// The peer needs the core on which this end waits (rings).
    #[arg(long)]
    pub(crate) yields: bool,
    #[arg(long, default_value_t = 8)]
    pub(crate) size: usize,
    #[arg(long, default_value_t = 200)]
    pub(crate) milliseconds: u64,
    /// Seconds after which the worker ends whatever happens.
    #[arg(long, default_value_t = 60)]
    pub(crate) limit: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Server,
    Client,
    /// Of a pipeline.
    Source,
    Filter,
    Sink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Messages there and back, one at a time.
    Echo,
    /// Messages one way, as fast as they go.
    Flow,
    /// Records through a pipeline of filters.
    Filter,
    /// Messages there and back on a few of many connections.
    Crowd,
    /// Many connections, and nothing else.
    Idle,
}

impl Options {
    fn carrier_name(&self) -> String {
        let value = self.carrier.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Carrier {
    Tcp,
    Unix,
    Pipe,
    /// Shared memory and nothing else.
    Ring,
}

/// What a worker reports at its end.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Outcome {
    /// Messages (round trips of two count as two), or connections.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// From the first to the last of them.
    pub(crate) seconds: f64,
    /// Processor time in those seconds.
    pub(crate) cpu: f64,
    /// Nanoseconds per round trip or connection, of a client.
    pub(crate) times: Option<Times>,
    /// Bytes of memory that this end of many connections takes.
    pub(crate) resident: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Times {
    pub(crate) mean: f64,
    pub(crate) p1: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

/// The worker's life.
pub(crate) fn run(options: &Options) -> Result<()> {
    sys::end_after(options.limit);
    if let Some(core) = options.core {
        cores::pin(core)?;
    }
    if options.work == Work::Filter && options.role != Role::Client {
        if let Some(outcome) = filter::run(options)? {
            println!("{}", serde_json::to_string(&outcome)?);
        }
        return Ok(());
    }
    let outcome = match (options.role, options.carrier) {
        (Role::Client, _) if options.work == Work::Filter => filter::join(options)?,
        (Role::Server, Carrier::Tcp | Carrier::Unix) => {
            let listener = Listener::bind(options.carrier, &options.address)?;
            println!("{}", listener.address()?);
            match options.work {
                Work::Crowd | Work::Idle => crowd::serve(options, &listener)?,
                _ => serve(options, listener.accept()?)?,
            }
        }
        (Role::Server, Carrier::Pipe) => {
            println!("{}", options.address);
            serve(options, channel::Stream::inherited(&options.address)?)?
        }
        (Role::Server, Carrier::Ring) => {
            let ring = ring::Duplex::create(&options.address, options.yields)?;
            println!("{}", options.address);
            serve(options, ring)?
        }
        (Role::Client, Carrier::Tcp | Carrier::Unix) => match options.work {
            Work::Crowd | Work::Idle => crowd::ask(options)?,
            _ => {
                let stream = channel::connect(options.carrier, &options.address)?;
                ask(options, stream)?
            }
        },
        (Role::Client, Carrier::Pipe) => {
            ask(options, channel::Stream::inherited(&options.address)?)?
        }
        (Role::Client, Carrier::Ring) => ask(
            options,
            ring::Duplex::open(&options.address, options.yields)?,
        )?,
        (Role::Source | Role::Filter | Role::Sink, _) => bail!("not in a pipeline"),
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

fn serve(options: &Options, channel: impl Channel) -> Result<Outcome> {
    match options.work {
        Work::Echo => echo::serve(channel, options.size),
        Work::Flow => flow::receive(channel, options.size),
        _ => bail!("not over one connection"),
    }
}

fn ask(options: &Options, channel: impl Channel) -> Result<Outcome> {
    match options.work {
        Work::Echo => echo::ask(channel, options.size, options.milliseconds),
        Work::Flow => flow::send(channel, options.size, options.milliseconds),
        _ => bail!("not over one connection"),
    }
}

/// Says that all is prepared and waits for the driver's word.
fn await_start() -> Result<()> {
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
