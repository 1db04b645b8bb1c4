//! Metrics for whoever connects: as much of HTTP as Prometheus and `curl` speak.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ss::Source;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Address(SocketAddr),
    File(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(address) => Ok(Self::Address(address)),
            Err(_) if text.contains('/') => Ok(Self::File(text.into())),
            Err(_) => Err("neither ADDRESS:PORT nor a path with a slash".into()),
        }
    }
}

/// How long a client may take, since one is served after the other.
const PATIENCE: Duration = Duration::from_secs(2);
/// Who is asked again within this time stays connected to the daemons that have answered.
const KEPT: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};
/// No request of ours is longer.
const LONGEST: usize = 8 << 10;

/// Goes on until it is ended.
pub(super) fn serve(place: &Place) -> Result<Infallible> {
    let mut source = Source::default();
    match place {
        Place::Address(address) => {
            let cannot = || format!("cannot listen at {address}");
            let listener = TcpListener::bind(address).with_context(cannot)?;
            loop {
                wait(&listener, &mut source);
                // Whoever goes away early, or asks for something else, is not our failure.
                let accepted = listener.accept();
                let _ = accepted.and_then(|(stream, _)| by_tcp(stream, &mut source));
            }
        }
        Place::File(path) => {
            let cannot = || format!("cannot listen at {}", path.display());
            remove_stale(path);
            let listener = UnixListener::bind(path).with_context(cannot)?;
            loop {
                wait(&listener, &mut source);
                let accepted = listener.accept();
                let _ = accepted.and_then(|(stream, _)| by_file(stream, &mut source));
            }
        }
    }
}

/// Waits until somebody asks. If nobody does for a while, the daemons are left: one may end once it has no clients.
fn wait(listener: impl AsFd, source: &mut Source) {
    if source.is_connected() {
        let mut asked = [PollFd::new(&listener, PollFlags::IN)];
        if poll(&mut asked, Some(&KEPT)) == Ok(0) {
            *source = Source::default();
        }
    }
}

/// The socket of one that has ended; not of one that listens, nor anything else.
fn remove_stale(path: &Path) {
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|about| about.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(refused) {
        let _ = std::fs::remove_file(path);
    }
}

fn by_tcp(stream: TcpStream, source: &mut Source) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    answer(stream, source)
}

fn by_file(stream: UnixStream, source: &mut Source) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    answer(stream, source)
}

fn answer(mut stream: impl Read + Write, source: &mut Source) -> io::Result<()> {
    let request = request(&mut stream)?;
    let mut words = request.split(|byte| *byte == b' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics" | b"/")) => match super::text(source) {
            Ok(text) => ("200 OK", text),
            Err(error) => ("500 Internal Server Error", format!("{error:#}\n")),
        },
        (Some(b"GET"), _) => ("404 Not Found", "there is /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "there is GET\n".to_owned()),
    };
    let kind = match status {
        "200 OK" => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes())
}

/// A request up to the empty line that ends its head.
fn request(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut some = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let got = stream.read(&mut some)?;
        // Also of who sends a byte now and then.
        if got == 0 || request.len() + got > LONGEST || Instant::now() >= until {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.extend_from_slice(&some[..got]);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is answered to a request.
    fn answered(request: &str) -> io::Result<String> {
        let (mut own, other) = UnixStream::pair()?;
        own.write_all(request.as_bytes())?;
        own.shutdown(std::net::Shutdown::Write)?;
        by_file(other, &mut Source::default())?;
        let mut text = String::new();
        own.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn requests_are_answered_or_refused() {
        let good = answered("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n"), "{good}");
        assert!(good.contains("\r\n\r\n# HELP shunt_daemon_up "), "{good}");
        let missing = answered("GET /none HTTP/1.1\r\n\r\n").unwrap();
        assert!(missing.starts_with("HTTP/1.1 404 "), "{missing}");
        let wrong = answered("POST /metrics HTTP/1.1\r\n\r\n").unwrap();
        assert!(wrong.starts_with("HTTP/1.1 405 "), "{wrong}");
        assert!(answered("GET /metrics").is_err());
        assert!(answered(&"x".repeat(LONGEST + 1)).is_err());
    }

    #[test]
    fn who_asks_byte_by_byte_is_given_up() {
        struct Slow;
        impl Read for Slow {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                std::thread::sleep(PATIENCE / 4);
                to[0] = b'x';
                Ok(1)
            }
        }
        assert!(request(&mut Slow).is_err());
    }

    #[test]
    fn places_are_addresses_or_paths() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9464));
        assert_eq!("127.0.0.1:9464".parse(), Ok(Place::Address(address)));
        assert_eq!("./a".parse(), Ok(Place::File("./a".into())));
        assert!("9464".parse::<Place>().is_err());
    }

    #[test]
    fn only_a_socket_that_nobody_listens_at_is_removed() {
        let path = std::env::temp_dir().join(format!("shunt-metrics-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        remove_stale(&path);
        assert!(path.exists());
        drop(listener);
        remove_stale(&path);
        assert!(!path.exists());
        std::fs::write(&path, "mine").unwrap();
        remove_stale(&path);
        std::fs::remove_file(&path).unwrap();
    }
}
