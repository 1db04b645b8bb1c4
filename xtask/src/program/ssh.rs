//! OpenSSH with keys and configuration of its own: a large file there and back,
//! sessions that share a connection, and a forwarded port; and logins one after another
//! of a user who is not root.
//!
//! The server hands each connection to a new program, which shares it with an
//! unprivileged process.

use super::{PYTHON, script};
use crate::lab::{Lab, Side, Variant, free_ports};
use crate::process::wait_until;
use crate::stats::Stats;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// Of the file that is copied, in mebibytes: a whole gibibyte where it goes by rings.
const SIZE: u64 = 64;
const SIZE_BY_RINGS: u64 = 1024;
/// Where OpenSSH, as root, confines its unprivileged process.
const CONFINED: &str = "/run/sshd";

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let [port, forward, target] = free_ports()?;
    configure(&mut lab, port)?;
    let daemon = format!("{}/sshd_config", lab.directory.display());
    lab.serve(port, &["/usr/sbin/sshd", "-D", "-e", "-f", &daemon])?;

    copy(&mut lab, variant)?;
    share(&mut lab, forward, target)?;
    let output = lab.server_output();
    if let Some(line) = output.lines().find(|line| line.contains("rror")) {
        bail!("sshd: {line}");
    }
    lab.finish(Signal::TERM)
}

/// Of one run, beside one by which another connection is forwarded.
const LOGINS: u32 = 3;

pub(super) fn logins(variant: Variant) -> Result<Stats> {
    // A user with a shell, who may log in as nobody else.
    let mut lab = Lab::new(variant)?.run_as("postgres")?;
    let [port, forward, target] = free_ports()?;
    configure(&mut lab, port)?;
    let daemon = format!("{}/sshd_config", lab.directory.display());
    lab.serve(port, &["/usr/sbin/sshd", "-D", "-e", "-f", &daemon])?;
    for number in 0..LOGINS {
        let there = format!("head -c 30000 /dev/zero | wc -c; echo {number}");
        let output = lab.client(60, &["ssh", "-F", "config", "lab", &there])?;
        if output.lines().last() != Some(&number.to_string()) {
            bail!("login {number}: {output}");
        }
    }
    by_socks(&mut lab, forward, target)?;
    let output = lab.server_output();
    if !output.is_empty() {
        bail!("sshd: {output}");
    }
    lab.finish(Signal::TERM)
}

/// A file by HTTP, through a login that serves as a proxy.
fn by_socks(lab: &mut Lab, forward: u16, target: u16) -> Result<()> {
    let mut random = vec![0; 1 << 20];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    fs::write(lab.directory.join("file"), random)?;
    let number = target.to_string();
    let words = [PYTHON, "-m", "http.server", "--bind", "127.0.0.1", &number];
    lab.serve_beside(Side::Client, target, Signal::TERM, &words)?;
    let number = forward.to_string();
    let words = ["ssh", "-F", "config", "-N", "-D", &number, "lab"];
    lab.serve_beside(Side::Client, forward, Signal::TERM, &words)?;
    let proxy = format!("127.0.0.1:{forward}");
    let url = format!("http://127.0.0.1:{target}/file");
    let words = ["curl", "-sSf", "--socks5", &proxy, "-o", "got", &url];
    // It talks to ssh, which is a client, so it stands with the servers.
    lab.client_as(Side::Server, 60, &words)?;
    same_hash(lab, &["file", "got"])
}

