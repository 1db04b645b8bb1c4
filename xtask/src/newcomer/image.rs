//! The image: a minimal Debian 12 with a C linker, which Rust needs, made from the
//! mirror and by the configuration that apt uses here.

use crate::process::check;
use crate::progress;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

pub(super) const NAME: &str = "shunt-newcomer";
const BARE: &str = "shunt-newcomer-bare";
const SUITE: &str = "bookworm";

/// Makes it, unless it is there.
pub(super) fn prepare(directory: &Path) -> Result<()> {
    let docker = || {
        let mut command = Command::new("docker");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    if !docker()
        .arg("version")
        .status()
        .is_ok_and(|status| status.success())
    {
        bail!("Docker is not installed, or its daemon does not answer");
    }
    if docker()
        .args(["image", "inspect", NAME])
        .status()?
        .success()
    {
        return Ok(());
    }
    let archive = directory.join(format!("{SUITE}.tar"));
    if !archive.exists() {
        debootstrap(directory, &archive)?;
    }
    progress::step("docker import", || {
        progress::run(Command::new("docker").arg("import").arg(&archive).arg(BARE))
    })?;
    let name = format!("{NAME}.{}", std::process::id());
    let committed = progress::step("installing a C linker in the image", || {
        // Here, and only here, the host's network may be needed to reach the mirror.
        install(&name, &[]).or_else(|_| install(&name, &["--network", "host"]))?;
        progress::run(Command::new("docker").args(["commit", &name, NAME]))
    });
    let _ = docker().args(["rm", "--force", &name]).status();
    committed
}

fn install(name: &str, options: &[&str]) -> Result<()> {
    let _ = Command::new("docker")
        .args(["rm", "--force", name])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let script = "apt-get update -q && \
        apt-get install -y -q --no-install-recommends gcc libc6-dev ca-certificates";
    let mut command = Command::new("docker");
    command.args(["run", "--name", name]).args(options);
    progress::run(command.args([BARE, "sh", "-c", script]))
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
