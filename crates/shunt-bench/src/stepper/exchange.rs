//! Requests and answers, on one connection or on one each: netperf's `TCP_RR`,
//! `TCP_STREAM` and `TCP_CRR`, and what `ab` does without keep-alive.

use anyhow::{Result, ensure};

use super::serve;
use crate::pattern::Pattern;
use crate::worker::Carrier;
use crate::worker::channel::{Channel, Listener, Stream, connect};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, value_enum, default_value = "tcp")]
    carrier: Carrier,
    /// Where the server is (clients), or may be (servers on paths).
    #[arg(long, default_value = "")]
    address: String,
    /// Bytes of a request.
    #[arg(long, default_value_t = 1)]
    request: u64,
    /// Bytes of an answer.
    #[arg(long, default_value_t = 1)]
    answer: usize,
    /// A connection for each request; the server closes it.
    #[arg(long)]
    each: bool,
}

/// Requests are sent in pieces of this size, as netperf sends a stream.
const PIECE: usize = 16 << 10;
/// They are received in larger ones.
const BUFFER: usize = 64 << 10;

/// Asks whenever it is told to.
pub(super) fn ask(options: &Options, count: u64) -> Result<()> {
    let pattern = Pattern::new(BUFFER);
    let mut answer = vec![0; options.answer];
    let mut ask = |stream: &mut Stream| -> Result<()> {
        let mut sent = 0;
        while sent < options.request {
            let piece = (options.request - sent).min(PIECE as u64);
            stream.send(pattern.at(sent, piece as usize))?;
            sent += piece;
        }
        ensure!(stream.receive_all(&mut answer)?, "no answer");
        ensure!(pattern.is_at(0, &answer), "a wrong answer");
        Ok(())
    };
    let open = || -> Result<Stream> {
        let stream = connect(options.carrier, &options.address)?;
        // The end of a request in pieces would wait for an acknowledgement, which is 40 ms late now and then.
        if options.request > PIECE as u64
            && let Stream::Tcp(stream) = &stream
        {
            stream.set_nodelay(true)?;
        }
        Ok(stream)
    };
    let mut kept = if options.each { None } else { Some(open()?) };
    serve(count, || {
        for _ in 0..count {
            if let Some(stream) = &mut kept {
                ask(stream)?;
            } else {
                let mut stream = open()?;
                ask(&mut stream)?;
                ensure!(stream.receive(&mut [0])? == 0, "more than an answer");
            }
        }
        Ok(())
    })
}

/// Answers one connection after the other, until it is killed.
pub(super) fn answer(options: &Options) -> Result<()> {
    let pattern = Pattern::new(BUFFER);
    let mut buffer = vec![0; BUFFER];
    let listener = Listener::bind(options.carrier, &options.address)?;
    println!("{}", listener.address()?);
    loop {
        let mut stream = listener.accept()?;
        let mut got = 0;
        loop {
            let most = (options.request - got).min(BUFFER as u64) as usize;
            let n = stream.receive(&mut buffer[..most])?;
            ensure!(pattern.is_at(got, &buffer[..n]), "wrong bytes at {got}");
            got += n as u64;
            if n == 0 {
                ensure!(got == 0, "half a request");
                break;
            }
            if got == options.request {
                stream.send(pattern.at(0, options.answer))?;
                got = 0;
                if options.each {
                    break;
                }
            }
        }
    }
}