/// Keys, and the configurations of both ends.
fn configure(lab: &mut Lab, port: u16) -> Result<()> {
    if rustix::process::geteuid().is_root() && !Path::new(CONFINED).exists() {
        fs::create_dir(CONFINED).context("create what sshd wants")?;
        fs::set_permissions(CONFINED, fs::Permissions::from_mode(0o755))?;
    }
    for key in ["host", "user"] {
        let words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key];
        lab.prepare(60, &words)?;
    }
    let user = lab.prepare(60, &["id", "-un"])?;
    let directory = lab.directory.to_string_lossy().into_owned();
    let host = fs::read_to_string(lab.directory.join("host.pub"))?;
    fs::write(lab.directory.join("known"), format!("lab {host}"))?;
    let daemon = format!(
        "ListenAddress 127.0.0.1:{port}
HostKey {directory}/host
PidFile none
AuthorizedKeysFile {directory}/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
MaxSessions 20
Subsystem sftp /usr/lib/openssh/sftp-server
LogLevel ERROR
"
    );
    let client = format!(
        "Host lab
HostName 127.0.0.1
HostKeyAlias lab
Port {port}
User {user}IdentityFile {directory}/user
IdentitiesOnly yes
UserKnownHostsFile {directory}/known
StrictHostKeyChecking yes
BatchMode yes
ExitOnForwardFailure yes
ControlPath {directory}/control
LogLevel ERROR
"
    );
    fs::write(lab.directory.join("sshd_config"), daemon)?;
    fs::write(lab.directory.join("config"), client)?;
    Ok(())
}

/// A large file there and back.
fn copy(lab: &mut Lab, variant: Variant) -> Result<()> {
    let mut random = vec![0; 1 << 20];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let mut file = fs::File::create(lab.directory.join("file"))?;
    let size = match variant {
        Variant::Both => SIZE_BY_RINGS,
        _ => SIZE,
    };
    for number in 0..size {
        // No two alike, so that none can take another's place.
        random[..8].copy_from_slice(&number.to_ne_bytes());
        file.write_all(&random)?;
    }
    let remote = format!("lab:{}/there", lab.directory.display());
    for ends in [["file", &*remote], [&*remote, "back"]] {
        lab.client(240, &["scp", "-q", "-F", "config", ends[0], ends[1]])?;
    }
    same_hash(lab, &["file", "there", "back"])?;
    for copy in ["there", "back"] {
        fs::remove_file(lab.directory.join(copy))?;
    }
    Ok(())
}

/// Six sessions at once on one connection, beside what goes through its
/// forwarded port to an echo server.
fn share(lab: &mut Lab, forward: u16, target: u16) -> Result<()> {
    let server = script("echo_server.py");
    let number = target.to_string();
    let words = [PYTHON, &server, &number];
    lab.serve_beside(Side::Client, target, Signal::TERM, &words)?;
    let forwarding = format!("127.0.0.1:{forward}:127.0.0.1:{target}");
    let words = ["ssh", "-F", "config", "-M", "-N", "-L", &forwarding, "lab"];
    lab.serve_beside(Side::Client, forward, Signal::TERM, &words)?;
    let control = lab.directory.join("control");
    if !wait_until(Duration::from_secs(10), || control.exists()) {
        bail!("ssh does not share its connection");
    }

    let sessions = "head -c 3000000 file >part
for n in 1 2 3 4 5 6; do ssh -F config lab cat <part >part$n & all=\"$all $!\"; done
for one in $all; do wait $one || exit; done";
    lab.client(60, &["sh", "-c", sessions])?;
    same_hash(
        lab,
        &["part", "part1", "part2", "part3", "part4", "part5", "part6"],
    )?;
    // It talks to ssh, which is a client, so it stands with the servers.
    let (clients, number) = (script("echo_check.py"), forward.to_string());
    let words = [PYTHON, &clients, &number, "4", "4"];
    let output = lab.client_as(Side::Server, 60, &words)?;
    if !output.contains("4 clients, 0 errors") {
        bail!("echo_check: {output}");
    }
    Ok(())
}

fn same_hash(lab: &mut Lab, files: &[&str]) -> Result<()> {
    let output = lab.prepare(240, &[&["sha256sum"], files].concat())?;
    let hashes: Vec<_> = output
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    if hashes.len() != files.len() || hashes.iter().any(|hash| *hash != hashes[0]) {
        bail!("files that should be the same:\n{output}");
    }
    Ok(())
}
