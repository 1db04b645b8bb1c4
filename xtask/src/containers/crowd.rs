//! Many connections that come at once, each with a thread of its own at both ends: each of these threads has to be called
//! from another network namespace.

use super::Lab;
use super::Pair;
use super::place::Place;
use anyhow::Result;

const THREADS: &str = "100";
/// Of each connection: what goes by TCP until it is paired is little of that.
const MESSAGES: &str = "600";
/// The least share of bytes by ring, also on a crowded machine. Where threads could not be called at once it was 85 to 94 %.
const LEAST: f64 = 0.97;

impl Lab {
    /// Nearly all bytes of all connections are to travel by ring.
    pub(super) fn crowd(&self, client: Place, server: Place) -> Result<String> {
        let name = "crowd";
        let words = ["7000", name, THREADS];
        let (server, server_stats) = self.listening("crowd-server", name, server, words)?;
        let words = ["10.77.0.3", "7000", name, MESSAGES, THREADS];
        let (client, client_stats) = self.end("crowd-client", name, client, &words)?;
        let pair = Pair {
            jobs: [client, server],
            stats: [client_stats, server_stats],
        };
        pair.finish(LEAST)
    }
}
