//! Apache with its process model and its thread model: files, CGI scripts (by a
//! fork of the worker in one, by a daemon of Apache's in the other) and PHP
//! behind FastCGI over TCP.

use super::web::{check_ab, echo, fetch, write_files};
use crate::lab::{Lab, Side, Variant, free_ports};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const FILES: &[(&str, usize)] = &[("empty", 0), ("1k", 1 << 10), ("5m", 5 << 20)];

// Both send back what they were sent. Apache sends a CGI script all of a body
// before it reads.
const CGI: &str = "#!/bin/sh
body=$(mktemp) && cat >\"$body\" || exit
printf 'Content-Type: application/octet-stream\\r\\n\\r\\n'
cat \"$body\"
rm \"$body\"
";
const PHP: &str = "<?php
header('Content-Type: application/octet-stream');
header('Content-Length: ' . $_SERVER['CONTENT_LENGTH']);
readfile('php://input');
";

const MODULES: &[&str] = &[
    "authz_core",
    "mime",
    "env",
    "alias",
    "proxy",
    "proxy_fcgi",
    "setenvif",
];

/// A process for each connection; CGI by `fork` and `exec` in that process.
/// A new connection to PHP for each request.
pub(super) fn prefork(variant: Variant) -> Result<Stats> {
    run(variant, "prefork", "cgi", "StartServers 8")
}

/// Threads behind one epoll set; CGI by a daemon; connections to PHP that last.
pub(super) fn event(variant: Variant) -> Result<Stats> {
    let settings = "ScriptSock cgid.socket\nStartServers 2\nThreadsPerChild 16\n\
                    MaxRequestWorkers 32\nMinSpareThreads 1\nMaxSpareThreads 32";
    run(variant, "event", "cgid", settings)
}

fn run(variant: Variant, model: &str, cgi: &str, settings: &str) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager().run_as("www-data")?;
    let [port, backend] = free_ports()?;
    write_files(&lab, FILES)?;
    write_scripts(&lab)?;
    serve_php(&mut lab, backend)?;
    let modules = [&format!("mpm_{model}"), cgi].map(|name| name.to_owned());
    serve(&mut lab, port, backend, &modules, settings)?;

    let url = format!("http://127.0.0.1:{port}");
    let page = format!("{url}/1k");
    let script = format!("{url}/echo.php");
    let posted = ["-p", "www/1k", "-T", "application/octet-stream"];
    ab(&mut lab, 20_000, &["-k", "-c", "8", &page])?;
    ab(&mut lab, 2000, &["-c", "4", &page])?;
    ab(
        &mut lab,
        2000,
        &[&["-k", "-c", "4"], &posted[..], &[&script]].concat(),
    )?;
    fetch(&mut lab, port, FILES)?;
    for script in ["echo.cgi", "echo.php"] {
        for (file, _) in FILES {
            echo(&mut lab, &format!("{url}/{script}"), file)?;
        }
    }
    check_logs(&lab)?;
    lab.finish(Signal::TERM)
}

fn ab(lab: &mut Lab, requests: u64, options: &[&str]) -> Result<()> {
    let count = requests.to_string();
    let mut words = vec!["ab", "-q", "-n", &*count];
    words.extend(options);
    check_ab(&lab.client(60, &words)?, requests)
}

fn write_scripts(lab: &Lab) -> Result<()> {
    for (name, text) in [("echo.cgi", CGI), ("echo.php", PHP)] {
        let path = lab.directory.join("www").join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// PHP is on the other side of Apache, like the clients.
fn serve_php(lab: &mut Lab, port: u16) -> Result<()> {
    let configuration = format!(
        "[global]\nerror_log = php.log\n[www]\nlisten = 127.0.0.1:{port}\n\
         pm = static\npm.max_children = 8\n"
    );
    let directory = lab.directory.to_string_lossy().into_owned();
    let path = format!("{directory}/php.conf");
    fs::write(&path, configuration)?;
    let program = "/usr/sbin/php-fpm8.2";
    let words = [program, "-n", "-F", "-p", &directory, "-y", &path];
    lab.serve_beside(Side::Client, port, Signal::QUIT, &words)
}

fn serve(lab: &mut Lab, port: u16, backend: u16, modules: &[String], settings: &str) -> Result<()> {
    let directory = lab.directory.to_string_lossy().into_owned();
    let mut text = format!(
        "ServerRoot {directory}
ServerName 127.0.0.1
DefaultRuntimeDir {directory}
PidFile apache.pid
ErrorLog error.log
Listen 127.0.0.1:{port}
TypesConfig /dev/null
MaxKeepAliveRequests 0
DocumentRoot {directory}/www
"
    );
    for module in MODULES
        .iter()
        .copied()
        .chain(modules.iter().map(String::as_str))
    {
        text += &format!("LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so\n");
    }
    // Each of two processes with as many connections as PHP has workers for.
    let reuse = match modules[0].as_str() {
        "mpm_event" => "enablereuse=on max=4",
        _ => "enablereuse=off",
    };
    text += &format!(
        "{settings}
<Directory {directory}/www>
Require all granted
Options ExecCGI
</Directory>
<Proxy fcgi://127.0.0.1:{backend}>
ProxySet {reuse}
</Proxy>
AddHandler cgi-script .cgi
<FilesMatch \\.php$>
SetHandler proxy:fcgi://127.0.0.1:{backend}
</FilesMatch>
"
    );
    let path = format!("{directory}/apache.conf");
    fs::write(&path, text)?;
    lab.serve(port, &["/usr/sbin/apache2", "-DFOREGROUND", "-f", &path])
}

fn check_logs(lab: &Lab) -> Result<()> {
    for name in ["error.log", "php.log"] {
        let log = fs::read_to_string(lab.directory.join(name)).unwrap_or_default();
        let harmless = |line: &&str| !line.contains("notice]") && !line.contains("NOTICE:");
        if let Some(line) = log.lines().find(harmless) {
            bail!("{name}: {line}");
        }
    }
    Ok(())
}
