//! Which connections `shunt ss` shows: those for which every option given holds.

use clap::ValueEnum;
use shunt_abi::Reason;

use super::{Connection, Listener};

/// How a connection's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Path {
    /// Through shared memory
    Shm,
    /// Through the kernel
    Tcp,
}

/// See the module.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Filter {
    /// Only those that take this path
    #[arg(long, value_enum)]
    path: Option<Path>,
    /// Only those with one of these reasons (may be several, with commas)
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = reason)]
    reason: Vec<Reason>,
    /// Only those of this process
    #[arg(long)]
    pid: Option<u32>,
    /// Only those of processes of this name
    #[arg(long, value_name = "COMM")]
    program: Option<String>,
    /// Only those with this port at either end
    #[arg(long)]
    port: Option<u16>,
    /// Only those with this port at the accepting end
    #[arg(long, value_name = "PORT")]
    sport: Option<u16>,
    /// Only those with this port at the connecting end
    #[arg(long, value_name = "PORT")]
    dport: Option<u16>,
}

fn reason(name: &str) -> Result<Reason, String> {
    let known = |reason: &&Reason| reason.name().eq_ignore_ascii_case(name);
    let found = Reason::ALL.iter().find(known).copied();
    found.ok_or_else(|| "no such reason: `shunt reasons` lists all".into())
}

impl Filter {
    /// Whether a connection is to be shown.
    pub(super) fn shows(&self, c: &Connection) -> bool {
        let path = match c.path {
            "shm" => Path::Shm,
            _ => Path::Tcp,
        };
        let has_reason = |r: &Reason| c.reason.as_deref() == Some(r.name());
        let [local, peer] = [c.local.port(), c.peer.port()];
        self.path.is_none_or(|wanted| wanted == path)
            && (self.reason.is_empty() || self.reason.iter().any(has_reason))
            && self
                .pid
                .is_none_or(|pid| c.processes.iter().any(|p| p.pid == Some(pid)))
            && self
                .program
                .as_ref()
                .is_none_or(|name| c.processes.iter().any(|p| p.comm == *name))
            && self.port.is_none_or(|port| port == local || port == peer)
            && self.sport.is_none_or(|port| port == local)
            && self.dport.is_none_or(|port| port == peer)
    }

    /// Whether a listener is to be shown, which has no path, reason or connecting end.
    pub(super) fn shows_listener(&self, l: &Listener) -> bool {
        self.path.is_none()
            && self.reason.is_empty()
            && self.dport.is_none()
            && self.pid.is_none_or(|pid| l.pid == Some(pid))
            && self.program.as_ref().is_none_or(|name| l.comm == *name)
            && [self.port, self.sport]
                .into_iter()
                .flatten()
                .all(|port| port == l.local.port())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bytes, Process, Way};
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        filter: Filter,
    }

    const NONE: Way = Way { ring: 0, kernel: 0 };

    #[test]
    fn a_listener_has_neither_path_nor_peer() {
        let shown = |options: &str| {
            let words = std::iter::once("ss").chain(options.split_whitespace());
            Line::parse_from(words).filter.shows_listener(&Listener {
                local: ([127, 0, 0, 1], 6379).into(),
                pid: Some(7),
                comm: "redis".into(),
                container: None,
            })
        };
        assert!(shown("") && shown("--pid 7 --program redis --port 6379 --sport 6379"));
        for hidden in ["--path tcp", "--reason PENDING", "--dport 6379", "--pid 8"] {
            assert!(!shown(hidden), "{hidden}");
        }
    }

    /// Whether a plain connection of redis, pid 7, port 6379, is shown.
    fn shows(options: &str) -> bool {
        let words = std::iter::once("ss").chain(options.split_whitespace());
        let connection = Connection {
            local: ([127, 0, 0, 1], 6379).into(),
            peer: ([127, 0, 0, 1], 40_000).into(),
            processes: vec![Process {
                pid: Some(7),
                comm: "redis".into(),
                end: "server",
                container: None,
            }],
            path: "tcp",
            reason: Some("PEER_PLAIN".into()),
            bytes: Bytes {
                to_client: NONE,
                to_server: NONE,
            },
        };
        Line::parse_from(words).filter.shows(&connection)
    }

    #[test]
    fn every_option_given_must_hold() {
        for shown in [
            "",
            "--path tcp",
            "--reason peer_plain",
            "--reason PENDING,PEER_PLAIN",
            "--pid 7 --program redis",
            "--port 6379",
            "--port 40000",
            "--sport 6379 --dport 40000",
        ] {
            assert!(shows(shown), "{shown}");
        }
        for hidden in [
            "--path shm",
            "--reason PENDING",
            "--pid 8",
            "--program red",
            "--pid 7 --port 80",
            "--sport 40000",
            "--dport 6379",
        ] {
            assert!(!shows(hidden), "{hidden}");
        }
        assert!(Line::try_parse_from(["ss", "--reason", "WRONG"]).is_err());
    }
}
