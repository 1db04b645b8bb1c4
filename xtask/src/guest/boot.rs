//! Runs the guest, and says each line of its that begins with `LAB`.

use crate::process::Job;
use crate::progress;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// An emulated processor takes its time.
const LONGEST: Duration = Duration::from_secs(2700);

/// This machine's files, for programs that the guest runs.
const MACHINE: &str =
    "local,path=/,mount_tag=machine,security_model=none,readonly=on,multidevs=remap";

/// All lines that begin so, in order.
pub(super) fn run(directory: &Path, kernel: &Path, initrd: &Path) -> Result<Vec<String>> {
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-M", "q35"])
        .args(["-m", "3072", "-smp", "2", "-nodefaults", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio"])
        .args(["-virtfs", MACHINE])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .arg("-append")
        // An emulated processor beside others does not pass the kernel's check of its timer.
        .arg("console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off no_timer_check");
    let mut job = Job::spawn("guest", directory, &mut command)?;
    let end = Instant::now() + LONGEST;
    let mut said = 0;
    loop {
        let finished = job.finished()?;
        let lines = lines_of(&job.output());
        for line in &lines[said..] {
            progress::say(line);
        }
        said = lines.len();
        if finished.is_some() {
            return Ok(lines);
        }
        if Instant::now() > end {
            job.kill();
            bail!("not done after {} s\n{}", LONGEST.as_secs(), job.tail());
        }
        sleep(Duration::from_millis(200));
    }
}

/// Whole lines of the lab's own.
fn lines_of(output: &str) -> Vec<String> {
    let whole = output.rfind('\n').map_or("", |end| &output[..end]);
    whole
        .lines()
        .map(str::trim_end)
        .filter(|line| line.starts_with("LAB"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::lines_of;

    #[test]
    fn only_whole_lines_of_the_lab_are_said() {
        let output = "boot\r\nLAB up\r\nother\nLAB held: this\nLAB hel";
        assert_eq!(lines_of(output), ["LAB up", "LAB held: this"]);
        assert_eq!(lines_of("LAB"), [""; 0]);
    }
}
