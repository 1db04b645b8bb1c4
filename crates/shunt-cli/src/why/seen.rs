//! What one answer reads of processes and their sockets: each thing once, for all connections.

use std::collections::HashMap;

use super::sockets::Sockets;
use crate::process::Process;

#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) sockets: Sockets,
    processes: HashMap<u32, Option<Process>>,
}

impl Seen {
    /// What can be seen of this process, if there is one.
    pub(super) fn process(&mut self, pid: u32) -> Option<&Process> {
        let found = self.processes.entry(pid);
        found.or_insert_with(|| Process::look(pid)).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_looked_at_once() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut seen = Seen::default();
        assert!(seen.process(child.id()).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.process(child.id()).is_some());
        assert!(Seen::default().process(child.id()).is_none());
    }
}
