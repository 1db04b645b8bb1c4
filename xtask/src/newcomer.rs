//! Proves that the two commands of the README work for someone who has just cloned
//! the repository: on this machine and in a default container (`docker run` without
//! options but the mounts that bring in sources and toolchain), as root and as an
//! ordinary user.

mod judge;
mod watch;

use crate::build::root;
use crate::image;
use crate::process::check;
use crate::setup::{self, Need};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run `cargo xtask test` in a container, too
    #[arg(long)]
    test: bool,
    /// Only the containers, not this machine
    #[arg(long)]
    container: bool,
}

/// The environment that says how this machine reaches packages and crates.
const PASSED_ON: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
];

/// Runs a task and says how it ended and what it cost.
const TASK: &str = r#"
TIMEFORMAT='== cpu %U s user, %S s system'
task() { echo "== $1"; shift; time timeout 3600 cargo xtask "$@" 2>&1; echo "== status $?"; }
"#;

/// As root: the demo installs and builds, then only runs.
const AS_ROOT: &str = r#"
task "demo" demo
task "demo, built" demo
"#;

/// As an ordinary user, without the packages at first.
const AS_USER: &str = r#"
useradd --create-home newcomer
chown -R newcomer: "$WORK/shunt" "$CARGO_HOME"
as() { setpriv --reuid=newcomer --regid=newcomer --clear-groups env HOME=/home/newcomer "$@"; }
as bash -c "$TASK"'task "demo, packages missing" demo' | tee /tmp/said
echo "== install what it asked for"
apt-get update -q
$(grep -m 1 -o 'apt-get install .*' /tmp/said) -y -q
echo "== status $?"
as bash -c "$TASK"'task "demo" demo; task "demo, built" demo'
"#;

/// As nobody, on a machine that has the packages.
const AS_NOBODY: &str = r#"
chown -R nobody: "$WORK/shunt" "$CARGO_HOME"
setpriv --reuid=nobody --regid=nogroup --clear-groups env HOME="$CARGO_HOME" \
    bash -c "$TASK"'task "demo" demo; task "demo, built" demo'
"#;

const TEST: &str = r#"task "test" test"#;

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root: it makes a bare system and runs Docker");
    }
    setup::run(Need::Newcomer)?;
    let place = Place::new()?;
    let mut good = true;
    if !options.container {
        good &= judge::report("this machine, root", &on_host(&place, AS_ROOT)?);
        good &= judge::report("this machine, user", &on_host(&place, AS_NOBODY)?);
    }
    match image::prepare(IMAGE, "gcc libc6-dev ca-certificates") {
        Err(error) => {
            println!("no container here: {error:#}");
            good = false;
        }
        Ok(()) => {
            good &= judge::report("container, root", &in_container(&place, AS_ROOT)?);
            good &= judge::report("container, user", &in_container(&place, AS_USER)?);
            if options.test {
                good &= judge::report("container, tests", &in_container(&place, TEST)?);
            }
        }
    }
    println!(
        "\nnewcomer: {}",
        if good {
            "all holds"
        } else {
            "something does not hold, see above"
        }
    );
    Ok(good)
}

/// Debian with a C linker, which Rust needs.
const IMAGE: &str = "shunt-newcomer";

/// Where sources, crates and toolchain come from.
struct Place {
    clone: PathBuf,
    toolchain: PathBuf,
}

impl Place {
    fn new() -> Result<Self> {
        let directory = root().join("target/newcomer");
        fs::create_dir_all(&directory)?;
        let clone = directory.join("clone");
        let _ = fs::remove_dir_all(&clone);
        let mut git = Command::new("git");
        git.args(["clone", "--quiet", "--no-hardlinks"]);
        check(git.arg(root()).arg(&clone))?;
        let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
        let sysroot = String::from_utf8(sysroot.context("rustc")?.stdout)?;
        // A toolchain may be a link to another.
        let toolchain = fs::canonicalize(sysroot.trim()).context("Rust's sysroot")?;
        Ok(Self { clone, toolchain })
    }
}

/// What cargo has of crates and how it is configured, without credentials.
fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}

/// The script that copies sources and crates to a directory of its own and goes on
/// there: the same here and in a container.
fn script(work: &str, body: &str) -> String {
    format!(
        r#"set -u
export WORK={work} CARGO_HOME={work}/cargo PATH={work}/toolchain/bin:$PATH
export TASK={task}
mkdir -p "$CARGO_HOME"
cp -r "$CLONE" "$WORK/shunt"
for name in config.toml registry; do
    [ ! -e "$CRATES/$name" ] || cp -r "$CRATES/$name" "$CARGO_HOME"
done
cd "$WORK/shunt"
eval "$TASK"
{body}"#,
        task = quoted(TASK)
    )
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn passed_on() -> impl Iterator<Item = (&'static str, OsString)> {
    PASSED_ON
        .iter()
        .filter_map(|&name| Some((name, std::env::var_os(name)?)))
}

fn on_host(place: &Place, body: &str) -> Result<Vec<watch::Section>> {
    let work = std::env::temp_dir().join(format!("shunt-newcomer.{}", std::process::id()));
    fs::create_dir_all(work.join("toolchain"))?;
    let text = script(&work.to_string_lossy(), body);
    // A user need not be able to reach root's toolchain where it is.
    let mount = format!(
        "mount --bind --options ro \"$TOOLCHAIN\" {}/toolchain || exit\n{text}",
        work.display()
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "bash", "-c", &mount])
        .env_clear()
        .envs(passed_on())
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", "/root")
        .env("CLONE", &place.clone)
        .env("CRATES", cargo_home())
        .env("TOOLCHAIN", &place.toolchain);
    let sections = watch::run(&mut command);
    let _ = fs::remove_dir_all(&work);
    sections
}

fn in_container(place: &Place, body: &str) -> Result<Vec<watch::Section>> {
    let mount = |from: &Path, to: &str| format!("{}:{to}:ro", from.display());
    let mut command = Command::new("docker");
    command.args(["run", "--rm"]);
    for (from, to) in [
        (place.clone.as_path(), "/mnt/clone"),
        (&cargo_home(), "/mnt/crates"),
        (&place.toolchain, "/opt/shunt/toolchain"),
        (Path::new("/etc/ssl/certs"), "/mnt/certificates"),
    ] {
        command.args(["-v", &mount(from, to)]);
    }
    for (name, _) in passed_on() {
        command.args(["-e", name]);
    }
    // Copied: packages write there, too.
    let start = "export CLONE=/mnt/clone CRATES=/mnt/crates
cp -rL /mnt/certificates/. /etc/ssl/certs";
    let text = format!("{start}\n{}", script("/opt/shunt", body));
    command.args([IMAGE, "bash", "-c", &text]);
    watch::run(&mut command)
}
