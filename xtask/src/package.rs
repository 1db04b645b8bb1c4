//! Makes what is installed: a Debian package, by cargo-deb, and a tarball of the same files that
//! runs from anywhere. What is in them stands in `crates/shunt-cli/Cargo.toml`.

mod container;
mod trial;

use crate::build::{self, artifact, root};
use crate::process::check;
use crate::progress;
use crate::setup::{self, Need};
use crate::tool;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tool that makes packages: always the same one.
const CARGO_DEB: &str = "3.8.0";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "shunt.bash"),
    ("zsh", "_shunt"),
    ("fish", "shunt.fish"),
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Install, use, upgrade and remove it in a bare Debian 12, in a container of Docker's (as root)
    #[arg(long)]
    test: bool,
}

/// What was made.
struct Made {
    package: PathBuf,
    tarball: PathBuf,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    ensure!(cfg!(target_arch = "x86_64"), "packages are for x86-64 only");
    if !crate::prepared() {
        setup::run(Need::Package)?;
        build::packaged()?;
    }
    let deb = CargoDeb(tool::prepare("cargo-deb", CARGO_DEB, &[])?);
    let directory = root().join("target/package");
    fs::create_dir_all(&directory)?;
    completions()?;
    let package = deb.make(&directory, &format!("{VERSION}-1"))?;
    check_pages(&package)?;
    let tarball = progress::step("making the tarball", || tarball(&directory, &package))?;
    progress::say(&format!("made {}", package.display()));
    progress::say(&format!("made {}", tarball.display()));
    if !options.test {
        return Ok(true);
    }
    // A higher version, to be upgraded to.
    let newer = deb.make(&directory, &format!("{VERSION}-2"))?;
    let good = trial::run(&directory, &Made { package, tarball }, &newer);
    fs::remove_file(&newer)?;
    good
}

/// The tool.
struct CargoDeb(PathBuf);

impl CargoDeb {
    /// Makes the package, with this version, of what is built.
    fn make(&self, directory: &Path, version: &str) -> Result<PathBuf> {
        let package = directory.join(format!("shunt_{version}_amd64.deb"));
        let mut command = Command::new(&self.0);
        command
            .current_dir(root())
            .args([
                "--package",
                "shunt-cli",
                "--no-build",
                "--strip",
                "--locked",
            ])
            .args(["--deb-version", version, "--output"])
            .arg(&package);
        progress::step(&format!("making the package, version {version}"), || {
            progress::run(&mut command)
        })?;
        Ok(package)
    }
}

/// Has `shunt` print its completions, beside what is built.
fn completions() -> Result<()> {
    let directory = artifact("completions");
    fs::create_dir_all(&directory)?;
    for (shell, file) in COMPLETIONS {
        let output = Command::new(artifact("shunt"))
            .args(["completions", shell])
            .output()
            .context("run shunt")?;
        ensure!(output.status.success(), "no completions for {shell}");
        fs::write(directory.join(file), output.stdout)?;
    }
    Ok(())
}

/// Fails if a page of the manual is not in the package.
fn check_pages(package: &Path) -> Result<()> {
    let output = Command::new("dpkg-deb")
        .arg("--contents")
        .arg(package)
        .output()
        .context("dpkg-deb")?;
    let contents = String::from_utf8(output.stdout)?;
    let lost: Vec<_> = pages()?
        .into_iter()
        .filter(|page| {
            !contents
                .lines()
                .any(|line| line.ends_with(&page.installed()))
        })
        .map(|page| page.file())
        .collect();
    if !lost.is_empty() {
        bail!("the package lacks pages of the manual: {}", lost.join(" "));
    }
    Ok(())
}

/// A page of the manual.
#[derive(Debug)]
struct Page {
    name: String,
    section: String,
}

impl Page {
    fn parse(file: &str) -> Option<Self> {
        let (name, section) = file.rsplit_once('.')?;
        Some(Self {
            name: name.to_owned(),
            section: section.to_owned(),
        })
    }

    fn file(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    fn installed(&self) -> String {
        format!("/usr/share/man/man{}/{}.gz", self.section, self.file())
    }
}

/// All of them.
fn pages() -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    for file in fs::read_dir(root().join("man"))? {
        let name = file?.file_name().to_string_lossy().into_owned();
        pages.push(Page::parse(&name).with_context(|| format!("man/{name} has no section"))?);
    }
    Ok(pages)
}

/// Packs the files of the package for those who cannot install it, or do not want to: without what
/// only works where the package has it.
fn tarball(directory: &Path, package: &Path) -> Result<PathBuf> {
    let name = format!("shunt-{VERSION}-x86_64-linux");
    let unpacked = directory.join("unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    check(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(package)
            .arg(&unpacked),
    )?;
    let top = unpacked.join(&name);
    fs::rename(unpacked.join("usr"), &top)?;
    fs::remove_dir_all(top.join("lib/systemd"))?;
    let example = top.join("share/doc/shunt/shunt.toml");
    fs::rename(unpacked.join("etc/shunt/shunt.toml"), example)?;
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        fs::copy(root().join(license), top.join(license))?;
    }
    let tarball = directory.join(format!("{name}.tar.xz"));
    check(
        Command::new("tar")
            .args(["--owner=0", "--group=0", "-cJf"])
            .arg(&tarball)
            .arg("-C")
            .arg(&unpacked)
            .arg(&name),
    )?;
    fs::remove_dir_all(&unpacked)?;
    Ok(tarball)
}

#[cfg(test)]
mod tests;
