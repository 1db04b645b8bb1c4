//! Lines to standard error.

use std::io::Write;
use std::os::fd::AsFd;

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
            line("", &text());
        }
    }

    /// Prints something that an administrator should know.
    pub(crate) fn error(self, text: &str) {
        log_error(text);
    }
}

/// Prints an error; the journal gets it as one (`sd-daemon(3)`).
pub fn log_error(text: &str) {
    let priority = if is_journal(std::io::stderr()) {
        "<3>"
    } else {
        ""
    };
    line(priority, text);
}

/// Whether the service manager has connected this to its journal, and nobody has redirected it since
/// (`$JOURNAL_STREAM`, `systemd.exec(5)`).
fn is_journal(stream: impl AsFd) -> bool {
    let about = rustix::fs::fstat(stream);
    std::env::var("JOURNAL_STREAM").is_ok_and(|named| {
        about.is_ok_and(|about| named == format!("{}:{}", about.st_dev, about.st_ino))
    })
}

/// Writes a text in one call; a closed standard error is not our problem. Each line is one of its own to the journal.
fn line(priority: &str, text: &str) {
    let text = text.replace('\n', &format!("\n{priority}"));
    let _ = std::io::stderr().write_all(format!("{priority}shuntd: {text}\n").as_bytes());
}
