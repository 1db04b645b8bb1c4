//! `git daemon`, which hands each connection to a program of its own: clone,
//! push and fetch; git itself checks all bytes.

use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

const PROGRAM: &str = "/usr/lib/git-core/git-daemon";

/// A repository with a large file and many small ones; a shared one for pushes.
const MAKE: &str = "git init -q -b main work && cd work
git config core.compression 0 && git config user.name Nobody && git config user.email nobody@example.org
head -c 10000000 /dev/urandom >large
for n in $(seq 200); do echo $n >$n; done
git add . && git commit -q -m first
git clone -q --bare . ../served/repository.git";

const COMMIT: &str = "head -c 3000000 /dev/urandom >work/more
git -C work add more && git -C work commit -q -m more";

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let port = free_port()?;
    lab.prepare(60, &["mkdir", "served"])?;
    lab.prepare(60, &["sh", "-e", "-c", MAKE])?;
    serve(&mut lab, port)?;
    let url = format!("git://127.0.0.1:{port}/repository.git");

    for copy in ["copy1", "copy2"] {
        lab.client(60, &["git", "clone", "-q", &url, copy])?;
        check(&mut lab, copy)?;
    }
    lab.prepare(60, &["sh", "-e", "-c", COMMIT])?;
    lab.client(60, &["git", "-C", "work", "push", "-q", &url, "main"])?;
    lab.client(60, &["git", "-C", "copy1", "pull", "-q", "--ff-only"])?;
    check(&mut lab, "copy1")?;
    check(&mut lab, "served/repository.git")?;
    let output = lab.server_output();
    if !output.trim().is_empty() {
        bail!("git daemon: {output}");
    }
    lab.finish(Signal::TERM)
}

fn serve(lab: &mut Lab, port: u16) -> Result<()> {
    let base = format!("--base-path={}/served", lab.directory.display());
    let port_option = format!("--port={port}");
    lab.serve(
        port,
        &[
            PROGRAM,
            "--reuseaddr",
            "--export-all",
            "--enable=receive-pack",
            "--listen=127.0.0.1",
            &port_option,
            &base,
        ],
    )
}

/// All objects must be whole, and the last commit that of `work`.
fn check(lab: &mut Lab, repository: &str) -> Result<()> {
    lab.prepare(60, &["git", "-C", repository, "fsck", "--strict"])?;
    let head = ["rev-parse", "main"];
    let here = lab.prepare(60, &[&["git", "-C", "work"], &head[..]].concat())?;
    let there = lab.prepare(60, &[&["git", "-C", repository], &head[..]].concat())?;
    if here != there {
        bail!("{repository} is at {there}, not at {here}");
    }
    Ok(())
}
