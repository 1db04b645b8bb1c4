//! Busy loops beside the measurements: what a host that is not idle does.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::sys;

/// Loops that run until this is dropped.
pub(crate) struct Loops(Vec<Child>);

impl Loops {
    /// Starts `count` loops, wherever the scheduler puts them.
    ///
    /// # Errors
    /// This program cannot be started again.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let program = std::env::current_exe()?;
        // Those that run are ended also if a later one cannot be started.
        let mut loops = Self(Vec::new());
        for _ in 0..count {
            let mut command = Command::new(&program);
            command.arg("busy").stdin(Stdio::null());
            sys::bind(&mut command);
            loops
                .0
                .push(command.spawn().context("cannot start a busy loop")?);
        }
        Ok(loops)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One of them: it makes no call, and ends with the driver.
pub(crate) fn run() -> ! {
    loop {
        std::hint::spin_loop();
    }
}
