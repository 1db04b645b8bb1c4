//! Who runs under Shunt.

/// Who runs under Shunt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Variant {
    /// Nobody.
    Native,
    /// Server and clients.
    Both,
    /// Only the clients.
    Client,
    /// Only the server.
    Server,
    /// Both, and shuntd is killed in the middle of each load.
    Kill,
}

impl Variant {
    pub(crate) const ALL: [Self; 5] = [
        Self::Native,
        Self::Both,
        Self::Client,
        Self::Server,
        Self::Kill,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Both => "both",
            Self::Client => "client",
            Self::Server => "server",
            Self::Kill => "kill",
        }
    }

    pub(crate) fn shunts(self, side: Side) -> bool {
        match side {
            Side::Server => matches!(self, Self::Both | Self::Server | Self::Kill),
            Side::Client => matches!(self, Self::Both | Self::Client | Self::Kill),
        }
    }
}

/// Which of the two a process stands with. Where a connection has more stages
/// (client, proxy, backend), neighbours stand on different sides: then each
/// connection has one end under Shunt in the variants `client` and `server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}
