//! Lines to standard error.

use std::io::Write;

/// What the daemon says while it runs; errors are always printed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Log {
    /// Also print one line per notable event.
    pub(crate) verbose: bool,
}

impl Log {
    /// Prints an event, if events are wanted. The text is only made then.
    pub(crate) fn event(self, text: impl FnOnce() -> String) {
        if self.verbose {
            line(&text());
        }
    }

    /// Prints something that an administrator should know.
    pub(crate) fn error(self, text: &str) {
        line(text);
    }
}

/// Writes one line in one call; a closed standard error is not our problem.
fn line(text: &str) {
    let _ = std::io::stderr().write_all(format!("shuntd: {text}\n").as_bytes());
}
