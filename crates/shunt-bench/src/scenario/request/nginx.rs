//! nginx as server and as reverse proxy, asked by wrk on connections kept open.

use std::fs::{self, File};
use std::io::Read;
use std::time::Instant;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use shunt_harness::port::free_port;

use super::{Demand, Sample};
use crate::server::{Load, Run, number_after};
use crate::side::Lab;

/// What the page consists of.
const PAGE: &str = "a small page\n";
const LINES: usize = 48;

/// A small page from a file, or by way of a second nginx.
pub(super) fn run(
    run: &mut Run,
    lab: &Lab,
    demand: &Demand,
    proxy: bool,
) -> Result<(Load, f64, f64)> {
    let back = free_port()?;
    serve(run, lab, back, None)?;
    let mut port = back;
    if proxy {
        port = free_port()?;
        serve(run, lab, port, Some(back))?;
    }
    let url = format!("http://127.0.0.1:{port}/page");
    let c = demand.connections.to_string();
    let time = if demand.quick { "1s" } else { "2s" };
    let load = run.load(&["wrk", "-t", "1", "-c", &c, "-d", time, &url])?;
    ensure!(!load.printed.contains("Non-2xx"), "{}", load.printed);
    ensure!(!load.printed.contains("Socket errors"), "{}", load.printed);
    let rate = number_after(&load.printed, "Requests/sec:")?;
    let seconds = load.seconds;
    Ok((load, rate * seconds, seconds))
}

/// The floor: what wrk and nginx do natively outside the kernel for a request to a file,
/// and nginx's calls on the file; all but their calls on sockets.
pub(super) fn own_work(lab: &Lab, demand: &Demand, cores: [Option<usize>; 2]) -> Result<Sample> {
    let mut native = Run::new(lab, false, cores, Signal::QUIT);
    let (load, requests, _) = run(&mut native, lab, demand, false)?;
    native.stop()?;
    let (user, file) = (load.user / requests, file_calls(lab)?);
    Ok(Sample {
        value: (user + file) * 1e6,
        times: None,
        cpu: [user * 1e6, file * 1e6],
        carried: None,
    })
}

/// Seconds of what nginx does with a small file for each request.
fn file_calls(lab: &Lab) -> Result<f64> {
    const TIMES: u32 = 5_000;
    let path = lab.fresh("page");
    fs::write(&path, PAGE.repeat(LINES))?;
    let mut buffer = [0; PAGE.len() * LINES];
    let start = Instant::now();
    for _ in 0..TIMES {
        let mut file = File::open(&path)?;
        ensure!(
            file.metadata()?.len() == buffer.len() as u64,
            "another file"
        );
        file.read_exact(&mut buffer)?;
    }
    Ok((start.elapsed() / TIMES).as_secs_f64())
}

fn serve(run: &mut Run, lab: &Lab, port: u16, back: Option<u16>) -> Result<()> {
    let home = lab.fresh("nginx");
    fs::create_dir_all(home.join("www"))?;
    fs::write(home.join("www/page"), PAGE.repeat(LINES))?;
    let directory = home.display();
    let location = match back {
        None => format!("root {directory}/www;"),
        Some(back) => format!(
            "location / {{ proxy_pass http://back; proxy_http_version 1.1; \
             proxy_set_header Connection \"\"; }} }} \
             upstream back {{ server 127.0.0.1:{back}; keepalive 64; keepalive_requests 100000000;"
        ),
    };
    let configuration = format!(
        "daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;
    client_body_temp_path {directory}/t1; proxy_temp_path {directory}/t2;
    fastcgi_temp_path {directory}/t3; uwsgi_temp_path {directory}/t4;
    scgi_temp_path {directory}/t5;
    server {{ listen 127.0.0.1:{port}; {location} }}
}}
"
    );
    let file = home.join("nginx.conf");
    fs::write(&file, configuration)?;
    let (file, home) = (file.to_string_lossy(), home.to_string_lossy());
    run.serve(&["nginx", "-p", &home, "-c", &file], port)
}
