//! Event loops over non-blocking connections, one for each readiness call.

use crate::connection::{Connection, Failure, Step};
use crate::random::Random;
use crate::system::checked;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// How a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    Blocking,
    Poll,
    Select,
    Level,
    Edge,
}

impl Mechanism {
    pub(crate) const ALL: [Self; 5] = [
        Self::Blocking,
        Self::Poll,
        Self::Select,
        Self::Level,
        Self::Edge,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Poll => "poll",
            Self::Select => "select",
            Self::Level => "level",
            Self::Edge => "edge",
        }
    }
}

/// Stands in the upper half of every registration's data: it must come back.
const MARK: u64 = 0xC0FF_EE11_0000_0000;

struct Entry {
    connection: Connection,
    readable: bool,
    writable: bool,
    registered: u32,
}

/// A set of connections driven by one mechanism.
pub(crate) struct Loop {
    mechanism: Mechanism,
    epoll: Option<OwnedFd>,
    entries: BTreeMap<RawFd, Entry>,
    listener: Option<RawFd>,
    random: Random,
}

/// What one turn brought.
#[derive(Default)]
pub(crate) struct Turn {
    pub(crate) incoming: bool,
    pub(crate) ended: Vec<(Connection, std::result::Result<(), Failure>)>,
}

impl Loop {
    pub(crate) fn new(
        mechanism: Mechanism,
        listener: Option<RawFd>,
        random: Random,
    ) -> Result<Self> {
        let mut epoll = None;
        if matches!(mechanism, Mechanism::Level | Mechanism::Edge) {
            // SAFETY: no pointers; the new descriptor is owned by nobody else.
            epoll = Some(unsafe {
                OwnedFd::from_raw_fd(checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?)
            });
        }
        let this = Self {
            mechanism,
            epoll,
            entries: BTreeMap::new(),
            listener,
            random,
        };
        if let Some(listener) = listener {
            this.control(libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN as u32)?;
        }
        Ok(this)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn add(&mut self, connection: Connection) -> Result<()> {
        let fd = connection.fd();
        let mut entry = Entry {
            connection,
            readable: false,
            writable: false,
            registered: 0,
        };
        if self.epoll.is_some() {
            entry.registered = self.interest(&entry.connection);
            self.control(libc::EPOLL_CTL_ADD, fd, entry.registered)?;
        }
        self.entries.insert(fd, entry);
        Ok(())
    }

    fn interest(&self, connection: &Connection) -> u32 {
        if self.mechanism == Mechanism::Edge {
            return (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        }
        let read = if connection.wants_read() {
            libc::EPOLLIN
        } else {
            0
        };
        let write = if connection.wants_write() {
            libc::EPOLLOUT
        } else {
            0
        };
        (read | write) as u32
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, events: u32) -> Result<()> {
        let Some(epoll) = &self.epoll else {
            return Ok(());
        };
        let mut event = libc::epoll_event {
            events,
            u64: MARK | u64::try_from(fd).unwrap_or(0),
        };
        // SAFETY: the event lives through the call.
        checked(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) })
            .map(|_| ())
    }

