//! Measurements in small steps.
//!
//! Where a difference of a few per cent counts, sides that are measured one after the
//! other differ by more for what else the machine does. So the processes of all sides
//! live at the same time and take turns of a millisecond or so: a stepper does a
//! number of operations for every line on its standard input, and prints what one
//! of them took in nanoseconds.

mod exchange;
mod process;
mod sharing;
mod token;
mod turns;

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;

use crate::{cores, sys};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, value_enum)]
    pub(crate) step: Step,
    /// Operations per step.
    #[arg(long)]
    pub(crate) count: u64,
    /// Where to run; the second is for who takes turns with this one.
    #[arg(long, value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// Seconds after which the stepper ends whatever happens.
    #[arg(long, default_value_t = 120)]
    pub(crate) limit: u32,
    #[command(flatten)]
    exchange: exchange::Options,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// A child that ends at once.
    Fork,
    /// A forked child that becomes a small program.
    Exec,
    /// The same started by `posix_spawn`.
    Spawn,
    /// The same started by a shell.
    Shell,
    /// 8 bytes sent and received, by the only thread of a process.
    Alone,
    /// The same while another thread sleeps.
    Threaded,
    /// The same while a forked child that has the connection too sleeps.
    Forked,
    /// The turn passed between two threads, and nothing else.
    Turns,
    /// At each turn 8 bytes sent and received.
    ThreadTurns,
    /// The same between two processes.
    ProcessTurns,
    /// A token taken and given back that nobody else wants: a compare-and-swap, …
    CasFree,
    /// … a word that names its owner, and an asymmetric barrier for who takes over, …
    BiasedFree,
    /// … and the paper's messages by a monitor.
    MonitorFree,
    /// The same by turns of two threads.
    CasTurns,
    BiasedTurns,
    MonitorTurns,
    /// Requests and their answers …
    Ask,
    /// … of a server.
    Answer,
}

/// The stepper's life.
pub(crate) fn run(options: &Options) -> Result<()> {
    sys::end_after(options.limit);
    if let Some(&core) = options.cores.first() {
        cores::pin(core)?;
    }
    let other = options.cores.get(1).copied();
    match options.step {
        Step::Fork | Step::Exec | Step::Spawn | Step::Shell => process::run(options),
        Step::Alone | Step::Threaded | Step::Forked => sharing::run(options),
        Step::Turns => turns::empty(options, other),
        Step::ThreadTurns => sharing::by_threads(options, other),
        Step::ProcessTurns => sharing::by_processes(options, other),
        Step::CasFree => token::free(options, &token::Cas::default()),
        Step::BiasedFree => token::free(options, &token::Biased::new()),
        Step::MonitorFree => token::free(options, &token::Monitored::new()?),
        Step::CasTurns => token::turns(options, other, token::Cas::default()),
        Step::BiasedTurns => token::turns(options, other, token::Biased::new()),
        Step::MonitorTurns => token::turns(options, other, token::Monitored::new()?),
        Step::Ask => exchange::ask(&options.exchange, options.count),
        Step::Answer => exchange::answer(&options.exchange),
    }
}

/// Does `step` whenever it is asked to, and says what one of its operations took.
fn serve(count: u64, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    serve_timed(|| {
        let begin = Instant::now();
        step()?;
        Ok(begin.elapsed().as_nanos() as f64 / count as f64)
    })
}

/// The same for steps of which not all counts: they say themselves what one of their
/// operations took.
fn serve_timed(mut step: impl FnMut() -> Result<f64>) -> Result<()> {
    println!("ready");
    for line in stdin().lock().lines() {
        line?;
        println!("{}", step()?);
        stdout().flush()?;
    }
    Ok(())
}
