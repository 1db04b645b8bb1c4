//! How many payload bytes of a program must go through rings.

use crate::stats::Stats;
use anyhow::{Result, bail};

/// The floor, with both ends under Shunt.
pub(super) enum Rings {
    /// Nearly all: connections live longer than one request.
    Nearly,
    /// At least this share; the text says why it cannot be nearly all.
    Floor(f64, &'static str),
    /// No floor; the text says why.
    Any(&'static str),
}

impl Rings {
    /// The share, 0 to 1, and why it is no higher.
    fn floor(&self) -> (f64, &'static str) {
        match *self {
            Self::Nearly => (0.99, "connections last"),
            Self::Floor(share, why) => (share, why),
            Self::Any(why) => (0.0, why),
        }
    }

    /// Both ends under Shunt, all the time.
    pub(super) fn check_share(&self, stats: &Stats) -> Result<()> {
        let (share, why) = self.floor();
        if share > 0.0 && (stats.shunted == 0 || stats.ring_share() < share) {
            bail!(
                "too few bytes in rings: {}; wanted {:.0} % ({why})",
                stats.summary(),
                share * 100.0
            );
        }
        Ok(())
    }

    /// Both ends under Shunt, for a while: any share, but not none.
    pub(super) fn check_some(&self, stats: &Stats) -> Result<()> {
        if self.floor().0 > 0.0 && stats.shunted == 0 {
            bail!("nothing was shunted: {}", stats.summary());
        }
        Ok(())
    }
}
