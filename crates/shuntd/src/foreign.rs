//! Descriptors that a client made or filled.
//!
//! Closing one may take as long as its maker likes: a socket that lingers
//! (`SO_LINGER`), a file whose file system is a program of his, or a control
//! socket in whose queue such things wait. So the daemon's thread never closes
//! one: each user has a [`Lane`], whose threads do. One that is stuck delays
//! nobody but its user. They also write the lines of processes that were killed, and send by sockets
//! whose holder may keep them locked.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendFlags, sockopt};
use rustix::process::{Gid, Resource, Uid, geteuid, getrlimit};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::account::LastLine;
use crate::resend::Resend;

/// Threads of one user's lane at most.
const THREADS: usize = 4;
/// Descriptors that wait in a lane before its user's clients may add no more;
/// a quarter of what the process may hold, within these bounds.
const WAITING: (u64, u64) = (64, 4096);
/// Sends that wait in a lane: others than its user may ask for them.
const RESENDS: usize = 16;
/// What a thread acts with that only closes: `nogroup` by custom.
const NOBODYS_GROUP: u32 = 65534;
/// A thread without work ends after this time.
const IDLE: Duration = Duration::from_secs(10);

/// A descriptor that its user's lane closes.
#[derive(Debug)]
pub(crate) struct Foreign {
    /// Taken by `drop` only.
    fd: Option<OwnedFd>,
    lane: Arc<Lane>,
}

impl Foreign {
    /// From now on the lane's to close.
    pub(crate) fn new(fd: OwnedFd, lane: &Arc<Lane>) -> Self {
        Self {
            fd: Some(fd),
            lane: Arc::clone(lane),
        }
    }
}

impl Foreign {
    /// For what a thread of the lane is to do with it, and close it then.
    pub(crate) fn hand_over(mut self) -> OwnedFd {
        self.fd.take().expect("only drop takes it, and this")
    }

    /// Closes it at once if it is a socket and that can delay nobody but the daemon's own user: while
    /// it waits in the lane, the program's own `close` does not reach the peer.
    pub(crate) fn close_now(mut self) {
        if self.lane.is_ours && sockopt::socket_linger(&self) == Ok(None) {
            drop(self.fd.take());
        }
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("only drop takes it").as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.lane.push(Work::Close(fd));
        }
    }
}

/// What a lane's threads do.
#[derive(Debug)]
enum Work {
    Close(OwnedFd),
    Write(LastLine),
    Resend(Resend),
    Byte(OwnedFd),
}

/// Closes one user's descriptors, and writes the last lines of his processes.
#[derive(Debug)]
pub(crate) struct Lane {
    state: Mutex<State>,
    work: Condvar,
    room: Arc<Room>,
    /// See [`WAITING`].
    limit: usize,
    uid: u32,
    /// The daemon's own user.
    own: Uid,
    /// Its user is the daemon's, who could as well stop it.
    is_ours: bool,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Work>,
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
}

