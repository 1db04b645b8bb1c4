//! What tests of web servers share: files, clients that compare bodies, and what
//! load generators must have said.

use crate::lab::Lab;
use anyhow::{Context, Result, bail};
use std::fs;

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

/// Posts a file, which must come back as it is, also on a connection in use.
pub(super) fn echo(lab: &mut Lab, url: &str, file: &str) -> Result<()> {
    let source = format!("@www/{file}");
    let words = [
        "curl",
        "-sSf",
        "-H",
        "Content-Type: application/octet-stream",
        "--data-binary",
        &source,
        "-o",
        "got1",
        url,
        "-o",
        "got2",
        url,
    ];
    lab.client(60, &words)?;
    let wanted = fs::read(lab.directory.join("www").join(file))?;
    for got in ["got1", "got2"] {
        let path = lab.directory.join(got);
        // curl makes no file for an empty body.
        if fs::read(&path).unwrap_or_default() != wanted {
            bail!("{url} did not send back {file}");
        }
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// wrk must have made requests, all of them well.
pub(super) fn check_wrk(output: &str) -> Result<()> {
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

/// ab must have made exactly these many requests, all of them well.
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
