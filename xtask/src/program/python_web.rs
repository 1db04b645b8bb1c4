//! Python web applications: gunicorn with a process or a thread for each
//! connection, and uWSGI, which is the interpreter inside a C server.

use super::script;
use super::web::{check_ab, check_wrk, echo, fetch};
use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;
use std::fs;

const APPLICATION: &str = "wsgi_echo";
const FILES: &[(&str, usize)] = &[("0", 0), ("1000", 1000), ("300000", 300_000)];

/// Two processes, each with one connection at a time and one request on it.
pub(super) fn gunicorn_sync(variant: Variant) -> Result<Stats> {
    gunicorn(variant, &["--worker-class=sync", "--workers=2"], false)
}

/// Two processes with four threads; connections stay open.
pub(super) fn gunicorn_threads(variant: Variant) -> Result<Stats> {
    let options = ["--worker-class=gthread", "--workers=2", "--threads=4"];
    gunicorn(variant, &options, true)
}

fn gunicorn(variant: Variant, options: &[&str], lasting: bool) -> Result<Stats> {
    let mut lab = lab(variant)?;
    let port = free_port()?;
    let address = format!("--bind=127.0.0.1:{port}");
    let mut words = vec!["gunicorn", "--log-level=warning", &address];
    words.extend(options);
    words.push(APPLICATION);
    lab.serve(port, &words)?;
    load(&mut lab, port, lasting)?;
    let output = lab.server_output();
    if !output.trim().is_empty() {
        bail!("gunicorn: {output}");
    }
    lab.finish(Signal::TERM)
}

/// Two processes with two threads; connections stay open.
pub(super) fn uwsgi(variant: Variant) -> Result<Stats> {
    let mut lab = lab(variant)?;
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}");
    let module = format!("{APPLICATION}:application");
    lab.serve(
        port,
        &[
            "/usr/bin/uwsgi-core",
            "--plugin=python3",
            "--master",
            "--processes=2",
            "--threads=2",
            "--disable-logging",
            "--die-on-term",
            "--http11-socket",
            &address,
            "--module",
            &module,
        ],
    )?;
    load(&mut lab, port, true)?;
    let output = lab.server_output();
    let bad = |line: &&str| line.contains("rror") || line.contains("Traceback");
    if let Some(line) = output.lines().find(bad) {
        bail!("uwsgi: {line}");
    }
    lab.finish(Signal::TERM)
}

/// A directory with the application and the bodies that it makes.
fn lab(variant: Variant) -> Result<Lab> {
    let lab = Lab::new(variant)?.eager();
    let name = format!("{APPLICATION}.py");
    fs::copy(script(&name), lab.directory.join(name))?;
    fs::create_dir(lab.directory.join("www"))?;
    for &(name, size) in FILES {
        let body: Vec<u8> = (0..=250).cycle().take(size).collect();
        fs::write(lab.directory.join("www").join(name), body)?;
    }
    Ok(lab)
}

fn load(lab: &mut Lab, port: u16, lasting: bool) -> Result<()> {
    let url = format!("http://127.0.0.1:{port}/1000");
    if lasting {
        let output = lab.client(
            60,
            &[
                "wrk",
                "-t",
                "1",
                "-c",
                "4",
                "-d",
                "2s",
                "--timeout",
                "20s",
                &url,
            ],
        )?;
        check_wrk(&output)?;
    } else {
        let output = lab.client(60, &["ab", "-q", "-n", "2000", "-c", "4", &url])?;
        check_ab(&output, 2000)?;
    }
    fetch(lab, port, FILES)?;
    for (file, _) in FILES {
        echo(lab, &url, file)?;
    }
    Ok(())
}