    /// Waits at most `timeout` milliseconds and moves what can be moved.
    pub(crate) fn turn(&mut self, timeout: libc::c_int) -> Result<Turn> {
        let edge = self.mechanism == Mechanism::Edge;
        let runnable = self.entries.values().any(|entry| edge && runnable(entry));
        let timeout = if runnable { 0 } else { timeout };
        let waited = match self.mechanism {
            Mechanism::Poll | Mechanism::Blocking => self.wait_poll(timeout),
            Mechanism::Select => self.wait_select(timeout),
            Mechanism::Level | Mechanism::Edge => self.wait_epoll(timeout),
        };
        let mut turn = Turn::default();
        match waited {
            Ok(incoming) => turn.incoming = incoming,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let fds: Vec<RawFd> = self
            .entries
            .iter()
            .filter(|(_, e)| e.readable || e.writable)
            .map(|(&fd, _)| fd)
            .collect();
        for fd in fds {
            let steps = if edge { 16 } else { 1 + self.random.below(4) };
            let Some(entry) = self.entries.get_mut(&fd) else {
                continue;
            };
            let outcome = drive(entry, steps);
            if !edge {
                (entry.readable, entry.writable) = (false, false);
            }
            if let Some(result) = outcome {
                // Closing removes it from the epoll set; half of the time we do it ourselves.
                if self.random.one_in(2) {
                    self.control(libc::EPOLL_CTL_DEL, fd, 0)?;
                }
                turn.ended.extend(
                    self.entries
                        .remove(&fd)
                        .map(|entry| (entry.connection, result)),
                );
            } else if self.mechanism == Mechanism::Level {
                self.update(fd)?;
            }
        }
        Ok(turn)
    }

    fn update(&mut self, fd: RawFd) -> Result<()> {
        let Some(entry) = self.entries.get(&fd) else {
            return Ok(());
        };
        let wanted = self.interest(&entry.connection);
        if wanted != entry.registered {
            self.control(libc::EPOLL_CTL_MOD, fd, wanted)?;
            if let Some(entry) = self.entries.get_mut(&fd) {
                entry.registered = wanted;
            }
        }
        Ok(())
    }

    fn mark(&mut self, fd: RawFd, readable: bool, writable: bool) {
        if let Some(entry) = self.entries.get_mut(&fd) {
            entry.readable |= readable;
            entry.writable |= writable;
        }
    }

    fn wait_poll(&mut self, timeout: libc::c_int) -> Result<bool> {
        let mut set: Vec<libc::pollfd> = Vec::with_capacity(self.entries.len() + 1);
        for (&fd, entry) in &self.entries {
            let read = if entry.connection.wants_read() {
                libc::POLLIN
            } else {
                0
            };
            let write = if entry.connection.wants_write() {
                libc::POLLOUT
            } else {
                0
            };
            set.push(libc::pollfd {
                fd,
                events: read | write,
                revents: 0,
            });
        }
        let connections = set.len();
        set.extend(self.listener.map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        }));
        // SAFETY: the array lives through the call and its length is right.
        checked(unsafe { libc::poll(set.as_mut_ptr(), set.len() as libc::nfds_t, timeout) })?;
        let bad = libc::POLLERR | libc::POLLHUP;
        for polled in &set[..connections] {
            assert!(
                polled.revents & libc::POLLNVAL == 0,
                "poll calls descriptor {} invalid",
                polled.fd
            );
            self.mark(
                polled.fd,
                polled.revents & (libc::POLLIN | bad) != 0,
                polled.revents & (libc::POLLOUT | bad) != 0,
            );
        }
        Ok(set[connections..].iter().any(|polled| polled.revents != 0))
    }

    fn wait_select(&mut self, timeout: libc::c_int) -> Result<bool> {
        // SAFETY: an all-zero fd_set is an empty one; FD_SET and FD_ISSET stay
        // inside it because descriptors are checked against FD_SETSIZE.
        unsafe {
            let mut read: libc::fd_set = std::mem::zeroed();
            let mut write: libc::fd_set = std::mem::zeroed();
            let mut highest = -1;
            for (&fd, entry) in &self.entries {
                assert!(
                    (0..libc::FD_SETSIZE as RawFd).contains(&fd),
                    "descriptor {fd} is too large for select"
                );
                if entry.connection.wants_read() {
                    libc::FD_SET(fd, &raw mut read);
                }
                if entry.connection.wants_write() {
                    libc::FD_SET(fd, &raw mut write);
                }
                highest = highest.max(fd);
            }
            if let Some(fd) = self.listener {
                libc::FD_SET(fd, &raw mut read);
                highest = highest.max(fd);
            }
            let mut time = libc::timeval {
                tv_sec: libc::time_t::from(timeout / 1000),
                tv_usec: libc::suseconds_t::from(timeout % 1000) * 1000,
            };
            let none = std::ptr::null_mut();
            checked(libc::select(
                highest + 1,
                &raw mut read,
                &raw mut write,
                none,
                &raw mut time,
            ))?;
            let fds: Vec<RawFd> = self.entries.keys().copied().collect();
            for fd in fds {
                self.mark(
                    fd,
                    libc::FD_ISSET(fd, &raw const read),
                    libc::FD_ISSET(fd, &raw const write),
                );
            }
            Ok(self
                .listener
                .is_some_and(|fd| libc::FD_ISSET(fd, &raw const read)))
        }
    }

    fn wait_epoll(&mut self, timeout: libc::c_int) -> Result<bool> {
        let Some(epoll) = &self.epoll else {
            return Ok(false);
        };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let size = 1 + self.random.below(events.len());
        // SAFETY: the array lives through the call and has at least `size` entries.
        let count = checked(unsafe {
            libc::epoll_wait(
                epoll.as_raw_fd(),
                events.as_mut_ptr(),
                libc::c_int::try_from(size).unwrap_or(1),
                timeout,
            )
        })?;
        let mut incoming = false;
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
            let (data, bits) = (event.u64, event.events.cast_signed());
            assert!(
                data & 0xFFFF_FFFF_0000_0000 == MARK,
                "epoll changed our data: {data:#x}"
            );
            let fd = RawFd::try_from(data & 0xFFFF_FFFF).unwrap_or(-1);
            if Some(fd) == self.listener {
                incoming = true;
                continue;
            }
            let bad = bits & (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) != 0;
            self.mark(
                fd,
                bad || bits & libc::EPOLLIN != 0,
                bad || bits & libc::EPOLLOUT != 0,
            );
        }
        Ok(incoming)
    }
}

/// Whether there is something to do without waiting.
fn runnable(entry: &Entry) -> bool {
    (entry.readable && entry.connection.wants_read())
        || (entry.writable && entry.connection.wants_write())
}

/// Up to `steps` calls; the result once the connection has come to its end.
fn drive(entry: &mut Entry, steps: usize) -> Option<std::result::Result<(), Failure>> {
    for _ in 0..steps {
        let connection = &mut entry.connection;
        if connection.connecting && !entry.writable {
            return None;
        }
        if entry.writable && connection.wants_write() {
            match connection.write() {
                Ok(Step::Moved) => {}
                Ok(Step::Blocked) => entry.writable = false,
                Err(failure) => return Some(Err(failure)),
            }
        }
        if entry.readable && connection.wants_read() {
            match connection.read(false) {
                Ok(Step::Moved) => {}
                Ok(Step::Blocked) => entry.readable = false,
                Err(failure) => return Some(Err(failure)),
            }
        }
        if connection.finished() || connection.leaves_now() {
            return Some(Ok(()));
        }
        if !runnable(entry) {
            return None;
        }
    }
    None
}
