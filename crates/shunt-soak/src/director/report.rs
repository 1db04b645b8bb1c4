//! What the director prints.

use super::{Director, Footprint, leaks};
use shunt_harness::stats::{Bytes, Stats};
use std::time::Instant;

impl Director<'_> {
    pub(super) fn progress(&mut self, start: Instant) {
        let now = self.footprint();
        println!(
            "[{:5.0} s] {} connections, {} MB checked, {} processes started, {} kills, {} broken by that; shuntd: {} descriptors, {} kB",
            start.elapsed().as_secs_f64(),
            self.connections,
            self.bytes / 1_000_000,
            self.started,
            self.kills,
            self.broken,
            now.descriptors,
            now.memory_kb
        );
    }

    pub(super) fn summary(
        &mut self,
        begin: &Footprint,
        end: &Footprint,
        stats: &Stats,
    ) -> Result<(), String> {
        let native = self.options.is_native();
        if self.failures.is_empty()
            && let Some(text) = leaks(begin, end, self.daemon_is_hosts())
        {
            self.fail(text);
        }
        let (Bytes { ring, kernel }, shunted) = (stats.bytes(), stats.shunted);
        if !native && self.failures.is_empty() && (shunted == 0 || ring == 0) {
            self.fail("no connection was shunted".into());
        }
        println!(
            "begin: {} processes, shuntd {} descriptors, {} kB; end: {} processes, {} descriptors, {} kB; shared memory of the machine {} kB, then {} kB",
            begin.processes,
            begin.descriptors,
            begin.memory_kb,
            end.processes,
            end.descriptors,
            end.memory_kb,
            begin.shared_kb,
            end.shared_kb
        );
        if !native {
            println!(
                "statistics of those who lived: {shunted} ends shunted, {ring} bytes in rings, {kernel} by the kernel"
            );
        }
        let failures = self.failures.len();
        if self.options.json {
            println!(
                "{{\"seed\":{},\"connections\":{},\"bytes\":{},\"processes\":{},\"killed\":{},\"broken\":{},\"failures\":{failures},\
                 \"shunted\":{shunted},\"ring_bytes\":{ring},\"kernel_bytes\":{kernel},\
                 \"begin\":{{\"processes\":{},\"descriptors\":{},\"memory_kb\":{}}},\
                 \"end\":{{\"processes\":{},\"descriptors\":{},\"memory_kb\":{}}}}}",
                self.options.common.seed,
                self.connections,
                self.bytes,
                self.started,
                self.kills,
                self.broken,
                begin.processes,
                begin.descriptors,
                begin.memory_kb,
                end.processes,
                end.descriptors,
                end.memory_kb
            );
        }
        let restarted = self.options.restarts.map(|_| self.daemon_kills);
        let kills_of_daemon = self
            .daemon
            .as_ref()
            .map(|daemon| daemon.kills)
            .or(restarted);
        println!(
            "soak: {} connections, {} MB checked, {} kills{}, {failures} failures",
            self.connections,
            self.bytes / 1_000_000,
            self.kills,
            kills_of_daemon.map_or(String::new(), |kills| format!(" ({kills} of shuntd)"))
        );
        if failures == 0 {
            Ok(())
        } else {
            Err(format!(
                "{failures} failures; repeat with --seed {}",
                self.options.common.seed
            ))
        }
    }
}
