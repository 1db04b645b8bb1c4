//! Images of Docker's: a minimal Debian 12 and some packages, made from the mirror and by
//! the configuration that apt uses here.

use crate::build::root;
use crate::process::check;
use crate::progress;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const BARE: &str = "shunt-bare";
const SUITE: &str = "bookworm";

/// Makes the image of this name with these packages, unless it is there.
pub(crate) fn prepare(image: &str, packages: &str) -> Result<()> {
    if !succeeds(&["version"]) {
        bail!("Docker is not installed, or its daemon does not answer");
    }
    if succeeds(&["image", "inspect", image]) {
        return Ok(());
    }
    if !succeeds(&["image", "inspect", BARE]) {
        bare()?;
    }
    let container = format!("{image}.{}", std::process::id());
    let committed = progress::step(&format!("installing {packages} in the image"), || {
        // Here, and only here, the host's network may be needed to reach the mirror.
        install(&container, packages, &[])
            .or_else(|_| install(&container, packages, &["--network", "host"]))?;
        progress::run(Command::new("docker").args(["commit", &container, image]))
    });
    succeeds(&["rm", "--force", &container]);
    committed
}

/// Whether Docker does it.
pub(crate) fn succeeds(words: &[&str]) -> bool {
    let mut docker = Command::new("docker");
    docker
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    docker.status().is_ok_and(|status| status.success())
}

/// Makes the image that all others begin with.
fn bare() -> Result<()> {
    let directory = root().join("target/image");
    fs::create_dir_all(&directory)?;
    let archive = directory.join(format!("{SUITE}.tar"));
    if !archive.exists() {
        debootstrap(&directory, &archive)?;
    }
    progress::step("docker import", || {
        progress::run(Command::new("docker").arg("import").arg(&archive).arg(BARE))
    })
}

fn install(container: &str, packages: &str, options: &[&str]) -> Result<()> {
    succeeds(&["rm", "--force", container]);
    let script =
        format!("apt-get update -q && apt-get install -y -q --no-install-recommends {packages}");
    let mut command = Command::new("docker");
    command.args(["run", "--name", container]).args(options);
    progress::run(command.args([BARE, "sh", "-c", &script]))
}

fn debootstrap(directory: &Path, archive: &Path) -> Result<()> {
    let system = directory.join("system");
    let _ = fs::remove_dir_all(&system);
    let mirror = mirror().context("apt names no mirror here")?;
    let mut command = Command::new("debootstrap");
    command
        .arg("--variant=minbase")
        .arg(SUITE)
        .arg(&system)
        .arg(mirror);
    progress::step("debootstrap", || progress::run(&mut command))?;
    // How apt gets at its packages, as on this machine.
    check(
        Command::new("sh")
            .arg("-c")
            .arg(
                "cd \"$0\"/etc/apt && rm -f sources.list && cp -r /etc/apt/sources.list* . && \
         for f in $(grep -l Acquire /etc/apt/apt.conf.d/*); do cp \"$f\" apt.conf.d/; done",
            )
            .arg(&system),
    )?;
    let part = archive.with_extension("part");
    progress::run(
        Command::new("tar")
            .arg("-C")
            .arg(&system)
            .arg("-cf")
            .arg(&part)
            .arg("."),
    )?;
    fs::rename(&part, archive)?;
    fs::remove_dir_all(&system).context("remove the unpacked system")
}

/// The first mirror that apt uses here.
fn mirror() -> Option<String> {
    let output = Command::new("apt-get")
        .args([
            "indextargets",
            "--format",
            "$(REPO_URI)",
            "Created-By: Packages",
        ])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned)
}
