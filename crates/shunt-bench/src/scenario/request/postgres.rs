//! PostgreSQL: pgbench's select-only transactions.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;
use shunt_harness::port::free_port;

use super::Demand;
use crate::server::{Load, Run, find, number_after};
use crate::side::Lab;
use crate::sys;

/// Who serves if root must not.
const USER: &str = "postgres";
/// A hundred thousand rows each: all in memory.
const SCALE: &str = "--scale=2";

/// Transactions of one select each.
pub(super) fn select(run: &mut Run, lab: &Lab, demand: &Demand) -> Result<(Load, f64, f64)> {
    let data = lab.directory.join("postgres");
    if !data.join("prepared").exists() {
        prepare(lab, &data)?;
    }
    run.become_user(USER);
    let port = serve(run, &data)?;
    let port = port.to_string();
    let clients = format!("--client={}", demand.connections);
    let time = if demand.quick { "--time=1" } else { "--time=2" };
    let words = ["pgbench", "-h", "127.0.0.1", "-p", &port, "-U", "bench"];
    let what = ["--select-only", "--no-vacuum", &clients, time, "postgres"];
    let load = run.load(&[&words[..], &what].concat())?;
    let rate = number_after(&load.printed, "tps =")?;
    let seconds = load.seconds;
    Ok((load, rate * seconds, seconds))
}

fn serve(run: &mut Run, data: &Path) -> Result<u16> {
    let port = free_port()?;
    let (data, number) = (data.to_string_lossy(), port.to_string());
    let words = ["postgres", "-D", &data, "-h", "127.0.0.1", "-p", &number];
    let settings = ["-c", "unix_socket_directories=", "-c", "fsync=off"];
    run.serve(&[&words[..], &settings].concat(), port)?;
    // It listens before it answers.
    let until = Instant::now() + Duration::from_secs(20);
    let answers = || {
        let program = find("pg_isready").unwrap_or_default();
        let mut command = Command::new(program);
        command.args(["-q", "-h", "127.0.0.1", "-p", &number]);
        command.status().is_ok_and(|status| status.success())
    };
    while !answers() {
        sys::go_on()?;
        ensure!(Instant::now() < until, "PostgreSQL does not answer");
        sleep(Duration::from_millis(20));
    }
    Ok(port)
}

/// Makes the tables, natively and once.
fn prepare(lab: &Lab, data: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(data);
    let mut run = Run::new(lab, false, [None; 2], Signal::INT);
    run.become_user(USER);
    let name = data.to_string_lossy();
    let how = ["--no-sync", "--auth=trust", "--username=bench", "-D", &name];
    run.load(&[&["initdb"][..], &how].concat())?;
    let port = serve(&mut run, data)?.to_string();
    let words = ["pgbench", "-h", "127.0.0.1", "-p", &port, "-U", "bench"];
    run.load(&[&words[..], &["--initialize", "--quiet", SCALE, "postgres"]].concat())?;
    run.stop()?;
    fs::write(data.join("prepared"), "")?;
    Ok(())
}
