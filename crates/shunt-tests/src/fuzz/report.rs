//! What is said: progress, differences, and the sum of it.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use shunt_harness::stats::Stats;

use super::generate::Lines;
use super::play::{Difference, Mode, Play, Player};
use super::shrink::Shrinker;
use crate::diff;
use crate::process;

/// How often a difference is looked for once more, and how often progress is said.
const LOOKS: usize = 3;
const EVERY: Duration = Duration::from_secs(20);

/// A difference and what is known of it.
pub(crate) struct Found {
    name: String,
    mode: Mode,
    first: Difference,
    /// How many of `LOOKS` further plays differed.
    seen: usize,
    script: Lines,
    /// Both outputs of the shrunk script.
    diff: Option<String>,
    stacks: Option<String>,
}

impl Found {
    /// Looks again, and shrinks what is seen again. A native play that differs this time makes it
    /// a script that says nothing.
    pub(crate) fn look(
        player: &Player,
        name: &str,
        script: &[String],
        mode: Mode,
        first: Difference,
        shrinks: bool,
    ) -> Result<Self> {
        let mut found = Self {
            name: name.to_owned(),
            mode,
            first,
            seen: 0,
            script: script.to_vec(),
            diff: None,
            stacks: None,
        };
        let native = player.play(script, Mode::Native)?;
        for _ in 0..LOOKS {
            let again = player.play(script, mode)?;
            found.seen += usize::from(native.difference(&again).is_some());
        }
        if found.seen > 0 && shrinks {
            let shrinker = Shrinker::new(player, mode, script, &found.first)?;
            found.script = shrinker.shrink(script)?;
        }
        found.compare(player)?;
        Ok(found)
    }

    /// A call took long, once, and nothing else: machines do that.
    fn is_slow(&self) -> bool {
        const LATE: &str = " INTERRUPTED";
        let without = |line: &str| line.trim_end_matches(LATE).to_owned();
        self.seen == 0 && without(&self.first.native) == without(&self.first.shunted)
    }

    fn compare(&mut self, player: &Player) -> Result<()> {
        let native = player.play(&self.script, Mode::Native)?;
        for _ in 0..=LOOKS {
            let shunted = player.play_so(&self.script, self.mode, true)?;
            let texts = (native.output.join("\n"), shunted.output.join("\n"));
            let word = self.mode.word();
            self.diff = diff::unified("native", word, &texts.0, &texts.1, diff::MANY);
            self.stacks = shunted.stacks;
            if self.diff.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn text(&self, file: &Path) -> String {
        let mut text = format!(
            "DIFFERENT {} {}, seen again in {} of {LOOKS} plays\n  native   {}\n  {:<8} {}\n",
            self.name,
            self.mode.word(),
            self.seen,
            self.first.native,
            self.mode.word(),
            self.first.shunted
        );
        let _ = writeln!(text, "script ({} lines):", self.script.len());
        for line in &self.script {
            let _ = writeln!(text, "  {line}");
        }
        match &self.diff {
            Some(diff) => text += diff,
            None => text += "(not seen again with this script)\n",
        }
        text += self.stacks.as_deref().unwrap_or_default();
        let _ = writeln!(
            text,
            "replay: cargo xtask fuzz --differential --script {} --modes {}",
            file.display(),
            self.mode.word()
        );
        text
    }
}

/// The sums so far.
pub(crate) struct Report {
    started: Instant,
    said: Instant,
    before: Duration,
    scripts: usize,
    plays: usize,
    operations: usize,
    without_rings: usize,
    dropped: Vec<String>,
    different: Vec<String>,
    slow: usize,
    stats: Stats,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            said: Instant::now(),
            before: process::cpu_time(),
            scripts: 0,
            plays: 0,
            operations: 0,
            without_rings: 0,
            dropped: Vec::new(),
            different: Vec::new(),
            slow: 0,
            stats: Stats::default(),
        }
    }

    /// A play that went through no ring says nothing of Shunt and does not count.
    fn count(&mut self, play: &Play) -> bool {
        let counts = play.stats.sent.ring > 0;
        self.without_rings += usize::from(!counts);
        self.plays += usize::from(counts);
        self.stats += &play.stats;
        counts
    }

    pub(crate) fn equal(&mut self, operations: usize, play: &Play) {
        if self.count(play) {
            self.operations += operations;
        }
    }

    pub(crate) fn drop_script(&mut self, name: &str, difference: &Difference) {
        println!(
            "dropped {name}: native plays differ: {} / {}",
            difference.native, difference.shunted
        );
        self.dropped.push(name.to_owned());
    }

    pub(crate) fn different(&mut self, play: &Play, found: &Found, out: &Path) -> Result<()> {
        self.count(play);
        if found.is_slow() {
            self.slow += 1;
            return Ok(());
        }
        let name = found.name.rsplit('/').next().unwrap_or_default();
        let file = out.join(format!(
            "{}.{}.script",
            name.replace(' ', "-"),
            found.mode.word()
        ));
        std::fs::write(&file, found.script.join("\n") + "\n")?;
        println!("{}", found.text(&file));
        self.different
            .push(format!("{} {}", found.name, found.mode.word()));
        Ok(())
    }

    pub(crate) fn progress(&mut self, name: &str) {
        self.scripts += 1;
        if self.said.elapsed() >= EVERY {
            self.said = Instant::now();
            println!("{name}: {}", self.brief());
        }
    }

    fn brief(&self) -> String {
        format!(
            "{} scripts, {} plays with rings, {} operations, {} different, {} dropped, {:.0} s",
            self.scripts,
            self.plays,
            self.operations,
            self.different.len(),
            self.dropped.len(),
            self.started.elapsed().as_secs_f64()
        )
    }

    /// Prints the sum; returns the number of differences, one if nothing was tested.
    pub(crate) fn finish(&self, seeds: Range<u64>) -> usize {
        if self.slow > 0 {
            println!(
                "{} times a call took long, once, and no other result differed",
                self.slow
            );
        }
        for name in &self.different {
            println!("different: {name}");
        }
        if !self.dropped.is_empty() {
            println!("dropped: {}", self.dropped.join(", "));
        }
        if !seeds.is_empty() {
            println!("seeds {} to {}", seeds.start, seeds.end - 1);
        }
        println!(
            "{} plays went through no ring and do not count; {}",
            self.without_rings,
            self.stats.summary()
        );
        let spent = process::cpu_time().saturating_sub(self.before);
        println!("{}, {:.1} s of CPU time", self.brief(), spent.as_secs_f64());
        if self.plays == 0 {
            println!("nothing went through rings: this run says nothing");
            return 1;
        }
        self.different.len()
    }
}
