//! Which connections `shunt ss` shows: those for which every option given and the expression hold.

use std::net::SocketAddr;

use clap::ValueEnum;
use shunt_abi::Reason;

use crate::reasons;

use super::connection::{Connection, Listener};
use super::expression::{Expression, Item};
use super::word;

/// How a connection's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Path {
    /// Through shared memory
    Shm,
    /// Through memory of another host
    Rdma,
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
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = reasons::named)]
    reason: Vec<Reason>,
    /// Only those of this process
    #[arg(long)]
    pid: Option<u32>,
    /// Only those of processes of this name
    #[arg(long, value_name = "COMM")]
    program: Option<String>,
    /// Only those with this port, or that of a service of this name, at either end
    #[arg(long, value_parser = word::port)]
    port: Option<u16>,
    /// Only those with this port at the accepting end
    #[arg(long, value_name = "PORT", value_parser = word::port)]
    sport: Option<u16>,
    /// Only those with this port at the connecting end
    #[arg(long, value_name = "PORT", value_parser = word::port)]
    dport: Option<u16>,
    /// Only listeners
    #[arg(long, short)]
    listening: bool,
    /// Only addresses of IPv4
    #[arg(long, short = '4', conflicts_with = "ipv6")]
    ipv4: bool,
    /// Only addresses of IPv6
    #[arg(long, short = '6')]
    ipv6: bool,
    /// A filter in the words of ss(8), such as: state established '( sport = :80 or dst 10.0.0.0/8 )'
    ///
    /// Fields: state, sport, dport, src, dst, pid, program, user, reason, path. Comparisons:
    /// = != < > <= >= and their names. Joined by and, or, not and parentheses.
    #[arg(value_name = "FILTER")]
    words: Vec<String>,
}

/// A filter whose expression has been understood.
pub(crate) struct Compiled<'a> {
    options: &'a Filter,
    expression: Expression,
}

impl Compiled<'_> {
    /// Whether a connection or listener is to be shown.
    pub(crate) fn shows(&self, item: Item<'_>) -> bool {
        let by_options = match item {
            Item::Connection(c) => self.options.shows(c),
            Item::Listener(l) => self.options.shows_listener(l),
        };
        by_options && self.expression.shows(item)
    }
}

impl Filter {
    /// What is wrong with the expression, if anything is.
    pub(super) fn compile(&self) -> Result<Compiled<'_>, String> {
        let expression = Expression::parse(&self.words)?;
        let options = self;
        Ok(Compiled {
            options,
            expression,
        })
    }

    /// The first word of the expression if that is a number, with which none begins.
    pub(super) fn leading_number(&self) -> Option<&str> {
        let word = self.words.first()?;
        word.parse::<f64>().is_ok().then_some(word)
    }

    fn has_family(&self, local: SocketAddr) -> bool {
        !(self.ipv4 && local.is_ipv6() || self.ipv6 && local.is_ipv4())
    }

    /// Whether the options show a connection.
    fn shows(&self, c: &Connection) -> bool {
        let path = match c.path {
            "shm" => Path::Shm,
            "rdma" => Path::Rdma,
            _ => Path::Tcp,
        };
        let has_reason = |r: &Reason| c.reason.as_deref() == Some(r.name());
        let [local, peer] = [c.local.port(), c.peer.port()];
        !self.listening
            && self.has_family(c.local)
            && self.path.is_none_or(|wanted| wanted == path)
            && (self.reason.is_empty() || self.reason.iter().any(has_reason))
            && self
                .pid
                .is_none_or(|pid| c.processes.iter().any(|p| p.pid == Some(pid)))
            && self
                .program
                .as_ref()
                .is_none_or(|name| c.processes.iter().any(|p| word::is_named(&p.comm, name)))
            && self.port.is_none_or(|port| port == local || port == peer)
            && self.sport.is_none_or(|port| port == local)
            && self.dport.is_none_or(|port| port == peer)
    }

    /// Whether they show a listener, which has no path, reason or connecting end.
    fn shows_listener(&self, l: &Listener) -> bool {
        self.has_family(l.local)
            && self.path.is_none()
            && self.reason.is_empty()
            && self.dport.is_none()
            && self.pid.is_none_or(|pid| l.pid == Some(pid))
            && self
                .program
                .as_ref()
                .is_none_or(|name| word::is_named(&l.comm, name))
            && [self.port, self.sport]
                .into_iter()
                .flatten()
                .all(|port| port == l.local.port())
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::{Bytes, Process, Way};
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
                uid: None,
                container: None,
            })
        };
        assert!(shown("") && shown("-l -4 --pid 7 --program redis --port 6379 --sport 6379"));
        for hidden in [
            "--path tcp",
            "--reason PENDING",
            "--dport 6379",
            "--pid 8",
            "-6",
        ] {
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
                uid: None,
                reason: None,
                counts: None,
                container: None,
            }],
            path: "tcp",
            reason: Some("PEER_PLAIN".into()),
            why: None,
            queue: None,
            age_seconds: None,
            left: None,
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
            "-4",
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
            "-l",
            "-6",
        ] {
            assert!(!shows(hidden), "{hidden}");
        }
        assert!(Line::try_parse_from(["ss", "--reason", "WRONG"]).is_err());
    }
}
