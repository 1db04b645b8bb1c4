//! What the daemon holds for one client.

use std::cell::OnceCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::slice::from_ref;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use shunt_abi::board::NO_MAIL;
use shunt_abi::layout::{FIRST_SLOTS, MOST_SLOTS, SPARES};
use shunt_abi::message::{Kind, Message, comm_text};

use crate::account::Account;
use crate::board::Board;
use crate::config::Limits;
use crate::foreign::{Foreign, Lane};
use crate::profile::Profile;
use crate::quota::{Charge, Tenant};
use crate::reached::Reached;
use crate::{cores, process, wire};

/// Memory for a link to come.
#[derive(Debug)]
pub(crate) struct Spare {
    /// The client's own number for it.
    pub(crate) arena: u32,
    /// The memfd, checked.
    pub(crate) file: Foreign,
    /// How many slots it has.
    pub(crate) slots: u32,
}

/// What goes with a message.
#[derive(Debug)]
pub(crate) enum Passed {
    /// The board of the client's network namespace.
    Board,
    /// The page of the cores.
    Cores(Rc<OwnedFd>),
    /// A datagram socket of the namespace between all.
    Between(OwnedFd),
    /// The memory that the peer writes.
    Arena(Foreign),
    /// The socket of a connection's other end.
    Socket(Foreign),
}

/// What of a client is unread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// Messages.
    pub(crate) unread: usize,
    /// A list of connections.
    pub(crate) list: bool,
}

/// The client does not read its messages, or its socket failed: it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreachable;

/// A process connected to the daemon.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its control socket.
    pub(crate) socket: Foreign,
    /// Closes what is its.
    pub(crate) lane: Arc<Lane>,
    /// Readable when the process has ended; also the key to its descriptors.
    pub(crate) pidfd: OwnedFd,
    /// Its process id when it connected.
    pub(crate) pid: u32,
    /// Its effective user when it connected.
    pub(crate) uid: u32,
    /// Its `comm`, from its Hello.
    pub(crate) comm: [u8; 16],
    /// Its descriptors could be looked at when one was last.
    pub(crate) is_open: bool,
    /// It has introduced itself.
    pub(crate) greeted: bool,
    /// Its network namespace (`SO_NETNS_COOKIE`) when it connected, …
    pub(crate) netns: u64,
    /// … and the board of that, …
    pub(crate) board: Rc<Board>,
    /// … in which it has this mail counter.
    pub(crate) mail: u32,
    /// The pages of the cores that it was given.
    pub(crate) cores: cores::Given,
    /// It has a socket by which it calls peers in other namespaces.
    pub(crate) may_call: bool,
    /// How many sockets it was given at which peers in other namespaces can call it.
    pub(crate) sockets: u32,
    /// Arenas in stock.
    pub(crate) spares: Vec<Spare>,
    /// How many of the smallest it is asked to keep there: two, once it has had a link with
    /// itself.
    pub(crate) stock: usize,
    /// How many slots those are to have that it was asked for and has not brought.
    pub(crate) asked: Vec<u32>,
    /// The most slots that it can make memory for, as far as is known.
    pub(crate) most_slots: u32,
    /// Its listeners: cookie → port.
    pub(crate) listeners: HashMap<u64, u16>,
    /// Where it was found that its listeners are reached.
    pub(crate) reached: Reached,
    /// What it counts.
    pub(crate) account: Option<Account>,
    /// See [`Self::profile`].
    profile: OnceCell<Profile>,
    /// See [`Self::tenant`].
    tenant: OnceCell<Tenant>,
    /// What it was charged with.
    pub(crate) charge: Charge,
    /// It is not read before its tenant may be heard again.
    pub(crate) is_put_off: bool,
    /// Messages that did not fit its socket.
    outbox: VecDeque<(Message, Option<Passed>)>,
    /// Rows that it asked for, sent as far as its socket takes them.
    pub(crate) rows: VecDeque<Message>,
    /// The number of them that it takes in one datagram.
    pub(crate) together: usize,
    /// What its user's share has been charged for it.
    pub(crate) counted: Counted,
    /// What we watch for at its socket.
    pub(crate) watched: EventFlags,
}

impl Client {
    /// A client that has just connected.
    pub(crate) fn new(
        socket: Foreign,
        lane: Arc<Lane>,
        pidfd: OwnedFd,
        (pid, uid): (u32, u32),
        (netns, board): (u64, Rc<Board>),
    ) -> Self {
        Self {
            socket,
            lane,
            pidfd,
            pid,
            uid,
            comm: [0; 16],
            is_open: false,
            greeted: false,
            netns,
            board,
            mail: NO_MAIL,
            cores: cores::Given::default(),
            may_call: false,
            sockets: 0,
            spares: Vec::new(),
            stock: 1,
            asked: Vec::new(),
            most_slots: MOST_SLOTS,
            listeners: HashMap::new(),
            reached: Reached::default(),
            account: None,
            profile: OnceCell::new(),
            tenant: OnceCell::new(),
            charge: Charge::default(),
            is_put_off: false,
            outbox: VecDeque::new(),
            rows: VecDeque::new(),
            together: 1,
            counted: Counted::default(),
            watched: EventFlags::IN | EventFlags::RDHUP,
        }
    }

