//! The program under its filter, and the loop that answers the kernel's questions.

use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::{io, thread};

use anyhow::{Context, Result};

use crate::plan::{Key, Plan};
use crate::{Options, filter, place};

/// The filter is not there yet; there is none.
const NOT_YET: i32 = -1;
const NONE: i32 = -2;

/// Runs the program to its end. Returns its status as a shell would.
pub(crate) fn run(options: &Options, plan: &mut Plan) -> Result<u8> {
    let listener = AtomicI32::new(NOT_YET);
    let (end, alive) = io::pipe()?;
    let status = thread::scope(|scope| -> Result<ExitStatus> {
        // Its own calls are asked about, too: nothing but an atomic tells us of the filter.
        let runner = scope.spawn(|| {
            let status = spawn(options, &listener);
            drop(alive);
            status
        });
        loop {
            match listener.load(Ordering::Acquire) {
                NOT_YET => thread::yield_now(),
                NONE => break,
                number => {
                    #[allow(unsafe_code)]
                    // SAFETY: the runner has given this descriptor to us.
                    let listener = unsafe { OwnedFd::from_raw_fd(number) };
                    serve(options, plan, &listener, &end)?;
                    // What is left of the program has its calls refused from here on.
                    break;
                }
            }
        }
        runner
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the runner has panicked")))
            .context("run the program")
    })?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (_, signal) => 128 + signal.unwrap_or(0) as u8,
    })
}

fn spawn(options: &Options, listener: &AtomicI32) -> io::Result<ExitStatus> {
    match filter::install(&options.calls) {
        Ok(fd) => listener.store(fd.into_raw_fd(), Ordering::Release),
        Err(error) => {
            listener.store(NONE, Ordering::Release);
            return Err(error);
        }
    }
    Command::new(&options.command[0])
        .args(&options.command[1..])
        .status()
}

/// Answers until the program has ended.
fn serve(
    options: &Options,
    plan: &mut Plan,
    listener: &OwnedFd,
    end: &io::PipeReader,
) -> Result<()> {
    loop {
        let (asked, ended) = filter::wait(listener, end)?;
        if asked & libc::POLLIN != 0 {
            if let Some(question) = filter::question(listener) {
                let found = place::find(
                    question.pid,
                    question.data.instruction_pointer,
                    &options.within,
                );
                let is_meant = |&(address, _): &(u64, u64)| address != 0 || options.outside;
                let call = found.filter(is_meant).map(|(address, caller)| Key {
                    number: question.data.nr as u32,
                    argument: filter::argument(&question),
                    address,
                    caller,
                });
                let errno = call
                    .filter(|_| filter::is_open(listener, question.id))
                    .and_then(|call| plan.decide(call));
                filter::answer(listener, question.id, errno);
            }
        } else if ended != 0 {
            return Ok(());
        }
    }
}