impl Lane {
    /// Too many descriptors wait: its user's clients close slower than they open.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().queue.len() > self.limit
    }

    /// Writes a process's last line, however long its file takes for that.
    pub(crate) fn write(self: &Arc<Self>, line: LastLine) {
        self.push(Work::Write(line));
    }

    /// Sends by a socket of its user's; `false`: too much waits for that already.
    pub(crate) fn resend(self: &Arc<Self>, resend: Resend) -> bool {
        let is_resend = |work: &&Work| matches!(work, Work::Resend(_));
        let may = self.lock().queue.iter().filter(is_resend).count() < RESENDS;
        if may {
            self.push(Work::Resend(resend));
        }
        may
    }

    /// Sends a byte by a socket of its user's, and closes it.
    pub(crate) fn send_byte(self: &Arc<Self>, socket: Foreign) {
        self.push(Work::Byte(socket.hand_over()));
    }

    fn push(self: &Arc<Self>, work: Work) {
        let mut state = self.lock();
        state.queue.push_back(work);
        if state.queue.len() > state.idle && state.threads < THREADS {
            let lane = Arc::clone(self);
            let thread = std::thread::Builder::new().name("shuntd-close".to_owned());
            // Without a thread the descriptor waits for the next push.
            if thread.spawn(move || lane.run()).is_ok() {
                state.threads += 1;
            }
        }
        drop(state);
        self.work.notify_one();
    }

    /// One thread's life.
    fn run(&self) {
        if !self.is_ours {
            self.act(NOBODYS_GROUP);
        }
        let mut state = self.lock();
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                match work {
                    Work::Close(fd) => drop(fd),
                    // What it writes must be no more than its user could.
                    Work::Write(line) if self.is_ours || self.act(line.group) => line.write(),
                    Work::Write(line) => drop(line),
                    Work::Resend(resend) => resend.send(),
                    Work::Byte(socket) => {
                        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                        let _ = rustix::net::send(socket, &[0], flags);
                    }
                }
                self.room.made();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (woken, waited) = self
                .work
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// This thread acts with the rights of the lane's user from now on, as a member of this
    /// group and of no other; `false`: it cannot.
    fn act(&self, group: u32) -> bool {
        let (user, group) = (Uid::from_raw(self.uid), Gid::from_raw(group));
        // Who acts as the user already may not change groups.
        set_thread_res_uid(None, self.own, None).is_ok()
            && set_thread_groups(&[]).is_ok()
            && set_thread_res_gid(None, group, None).is_ok()
            && set_thread_res_uid(None, user, None).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the daemon that a descriptor has become free.
#[derive(Debug)]
pub(crate) struct Room {
    wanted: AtomicBool,
    bell: OwnedFd,
}

impl Room {
    /// The next closing rings the bell, once.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }

    /// Readable after it rang.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes the bell silent again.
    pub(crate) fn heard(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8][..]);
    }

    fn made(&self) {
        if self.wanted.load(Ordering::SeqCst) && self.wanted.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// The lanes of all users.
#[derive(Debug)]
pub(crate) struct Lanes {
    of: HashMap<u32, Arc<Lane>>,
    pub(crate) room: Arc<Room>,
    limit: usize,
}

impl Lanes {
    /// No lanes yet.
    pub(crate) fn new() -> std::io::Result<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let room = Room {
            wanted: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        Ok(Self {
            of: HashMap::new(),
            room: Arc::new(room),
            limit: (descriptors / 4).clamp(WAITING.0, WAITING.1) as usize,
        })
    }

    /// A user's lane, made if there is none.
    pub(crate) fn of(&mut self, uid: u32) -> Arc<Lane> {
        if let Some(lane) = self.of.get(&uid) {
            return Arc::clone(lane);
        }
        // Those of users who have left: their threads and clients hold one each.
        self.of
            .retain(|_, lane| Arc::strong_count(lane) > 1 || !lane.lock().queue.is_empty());
        let own = geteuid();
        let lane = Arc::new(Lane {
            state: Mutex::default(),
            work: Condvar::new(),
            room: Arc::clone(&self.room),
            uid,
            own,
            is_ours: uid == own.as_raw(),
            limit: self.limit,
        });
        self.of.insert(uid, Arc::clone(&lane));
        lane
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// The far end of a socket that a lane's thread closes until this goes, ten minutes at most.
    fn slow_to_close(lane: &Arc<Lane>) -> TcpStream {
        let (near, far) = connection();
        // More than the far end's kernel takes, whenever it looks.
        sockopt::set_socket_send_buffer_size(&near, 1 << 20).unwrap();
        sockopt::set_socket_recv_buffer_size(&far, 1).unwrap();
        near.set_nonblocking(true).unwrap();
        while (&near).write(&[0; 1 << 16]).is_ok() {}
        sockopt::set_socket_linger(&near, Some(Duration::from_secs(600))).unwrap();
        drop(Foreign::new(near.into(), lane));
        far
    }

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Something to send, and the end at which it comes.
    fn resend(lane: &Arc<Lane>) -> (Resend, TcpStream) {
        let bytes = memfd_create("bytes", MemfdFlags::ALLOW_SEALING).unwrap();
        assert_eq!(rustix::io::write(&bytes, b"late"), Ok(4));
        let ((near, far), (answer, _)) = (connection(), connection());
        let parts = [near.into(), bytes, answer.into()];
        let [near, bytes, answer] = parts.map(|fd| Foreign::new(fd, lane));
        (Resend::new(0, near, bytes, answer).unwrap(), far)
    }

    #[test]
    fn who_keeps_all_threads_busy_may_ask_for_few_sends_more_and_keeps_nobody_else_waiting() {
        let mut lanes = Lanes::new().unwrap();
        let lane = lanes.of(geteuid().as_raw());
        let slow: Vec<_> = (0..THREADS).map(|_| slow_to_close(&lane)).collect();
        let mut asked = Vec::new();
        let is_one_more_taken = |asked: &mut Vec<_>| {
            let (resend, far) = resend(&lane);
            asked.push(far);
            lane.resend(resend)
        };
        while asked.len() < RESENDS {
            assert!(is_one_more_taken(&mut asked), "{} wait", asked.len());
        }
        assert!(!is_one_more_taken(&mut asked), "too many wait");
        let (near, mut far) = connection();
        drop(Foreign::new(near.into(), &lanes.of(geteuid().as_raw() + 1)));
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        drop(slow);
        for mut far in asked.into_iter().take(RESENDS) {
            let mut got = [0; 4];
            far.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"late");
        }
    }
}
