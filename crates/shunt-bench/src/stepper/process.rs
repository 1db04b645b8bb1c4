//! Processes come and go, as lmbench's `lat_proc` measures it.

use anyhow::Result;

use super::{Options, Step, serve};
use crate::sys;

pub(super) fn run(options: &Options) -> Result<()> {
    let step = options.step;
    serve(options.count, || {
        (0..options.count).try_for_each(|_| sys::reap(one(step)?))
    })
}

fn one(step: Step) -> Result<i32> {
    let program = [c"/bin/true"];
    match step {
        Step::Exec => sys::fork(|| sys::become_program(&program)),
        Step::Spawn => sys::spawn(&program),
        Step::Shell => sys::spawn(&[c"/bin/sh", c"-c", c"/bin/true; :"]),
        _ => sys::fork(|| {}),
    }
}
