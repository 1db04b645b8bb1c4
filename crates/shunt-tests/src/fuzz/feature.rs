//! Kinds of operations that a script may have. Each seed draws its own mixture: scripts with few
//! kinds go deeper into each of them than scripts with all.

use super::random::Random;
use std::fmt;
use std::str::FromStr;

macro_rules! features {
    ($($name:ident $word:literal),* $(,)?) => {
        /// A kind of operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Feature { $($name),* }
        const ALL: &[Feature] = &[$(Feature::$name),*];
        const WORDS: &[&str] = &[$($word),*];
    };
}

features! {
    Fork "fork", Exec "exec", Plain "plain", Stdio "stdio", Pass "pass", Epoll "epoll",
    Edge "edge", OneShot "oneshot", Nested "nested", Splice "splice", Reset "reset",
    LowAt "lowat", Signal "signal", Bulk "bulk", Shutdown "shutdown", Close "close", Dup "dup",
    Timeout "timeout", WaitAll "waitall", Trunc "trunc", Alone "alone", Thread "thread",
    Urgent "urgent", Option "option", Bad "bad", NonBlock "nonblock",
}

impl FromStr for Feature {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let at = WORDS.iter().position(|word| *word == s);
        at.map(|i| ALL[i])
            .ok_or_else(|| format!("one of {}", WORDS.join(", ")))
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WORDS[*self as usize])
    }
}

/// The mixture of one script.
pub(crate) struct Mixture(u64);

impl Mixture {
    /// Each kind in about half of the scripts, those `without` in none.
    pub(crate) fn draw(random: &mut Random, without: &[Feature]) -> Self {
        let mut mixture = Self(0);
        for feature in ALL {
            // Drawn also if it is left out, so that the rest of the script stays as it is.
            if random.percent(50) && !without.contains(feature) {
                mixture.0 |= 1 << *feature as u32;
            }
        }
        mixture.leave_out_known();
        mixture
    }

    /// An edge is told once more when a connection goes back to TCP, and a one-shot registration of
    /// an exec'd set may be used up twice: docs/limits.md.
    fn leave_out_known(&mut self) {
        use Feature::{Edge, Exec, Fork, OneShot, Pass, Plain, Stdio, Urgent};
        if self.has(Edge) || self.has(OneShot) {
            for feature in [Exec, Plain, Stdio, Pass, Urgent, Fork] {
                self.0 &= !(1 << feature as u32);
            }
        }
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.0 >> feature as u32 & 1 != 0
    }

    /// Whether connections are handed on.
    pub(crate) fn hands_on(&self) -> bool {
        use Feature::{Exec, Pass, Plain, Stdio};
        [Exec, Pass, Plain, Stdio]
            .iter()
            .any(|feature| self.has(*feature))
    }
}

impl fmt::Display for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = ALL
            .iter()
            .filter(|feature| self.has(**feature))
            .map(Feature::to_string)
            .collect();
        f.write_str(&words.join(" "))
    }
}
