//! Runs in which connections change their way all the time.

use std::process::Command;

/// Why cases are left out then.
pub(crate) const WHY: &str =
    "they count edges or turns, know how much room there is, or make too many calls for pauses";

/// How often they do.
pub(crate) struct Restless {
    /// All connections go back to TCP at each of this many waits.
    pub(crate) waits: u32,
    /// A pause comes at one in this many steps.
    pub(crate) steps: Option<u32>,
}

impl Restless {
    /// Tells a program which of its cases to leave out: those that need not be native then.
    pub(crate) fn leave_out(&self, command: &mut Command) {
        command.env("DIFF_RESTLESS", "1");
        if self.steps.is_some() {
            command.env("DIFF_HESITANT", "1");
        }
    }

    /// The same for a run under Shunt.
    pub(crate) fn apply(&self, command: &mut Command) {
        command.env("SHUNT_RESTLESS", self.waits.to_string());
        if let Some(steps) = self.steps {
            command.env("SHUNT_HESITANT", steps.to_string());
        }
    }
}
