//! A pair of programs in podman's containers, which get Shunt as a device, by a file of the Container Device Interface.

use super::place::{self, Place};
use super::{Lab, is_wanted};
use crate::report::Report;
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// As the file names it.
pub(super) const DEVICE: &str = "shunt.rs/shunt=all";
/// One of those that podman reads.
const FILE: &str = "/run/cdi/shunt-containers.json";
/// What Debian's podman needs where both versions of control groups are mounted, and where nobody may raise limits.
pub(super) const EVERYWHERE: &[&str] = &[
    "--runtime=runc",
    "--ulimit=nofile=1024:4096",
    "--ulimit=nproc=1000:1000",
];
const STEP: &str = "podman / by a device";
const SERVER: &str = "shunt-containers-server";

/// The test, unless only others are wanted.
pub(super) fn steps(report: &mut Report, only: &[String]) -> Result<()> {
    if !is_wanted(STEP, only) {
        return Ok(());
    }
    if let Err(error) = place::prepare_image("podman") {
        report.skip(STEP, &format!("{error:#}"));
        return Ok(());
    }
    let lab = Lab::new("podman")?;
    let daemon = lab.daemon(Command::new("env"))?;
    report.step(STEP, || {
        let _device = Device::new(&lab.socket)?;
        let _server = Container(SERVER);
        let server = ["--network", "none", "--name", SERVER];
        let network = format!("container:{SERVER}");
        let client = ["--network", &network];
        let (client, server) = (Place::Podman(&client), Place::Podman(&server));
        lab.pair("pair", client, server, ("127.0.0.1", 7000))
    });
    daemon.stop(Signal::TERM)?;
    Ok(())
}

/// The file, as long as this lives.
struct Device;

impl Device {
    fn new(socket: &Path) -> Result<Self> {
        let text = place::print("cdi", socket)?;
        let directory = Path::new(FILE).parent().context("a directory")?;
        fs::create_dir_all(directory)?;
        fs::write(FILE, text)?;
        Ok(Self)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = fs::remove_file(FILE);
    }
}

/// A container, which goes with this, whatever has become of the command that started it.
struct Container(&'static str);

impl Drop for Container {
    fn drop(&mut self) {
        let mut command = Command::new("podman");
        command.args(["rm", "--force", "--ignore", self.0]);
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
