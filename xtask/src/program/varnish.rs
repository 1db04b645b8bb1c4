//! Varnish before nginx: what it has in its cache, what it asks nginx for each time, and files of many sizes hashed (curl).

use super::nginx;
use super::web::{check_wrk, fetch};
use crate::lab::{Lab, Side, Variant, free_ports};
use crate::stats::Stats;
use anyhow::Result;
use rustix::process::Signal;

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let [port, backend] = free_ports()?;
    // The web server is on the other side of the proxy, like the clients.
    nginx::serve_beside(&mut lab, Side::Client, backend)?;
    serve(&mut lab, port, backend)?;
    let url = format!("http://127.0.0.1:{port}/1k");
    // A request with a cookie is not answered from the cache.
    for header in ["A: cached", "Cookie: not=cached"] {
        let load = ["wrk", "-t", "1", "-c", "8", "-d", "1s", "-H", header, &url];
        check_wrk(&lab.client(60, &load)?)?;
    }
    fetch(&mut lab, port, nginx::FILES)?;
    nginx::check_log(&lab)?;
    lab.finish(Signal::TERM)
}

fn serve(lab: &mut Lab, port: u16, backend: u16) -> Result<()> {
    let (front, back) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{backend}"));
    let directory = format!("{}/varnish", lab.directory.display());
    // Its workers keep the user who starts it, and nobody rules it by a port.
    let words = [
        "/usr/sbin/varnishd",
        "-F",
        "-j",
        "none",
        "-T",
        "none",
        "-a",
        &front,
        "-b",
        &back,
        "-n",
        &directory,
    ];
    lab.serve(port, &words)
}
