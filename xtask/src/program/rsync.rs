//! The rsync daemon: a tree there and back, changed, and there again by its
//! differences. Both ends fork with the connection.

use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;
use std::fs;

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let port = free_port()?;
    serve(&mut lab, port)?;
    let module = format!("rsync://127.0.0.1:{port}/module/");
    lab.prepare(60, &["sh", "-c", MAKE])?;
    for _ in 0..2 {
        for [from, to] in [["tree/", &*module], [&*module, "back/"]] {
            // By contents: changes within a second keep a file's time.
            lab.client(60, &["rsync", "-a", "-c", "--delete", from, to])?;
        }
        lab.prepare(60, &["diff", "-r", "tree", "module"])?;
        lab.prepare(60, &["diff", "-r", "tree", "back"])?;
        lab.prepare(60, &["sh", "-c", CHANGE])?;
    }
    let log = fs::read_to_string(lab.directory.join("rsync.log"))?;
    if let Some(line) = log.lines().find(|line| line.contains("error")) {
        bail!("rsync: {line}");
    }
    lab.finish(Signal::TERM)
}

/// Many small files and a large one.
const MAKE: &str = "mkdir tree module back
for n in $(seq 200); do head -c $n$n /dev/urandom >tree/$n; done
head -c 10000000 /dev/urandom >tree/large";

/// Bytes in the middle, at the end, a file less and one more.
const CHANGE: &str = "head -c 1000 /dev/urandom |
    dd of=tree/large bs=1000 seek=7000 conv=notrunc status=none
head -c 3000000 /dev/urandom >>tree/large
rm tree/$(ls tree | head -n 1)
head -c 100000 /dev/urandom >tree/more";

fn serve(lab: &mut Lab, port: u16) -> Result<()> {
    let directory = lab.directory.to_string_lossy().into_owned();
    // Without root there is no other user to become.
    let user = if rustix::process::geteuid().is_root() {
        "uid = root\ngid = root\n"
    } else {
        ""
    };
    let configuration = format!(
        "{user}use chroot = no\nlog file = {directory}/rsync.log\n\
         [module]\npath = {directory}/module\nread only = no\n"
    );
    fs::write(lab.directory.join("rsyncd.conf"), configuration)?;
    let port_option = format!("--port={port}");
    lab.serve(
        port,
        &[
            "rsync",
            "--daemon",
            "--no-detach",
            "--config=rsyncd.conf",
            "--address=127.0.0.1",
            &port_option,
        ],
    )
}