    /// The user whom its new files and sockets belong to now (`proc_pid_status(5)`, `Uid`).
    pub(crate) fn user_now(&self) -> Option<u32> {
        if self.pid == 0 {
            return None; // It lives in a PID namespace that we cannot see.
        }
        process::status(self.pid).map(|status| status.owner)
    }

    /// What the kernel says of its process.
    pub(crate) fn profile(&self) -> &Profile {
        let look = || Profile::look(&self.socket, &self.pidfd, self.pid);
        self.profile.get_or_init(look)
    }

    /// Whom what it holds is charged to. Its container is looked for the first time only, and if these limits bound
    /// what one may have.
    pub(crate) fn tenant(&self, limits: &Limits) -> &Tenant {
        let container = || {
            let is_bounded = limits.container.is_any();
            is_bounded.then(|| self.profile().container.clone())
        };
        self.tenant.get_or_init(|| Tenant {
            user: self.uid,
            container: container().flatten(),
        })
    }

    /// For the log: which process. A name is whatever a program calls itself.
    pub(crate) fn label(&self) -> String {
        let name = comm_text(&self.comm);
        format!("{} ({})", self.pid, name.escape_debug())
    }

    /// Sends now, or keeps at most `limit` messages for later.
    pub(crate) fn post(
        &mut self,
        message: Message,
        fd: Option<Passed>,
        limit: usize,
    ) -> Result<(), Unreachable> {
        if self.outbox.is_empty() {
            match self.send(from_ref(&message), fd.as_ref()) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => {}
                Err(_) => return Err(Unreachable),
            }
        }
        if self.outbox.len() >= limit {
            return Err(Unreachable);
        }
        self.outbox.push_back((message, fd));
        Ok(())
    }

    /// Sends what waits, as far as it fits. Rows come last: nobody waits for them.
    pub(crate) fn flush(&mut self) -> Result<(), Unreachable> {
        while let Some((message, fd)) = self.outbox.pop_front() {
            match self.send(from_ref(&message), fd.as_ref()) {
                Ok(()) => {}
                Err(Errno::AGAIN) => {
                    self.outbox.push_front((message, fd));
                    return Ok(());
                }
                Err(_) => return Err(Unreachable),
            }
        }
        self.rows.make_contiguous();
        while !self.rows.is_empty() {
            let rows = self.rows.as_slices().0;
            let count = rows.len().min(self.together);
            match self.send(&rows[..count], None) {
                Ok(()) => drop(self.rows.drain(..count)),
                Err(Errno::AGAIN) => return Ok(()),
                // The system's sockets hold less (`net.core.wmem_default`).
                Err(Errno::MSGSIZE) if count > 1 => self.together = count / 2,
                Err(_) => return Err(Unreachable),
            }
        }
        Ok(())
    }

    /// How many messages it has not read; rows do not count.
    pub(crate) fn unread(&self) -> usize {
        self.outbox.len()
    }

    /// Whether something waits for room in the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty() || !self.rows.is_empty()
    }

    /// Asks the client for spares with `slots` slots, or with as many as it can make, until
    /// `wanted` of them are there or asked for.
    pub(crate) fn want_spares(
        &mut self,
        slots: u32,
        wanted: usize,
        limit: usize,
    ) -> Result<(), Unreachable> {
        let slots = slots.min(self.most_slots);
        let there = self.spares.iter().filter(|spare| spare.slots == slots);
        let asked = self.asked.iter().filter(|asked| **asked == slots);
        let missing = wanted.saturating_sub(there.count() + asked.count());
        for _ in 0..missing.min(SPARES.saturating_sub(self.spares.len() + self.asked.len())) {
            self.asked.push(slots);
            let mut need = Message::new(Kind::NeedSpare);
            need.slot = slots;
            self.post(need, None, limit)?;
        }
        Ok(())
    }

    /// The client was asked for a spare with `asked` slots, and has brought one with `brought` (0:
    /// none).
    pub(crate) fn note_brought(&mut self, asked: u32, brought: u32) {
        let Some(at) = self.asked.iter().position(|&slots| slots == asked) else {
            return;
        };
        self.asked.swap_remove(at);
        if brought == 0 {
            // It may be able to later.
            self.most_slots = self.most_slots.min((asked / 2).max(FIRST_SLOTS));
        } else if brought < asked {
            self.most_slots = brought;
        } else if asked == self.most_slots {
            self.most_slots = MOST_SLOTS.min(2 * asked);
        }
    }

    fn send(&self, messages: &[Message], fd: Option<&Passed>) -> Result<(), Errno> {
        let fd = fd.map(|passed| match passed {
            Passed::Board => self.board.file(),
            Passed::Cores(page) => page.as_fd(),
            Passed::Between(socket) => socket.as_fd(),
            Passed::Arena(file) | Passed::Socket(file) => file.as_fd(),
        });
        match wire::send_together(self.socket.as_fd(), messages, fd) {
            // Its process has ended. What it said before that is taken still, and then its end.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => return Err(error),
        }
        self.board.raise_mail(self.mail);
        Ok(())
    }
}
