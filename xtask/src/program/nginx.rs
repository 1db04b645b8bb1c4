//! nginx with two workers: many requests on each connection (wrk), one request
//! on each connection (ab), and files of many sizes hashed (curl).

use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs;

/// The files that it serves: name and size.
const FILES: &[(&str, usize)] = &[
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
    lab.serve(
        port,
        &[
            "/usr/sbin/nginx",
            "-p",
            &directory.to_string(),
            "-c",
            &path.to_string_lossy(),
        ],
    )
}

/// Random bytes under `www`.
pub(super) fn write_files(lab: &Lab, files: &[(&str, usize)]) -> Result<()> {
    let root = lab.directory.join("www");
    fs::create_dir_all(&root)?;
    let mut random = fs::File::open("/dev/urandom")?;
    for &(name, size) in files {
        let mut bytes = vec![0; size];
        std::io::Read::read_exact(&mut random, &mut bytes)?;
        fs::write(root.join(name), bytes)?;
    }
    Ok(())
}

/// Fetches each file three times, on one connection and on several, and
/// compares all bytes.
pub(super) fn fetch(lab: &mut Lab, port: u16, files: &[(&str, usize)]) -> Result<()> {
    let url = |name: &str| format!("http://127.0.0.1:{port}/{name}");
    for &(name, _) in files {
        let urls = [url(name), url(name), url(name)];
        lab.client(
            60,
            &[
                "curl", "-sSf", "-o", "got1", &urls[0], "-o", "got2", &urls[1], "--next", "-sSf",
                "-o", "got3", &urls[2],
            ],
        )?;
        let wanted = fs::read(lab.directory.join("www").join(name))?;
        for got in ["got1", "got2", "got3"] {
            let path = lab.directory.join(got);
            // curl makes no file for an empty body.
            let bytes = fs::read(&path).unwrap_or_default();
            if bytes != wanted {
                bail!(
                    "curl got other bytes than those of {name} ({} of {})",
                    bytes.len(),
                    wanted.len()
                );
            }
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

fn check_wrk(output: &str) -> Result<()> {
    let bad = output
        .lines()
        .find(|line| line.contains("Socket errors") || line.contains("Non-2xx"));
    if let Some(line) = bad {
        bail!("wrk:{line}");
    }
    let rate = output
        .lines()
        .find_map(|line| line.trim().strip_prefix("Requests/sec:"))
        .context("wrk printed no rate")?;
    if rate.trim().parse::<f64>()? < 1.0 {
        bail!("wrk made no request");
    }
    Ok(())
}

pub(super) fn check_ab(output: &str, requests: u64) -> Result<()> {
    let field = |name: &str| {
        let line = output.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(':').nth(1))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
    };
    if field("Complete requests") != Some(requests)
        || field("Failed requests") != Some(0)
        || field("Non-2xx").is_some()
    {
        bail!("ab: {output}");
    }
    Ok(())
}

fn check_log(lab: &Lab) -> Result<()> {
    let log = fs::read_to_string(lab.directory.join("error.log")).unwrap_or_default();
    let harmless = |line: &&str| !line.contains("[notice]") && !line.contains("favicon");
    if let Some(line) = log.lines().find(harmless) {
        bail!("nginx: {line}");
    }
    Ok(())
}
