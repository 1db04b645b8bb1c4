//! How many payload bytes of a program must go through rings.

use crate::stats::{Stats, bytes};
use anyhow::{Result, bail};

/// The floor, with both ends under Shunt.
pub(super) enum Rings {
    /// Nearly all: connections live longer than one request.
    Nearly,
    /// All but the beginning of each connection: no more than these bytes at each end. For a
    /// load that lasts for a time: what comes after depends on how fast the machine is.
    AfterStart(u64),
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
            Self::AfterStart(_) => (0.5, "connections last"),
            Self::Floor(share, why) => (share, why),
            Self::Any(why) => (0.0, why),
        }
    }

    /// For a table: the share, and why it is no higher.
    pub(super) fn cells(&self) -> String {
        let (share, why) = self.floor();
        let share = match self {
            Self::AfterStart(start) => format!("all but {} kB of each connection", start / 1000),
            Self::Any(_) => "any".to_owned(),
            _ => format!("{:.0} % or more", 100.0 * share),
        };
        format!("{share} | {why}")
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
        if let Self::AfterStart(start) = *self
            && stats.bytes().kernel > start * stats.shunted
        {
            bail!(
                "{} by TCP: {}; wanted no more than {} at each shunted end",
                bytes(stats.bytes().kernel),
                stats.summary(),
                bytes(start)
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

#[cfg(test)]
mod tests {
    use super::{Rings, Stats};
    use shunt_harness::stats::Bytes;

    #[test]
    fn a_beginning_is_allowed_however_little_comes_after_it() {
        let rings = Rings::AfterStart(1000);
        let stats = |ring, kernel| Stats {
            shunted: 4,
            received: Bytes { ring, kernel },
            ..Stats::default()
        };
        assert!(rings.check_share(&stats(1_000_000_000, 4000)).is_ok());
        assert!(rings.check_share(&stats(10_000, 4000)).is_ok());
        assert!(rings.check_share(&stats(1_000_000_000, 4001)).is_err());
        assert!(rings.check_share(&stats(3000, 4000)).is_err());
        assert!(rings.check_share(&Stats::default()).is_err());
    }
}
