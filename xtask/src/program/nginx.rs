//! nginx with two workers: many requests on each connection (wrk), one request
//! on each connection (ab), and files of many sizes hashed (curl).

use super::web::{check_ab, check_wrk, fetch, write_files};
use crate::lab::{Lab, Side, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;
use std::fs;
use std::time::Duration;

const PROGRAM: &str = "/usr/sbin/nginx";

/// The files that it serves: name and size.
pub(super) const FILES: &[(&str, usize)] = &[
    ("empty", 0),
    ("1k", 1 << 10),
    ("100k", 100 << 10),
    ("10m", 10 << 20),
];

/// Connections that stay open.
pub(super) fn keep_alive(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?;
    let port = free_port()?;
    serve(&mut lab, port)?;
    for (file, seconds) in [("1k", "3s"), ("100k", "2s")] {
        let url = format!("http://127.0.0.1:{port}/{file}");
        let output = lab.load(60, &["wrk", "-t", "2", "-c", "64", "-d", seconds, &url])?;
        check_wrk(&output)?;
    }
    check_log(&lab)?;
    lab.finish(Signal::QUIT)
}

/// A connection for each request.
pub(super) fn closing(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?;
    // A fast machine needs less than half a second for all of it.
    lab.kill_after = Duration::from_millis(100);
    let port = free_port()?;
    serve(&mut lab, port)?;
    let url = format!("http://127.0.0.1:{port}/1k");
    let output = lab.load(90, &["ab", "-q", "-n", "15000", "-c", "16", &url])?;
    check_ab(&output, 15_000)?;
    fetch(&mut lab, port, FILES)?;
    check_log(&lab)?;
    lab.finish(Signal::QUIT)
}

/// Writes files and configuration and starts nginx.
pub(crate) fn serve(lab: &mut Lab, port: u16) -> Result<()> {
    let (directory, configuration) = configure(lab, port)?;
    lab.serve(port, &[PROGRAM, "-p", &directory, "-c", &configuration])
}

/// The same for an nginx that is not what is tested.
pub(super) fn serve_beside(lab: &mut Lab, side: Side, port: u16) -> Result<()> {
    let (directory, configuration) = configure(lab, port)?;
    let words = [PROGRAM, "-p", &directory, "-c", &configuration];
    lab.serve_beside(side, port, Signal::QUIT, &words)
}

/// Returns the directory and the file with the configuration.
fn configure(lab: &Lab, port: u16) -> Result<(String, String)> {
    write_files(lab, FILES)?;
    let directory = lab.directory.display();
    let configuration = format!(
        "daemon off; worker_processes 2; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;
    client_body_temp_path {directory}/t1; proxy_temp_path {directory}/t2; fastcgi_temp_path {directory}/t3;
    uwsgi_temp_path {directory}/t4; scgi_temp_path {directory}/t5;
    server {{ listen 127.0.0.1:{port}; root {directory}/www; }}
}}
"
    );
    let path = lab.directory.join("nginx.conf");
    fs::write(&path, configuration)?;
    Ok((directory.to_string(), path.to_string_lossy().into_owned()))
}

/// nginx must have had nothing to complain of.
pub(super) fn check_log(lab: &Lab) -> Result<()> {
    let log = fs::read_to_string(lab.directory.join("error.log")).unwrap_or_default();
    let harmless = |line: &&str| !line.contains("[notice]") && !line.contains("favicon");
    if let Some(line) = log.lines().find(harmless) {
        bail!("nginx: {line}");
    }
    Ok(())
}
