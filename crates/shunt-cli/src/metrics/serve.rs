//! Metrics for whoever connects: as much of HTTP as Prometheus and `curl` speak.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::Metrics;

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
/// How long it may pause in the middle of its request.
const PAUSE: Duration = Duration::from_millis(500);
/// Who is asked again within this time stays connected to the daemons that have answered.
const KEPT: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};
/// No request of ours is longer, ...
const LONGEST: usize = 8 << 10;
/// ... or has more headers.
const MOST_HEADERS: usize = 64;
/// Clients that stay connected. The one that was answered least recently makes way for the next.
const MOST_CLIENTS: usize = 16;

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    fn at(place: &Place) -> Result<Self> {
        match place {
            Place::Address(address) => {
                let cannot = || format!("cannot listen at {address}");
                let listener = TcpListener::bind(address).with_context(cannot)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Place::File(path) => {
                let cannot = || format!("cannot listen at {}", path.display());
                remove_stale(path);
                let listener = UnixListener::bind(path).with_context(cannot)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener))
            }
        }
    }

    fn accept(&self) -> io::Result<Client> {
        let client = match self {
            Self::Tcp(listener) => Client::Tcp(listener.accept()?.0),
            Self::Unix(listener) => Client::Unix(listener.accept()?.0),
        };
        set_socket_timeout(&client, Timeout::Recv, Some(PAUSE))?;
        set_socket_timeout(&client, Timeout::Send, Some(PATIENCE))?;
        Ok(client)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(client) => client.as_fd(),
            Self::Unix(client) => client.as_fd(),
        }
    }
}

impl Read for Client {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(client) => client.read(to),
            Self::Unix(client) => client.read(to),
        }
    }
}

impl Write for Client {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(client) => client.write(from),
            Self::Unix(client) => client.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Goes on until it is ended.
pub(super) fn serve(places: &[Place], metrics: &mut Metrics) -> Result<Infallible> {
    let listeners = places.iter().map(Listener::at);
    let listeners = listeners.collect::<Result<Vec<_>>>()?;
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let mut ready = wait(&listeners, &clients, metrics).into_iter();
        let mut is_next_ready = || ready.next().unwrap_or_default();
        let asked: Vec<_> = listeners.iter().filter(|_| is_next_ready()).collect();
        let (mut quiet, mut answered) = (Vec::new(), Vec::new());
        for mut client in clients {
            if !is_next_ready() {
                quiet.push(client);
            } else if answer(&mut client, metrics).unwrap_or(false) {
                answered.push(client);
            } // Whoever goes away early, or asks for something else, is not our failure.
        }
        quiet.append(&mut answered);
        clients = quiet;
        for listener in asked {
            let comes = listener.accept();
            let has_no_room = match &comes {
                Ok(_) => clients.len() == MOST_CLIENTS,
                Err(error) => is_out_of_descriptors(error),
            };
            if has_no_room && !clients.is_empty() {
                clients.remove(0);
            } else if has_no_room {
                sleep(PAUSE); // There is none to give back; it may be there later.
            }
            clients.extend(comes);
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(
        errno,
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
    )
}

/// Waits until somebody comes, or one of the clients asks; which of them are ready. If nobody does for a while, the
/// daemons are left: one may end once it has no clients.
fn wait(listeners: &[Listener], clients: &[Client], metrics: &mut Metrics) -> Vec<bool> {
    let listeners = listeners.iter().map(AsFd::as_fd);
    let all = listeners.chain(clients.iter().map(AsFd::as_fd));
    let mut waiting: Vec<_> = all
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    loop {
        let time = metrics.is_connected().then_some(&KEPT);
        match poll(&mut waiting, time) {
            Ok(0) => metrics.disconnect(),
            Ok(_) => return waiting.iter().map(|fd| !fd.revents().is_empty()).collect(),
            Err(_) => {} // A signal.
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

/// Answers a client's request; whether it may ask again.
fn answer(client: &mut (impl Read + Write), metrics: &mut Metrics) -> io::Result<bool> {
    let request = request(client)?;
    let (status, body) = match request.asks_for {
        Asked::Metrics => match metrics.text() {
            Ok(text) => ("200 OK", text),
            Err(error) => ("500 Internal Server Error", format!("{error:#}\n")),
        },
        Asked::Elsewhere => ("404 Not Found", "there is /metrics\n".to_owned()),
        Asked::Otherwise => ("405 Method Not Allowed", "there is GET\n".to_owned()),
    };
    let kind = match status {
        "200 OK" => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let length = body.len();
    let close = match request.goes_on {
        true => "",
        false => "Connection: close\r\n",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{close}\r\n"
    );
    client.write_all((head + &body).as_bytes())?;
    Ok(request.goes_on)
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Metrics,
    /// What is not there.
    Elsewhere,
    /// Something else than to read.
    Otherwise,
}

/// A request for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    asks_for: Asked,
    /// The next one may come by the same connection.
    goes_on: bool,
}

/// A client's request, up to the empty line that ends its head.
fn request(client: &mut impl Read) -> io::Result<Request> {
    let until = Instant::now() + PATIENCE - PAUSE;
    let mut bytes = Vec::new();
    let mut some = [0; 1024];
    loop {
        let got = client.read(&mut some)?;
        // Also of who sends a byte now and then.
        if got == 0 || bytes.len() + got > LONGEST || Instant::now() >= until {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.extend_from_slice(&some[..got]);
        if let Some(request) = parse(&bytes)? {
            return Ok(request);
        }
    }
}

/// The request that these bytes are; `None`: they are a part of one.
fn parse(bytes: &[u8]) -> io::Result<Option<Request>> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(bytes);
    let parsed = parsed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let httparse::Status::Complete(length) = parsed else {
        return Ok(None);
    };
    let is = |header: &httparse::Header<'_>, name| header.name.eq_ignore_ascii_case(name);
    let is_close = |word: &[u8]| word.trim_ascii().eq_ignore_ascii_case(b"close");
    let closes = |header: &httparse::Header<'_>| {
        is(header, "connection") && header.value.split(|byte| *byte == b',').any(is_close)
    };
    let has_body = |header: &httparse::Header<'_>| {
        is(header, "content-length") || is(header, "transfer-encoding")
    };
    // What is asked for more closely (`?`) changes nothing here.
    let path = request.path.and_then(|path| path.split('?').next());
    let asks_for = match (request.method, path) {
        (Some("GET"), Some("/metrics" | "/")) => Asked::Metrics,
        (Some("GET"), _) => Asked::Elsewhere,
        _ => Asked::Otherwise,
    };
    // What follows is not ours to read: a body, or a request before the last is answered.
    let is_alone = length == bytes.len() && asks_for != Asked::Otherwise;
    let ends = |header: &httparse::Header<'_>| closes(header) || has_body(header);
    let goes_on = is_alone && request.version == Some(1) && !request.headers.iter().any(ends);
    Ok(Some(Request { asks_for, goes_on }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is answered to a request.
    fn answered(request: &str) -> io::Result<String> {
        let (mut own, other) = UnixStream::pair()?;
        own.write_all(request.as_bytes())?;
        own.shutdown(std::net::Shutdown::Write)?;
        answer(&mut &other, &mut Metrics::new())?;
        drop(other);
        let mut text = String::new();
        own.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn requests_are_answered_or_refused() {
        let good = answered("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n"), "{good}");
        assert!(good.contains("\r\n\r\n# HELP shunt_daemon_up "), "{good}");
        let asked = parse(b"GET /metrics?name=x HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(asked.unwrap().asks_for, Asked::Metrics);
        let missing = answered("GET /none HTTP/1.1\r\n\r\n").unwrap();
        assert!(missing.starts_with("HTTP/1.1 404 "), "{missing}");
        let wrong = answered("POST /metrics HTTP/1.1\r\n\r\n").unwrap();
        assert!(wrong.starts_with("HTTP/1.1 405 "), "{wrong}");
        assert!(answered("GET /metrics").is_err());
        assert!(answered(&"x".repeat(LONGEST + 1)).is_err());
    }

    #[test]
    fn who_speaks_http_1_1_may_ask_again_unless_it_says_otherwise_or_too_much() {
        let goes_on = |bytes: &str| parse(bytes.as_bytes()).unwrap().unwrap().goes_on;
        assert!(goes_on("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(goes_on("GET /none HTTP/1.1\r\n\r\n"));
        assert!(!goes_on("GET / HTTP/1.0\r\n\r\n"));
        assert!(!goes_on("GET / HTTP/1.1\r\nconnection: Close\r\n\r\n"));
        assert!(!goes_on("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"));
        assert!(!goes_on("GET / HTTP/1.1\r\nConnection: te, close\r\n\r\n"));
        assert!(!goes_on("GET / HTTP/1.1\r\nContent-Length: 4\r\n\r\n"));
        assert!(!goes_on(
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        ));
        assert!(!goes_on("POST / HTTP/1.1\r\n\r\n"));
        assert_eq!(parse(b"GET / HTTP/1.1\r\nHost: x\r\n").unwrap(), None);
        assert!(parse(b"GET / HTTP/7\r\n").is_err());
    }

    #[test]
    fn clients_stay_connected_until_there_are_too_many() {
        let path = std::env::temp_dir().join(format!("shunt-served-{}", std::process::id()));
        let places = [Place::File(path.clone())];
        std::thread::spawn(move || serve(&places, &mut Metrics::new()));
        let connect = || loop {
            match UnixStream::connect(&path) {
                Ok(client) => return client,
                Err(_) => std::thread::yield_now(), // It does not listen yet.
            }
        };
        let ask = |client: &mut UnixStream| {
            client.write_all(b"GET /none HTTP/1.1\r\n\r\n").unwrap();
            let mut answer = [0; 4096];
            let length = client.read(&mut answer).unwrap();
            String::from_utf8_lossy(&answer[..length]).into_owned()
        };
        let mut first = connect();
        for _ in 0..3 {
            let answer = ask(&mut first);
            assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
            assert!(!answer.contains("Connection: close"), "{answer}");
        }
        // Who asks stays, and of those that are quiet the first makes way.
        let mut others: Vec<_> = (1..MOST_CLIENTS).map(|_| connect()).collect();
        // The one that came last, since all have come then.
        assert!(ask(others.last_mut().unwrap()).starts_with("HTTP/1.1 404 "));
        assert!(ask(&mut others[0]).starts_with("HTTP/1.1 404 "));
        assert!(ask(&mut first).starts_with("HTTP/1.1 404 "));
        let mut last = connect();
        assert!(ask(&mut last).starts_with("HTTP/1.1 404 "));
        assert!(ask(&mut first).starts_with("HTTP/1.1 404 "));
        assert!(ask(&mut others[0]).starts_with("HTTP/1.1 404 "));
        assert_eq!(others[1].read(&mut [0; 1]).unwrap(), 0);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn two_places_are_served_by_one() {
        let path = std::env::temp_dir().join(format!("shunt-both-{}", std::process::id()));
        // An address that no other process of these tests has.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, 64 | high, middle, low], 9464));
        let places = [Place::File(path.clone()), Place::Address(address)];
        std::thread::spawn(move || serve(&places, &mut Metrics::new()));
        fn ask(mut client: impl Read + Write) {
            client.write_all(b"GET /none HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        }
        // The address is listened at last.
        ask(loop {
            match TcpStream::connect(address) {
                Ok(client) => break client,
                Err(_) => std::thread::yield_now(),
            }
        });
        ask(UnixStream::connect(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(serve(&[Place::Address(address)], &mut Metrics::new()).is_err());
    }

    #[test]
    fn who_asks_byte_by_byte_is_given_up() {
        struct Slow;
        impl Read for Slow {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                sleep(PATIENCE / 4);
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
