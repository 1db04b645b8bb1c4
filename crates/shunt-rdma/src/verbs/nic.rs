//! A device, opened: its context, protection domain, completion queue and completion channel.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::abi::{CompChannel, Context, Cq, Pd, PortAttr, Wc, value};
use super::device::{self, Obstacle};
use super::library::Library;
use super::queue::{Queue, Receives};
use super::region::Pinned;
use crate::endpoint::{Endpoint, Layer};
use crate::transport::{
    Access, BATCH, Completion, Post, QueueId, RECEIVES, Refused, SENDS, Transport,
};

/// Completions that one queue pair can have at once: each of its posts, when it fails.
const COMPLETIONS: u32 = RECEIVES as u32 + SENDS as u32;
/// Queue pairs that the completion queue has room for at the beginning; it doubles.
const FIRST_QUEUES: u32 = 4;

/// A device of this process; see [`Transport`].
pub struct Verbs {
    opened: Arc<Opened>,
}

/// What lives as long as the last queue pair or region.
pub(super) struct Opened {
    pub(super) library: &'static Library,
    context: *mut Context,
    pub(super) pd: *mut Pd,
    channel: *mut CompChannel,
    pub(super) cq: *mut Cq,
    name: String,
    pub(super) port: u8,
    pub(super) layer: Layer,
    pub(super) lid: u16,
    pub(super) mtu: u8,
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u8,
    /// Receives by the number of their queue pair.
    receives: Mutex<HashMap<u32, Receives>>,
    queues: AtomicU32,
    /// Queue pairs that the completion queue has room for.
    room: AtomicU32,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for Opened {}
// SAFETY: as above; what changes is atomic or behind a lock.
unsafe impl Sync for Opened {}

impl Verbs {
    /// Opens a device by its name, or the first that will do, and its first active port. `above`: the descriptors that this opens
    /// get numbers from there on (0: any).
    ///
    /// # Errors
    /// [`Obstacle`].
    pub fn open(name: Option<&str>, above: RawFd) -> Result<Self, Obstacle> {
        let (library, name, context) = device::open(name)?;
        let mut opened = Opened {
            library,
            context,
            pd: std::ptr::null_mut(),
            channel: std::ptr::null_mut(),
            cq: std::ptr::null_mut(),
            name,
            port: 1,
            layer: Layer::Ethernet,
            lid: 0,
            mtu: 1,
            gid: [0; 16],
            gid_index: 0,
            receives: Mutex::new(HashMap::new()),
            queues: AtomicU32::new(0),
            room: AtomicU32::new(FIRST_QUEUES),
        };
        opened.know_port()?;
        opened.create().ok_or(Obstacle::Closed)?;
        if above > 0 {
            opened.raise(above).ok_or(Obstacle::Closed)?;
        }
        Ok(Self {
            opened: Arc::new(opened),
        })
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.opened.name
    }

    /// Its descriptors: of the context, of asynchronous events, of the completion channel.
    #[must_use]
    pub fn descriptors(&self) -> [RawFd; 3] {
        // SAFETY: what they point to lives as long as `opened`.
        self.opened.numbers().map(|number| unsafe { *number })
    }

    /// Gives up the number `wanted`, if that is one of its [descriptors](Self::descriptors): the program is about to put something else there.
    /// Returns the number that this one has instead; `None`: there is no other number, or it is none of these.
    ///
    /// No other thread is in a call of this device's.
    pub fn make_way(&mut self, wanted: RawFd) -> Option<RawFd> {
        let mut numbers = self.opened.numbers().into_iter();
        // SAFETY: what it points to lives as long as `opened`, and no other thread looks at it.
        let number = numbers.find(|&number| unsafe { *number } == wanted)?;
        // SAFETY: as above. The number may still be in use: it is the caller's who wants it.
        unsafe {
            let copies = [wanted + 1, 0].into_iter();
            let mut copies = copies.map(|from| libc::fcntl(wanted, libc::F_DUPFD_CLOEXEC, from));
            let copy = copies.find(|&copy| copy >= 0)?;
            *number = copy;
            Some(copy)
        }
    }
}

impl Opened {
    fn know_port(&mut self) -> Result<(), Obstacle> {
        let mut attributes = PortAttr::default();
        let query = self.library.query_port;
        // SAFETY: the context is open; the structure is writable, and larger than any version's.
        let status = unsafe { query(self.context, self.port, &raw mut attributes) };
        if status != 0 || attributes.state != value::PORT_ACTIVE {
            return Err(Obstacle::PortDown);
        }
        self.layer = match attributes.link_layer {
            value::LAYER_ETHERNET => Layer::Ethernet,
            _ => Layer::InfiniBand,
        };
        self.lid = attributes.lid;
        self.mtu = attributes.active_mtu as u8;
        let address = device::gid(&self.name, self.port, attributes.link_layer);
        (self.gid_index, self.gid) = address.ok_or(Obstacle::NoAddress)?;
        Ok(())
    }

    fn create(&mut self) -> Option<()> {
        let l = self.library;
        // SAFETY: the context is open; each object is made of those before it.
        unsafe {
            self.pd = (l.alloc_pd)(self.context);
            self.channel = (l.create_comp_channel)(self.context);
            if self.pd.is_null() || self.channel.is_null() {
                return None;
            }
            let fd = (*self.channel).fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            let entries = (FIRST_QUEUES * COMPLETIONS) as i32;
            self.cq = (l.create_cq)(self.context, entries, std::ptr::null_mut(), self.channel, 0);
        }
        (!self.cq.is_null()).then_some(())
    }

    /// Moves the descriptors to higher numbers. The kernel knows the files, and the library reads these fields at each call.
    fn raise(&mut self, above: RawFd) -> Option<()> {
        for number in self.numbers() {
            // SAFETY: what it points to is open, and no other thread knows it yet. The old number is the library's, which has the new one from then on.
            unsafe {
                let copy = libc::fcntl(*number, libc::F_DUPFD_CLOEXEC, above);
                if copy < 0 {
                    return None;
                }
                libc::close(*number);
                *number = copy;
            }
        }
        Some(())
    }

    /// Where the library has its descriptors' numbers: of the context, of asynchronous events, of the completion channel.
    fn numbers(&self) -> [*mut RawFd; 3] {
        // SAFETY: both are open as long as this.
        unsafe {
            [
                &raw mut (*self.context).cmd_fd,
                &raw mut (*self.context).async_fd,
                &raw mut (*self.channel).fd,
            ]
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, HashMap<u32, Receives>> {
        self.receives
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes the completion queue large enough for one queue pair more.
    pub(super) fn make_room_for_queue(&self) -> Result<(), Refused> {
        // Under the lock, so that two threads do not both find room for one.
        let _table = self.table();
        let needed = self.queues.load(Ordering::Relaxed) + 1;
        let room = self.room.load(Ordering::Relaxed);
        if needed > room {
            let entries = (2 * room * COMPLETIONS) as i32;
            // SAFETY: the completion queue lives as long as this.
            let errno = unsafe { (self.library.resize_cq)(self.cq, entries) };
            refused_by("a larger completion queue", errno)?;
            self.room.store(2 * room, Ordering::Relaxed);
        }
        self.queues.store(needed, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn queue_has_gone(&self) {
        self.queues.fetch_sub(1, Ordering::Relaxed);
    }

    fn take(&self, found: &mut [Wc; BATCH]) -> Result<usize, Refused> {
        // SAFETY: the completion queue is open, and `found` has `BATCH` writable entries.
        let count = unsafe {
            let poll = (*self.context).ops.poll_cq;
            poll(self.cq, BATCH as i32, found.as_mut_ptr())
        };
        usize::try_from(count).map_err(|_| Refused {
            what: "a look at completions",
            errno: libc::EIO,
        })
    }

    /// What a completion says; `None`: it is of a queue pair that has been given up.
    fn read(wc: &Wc, table: &HashMap<u32, Receives>) -> Option<Completion> {
        let queue = QueueId(wc.qp_num);
        let receives = table.get(&wc.qp_num)?;
        if wc.status != value::WC_SUCCESS {
            return Some(Completion::Failed {
                queue,
                status: wc.status,
            });
        }
        if wc.opcode & value::WC_RECV == 0 {
            return Some(Completion::Sent {
                queue,
                tag: wc.wr_id,
            });
        }
        let completion = if wc.opcode == value::WC_RECV_RDMA_WITH_IMM {
            Completion::Written {
                queue,
                immediate: u32::from_be(wc.imm_data),
                length: wc.byte_len,
            }
        } else {
            Completion::Note {
                queue,
                bytes: receives.note(wc.wr_id, wc.byte_len),
                length: wc.byte_len,
            }
        };
        // It is refused where the queue pair has failed meanwhile, which further completions say.
        let _ = receives.post(wc.wr_id);
        Some(completion)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let l = self.library;
        // SAFETY: each was made by the library, and what was made of it is gone: queue pairs and regions hold this.
        unsafe {
            if !self.cq.is_null() {
                (l.destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (l.destroy_comp_channel)(self.channel);
            }
            if !self.pd.is_null() {
                (l.dealloc_pd)(self.pd);
            }
            (l.close_device)(self.context);
        }
    }
}

impl Transport for Verbs {
    type Region = Pinned;
    type Queue = Queue;

    unsafe fn register(
        &self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Pinned, Refused> {
        // SAFETY: the caller's promise.
        unsafe { Pinned::new(&self.opened, at, bytes, access) }
    }

    fn queue(&self) -> Result<Queue, Refused> {
        Queue::new(&self.opened)
    }

    fn id(&self, queue: &Queue) -> QueueId {
        queue.id()
    }

    fn endpoint(&self, queue: &Queue) -> Endpoint {
        queue.endpoint()
    }

    fn connect(&self, queue: &Queue, peer: &Endpoint) -> Result<(), Refused> {
        queue.connect(peer)
    }

    fn end(&self, queue: &Queue) {
        queue.end();
    }

    fn post(
        &self,
        queue: &Queue,
        post: &Post<'_, Pinned>,
        tag: Option<u64>,
    ) -> Result<(), Refused> {
        queue.post(post, tag)
    }

    fn poll(&self, into: &mut [Completion; BATCH]) -> Result<usize, Refused> {
        let table = self.opened.table();
        loop {
            let mut found = [Wc::default(); BATCH];
            let count = self.opened.take(&mut found)?;
            let mut n = 0;
            let known = found[..count]
                .iter()
                .filter_map(|wc| Opened::read(wc, &table));
            for (place, completion) in into.iter_mut().zip(known) {
                *place = completion;
                n += 1;
            }
            // Those of queue pairs that have been given up are nothing; there may be others behind them.
            if n > 0 || count == 0 {
                return Ok(n);
            }
        }
    }

    fn arm(&self) -> Result<(), Refused> {
        let opened = &*self.opened;
        // SAFETY: the completion queue lives as long as this.
        let errno = unsafe {
            let request = (*opened.context).ops.req_notify_cq;
            request(opened.cq, 0)
        };
        refused_by("an event for the next completion", errno)
    }

    fn events(&self) -> RawFd {
        self.descriptors()[2]
    }

    fn take_events(&self) {
        let opened = &*self.opened;
        let mut taken = 0;
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both places are writable; the channel's descriptor does not block.
        while unsafe {
            (opened.library.get_cq_event)(opened.channel, &raw mut cq, &raw mut context)
        } == 0
        {
            taken += 1;
        }
        // SAFETY: `taken` events of this queue have been taken, and none of them is acknowledged yet.
        unsafe { (opened.library.ack_cq_events)(opened.cq, taken) };
    }
}

/// By `errno`.
pub(super) fn refused(what: &'static str) -> Refused {
    let errno = std::io::Error::last_os_error().raw_os_error();
    Refused {
        what,
        errno: errno.unwrap_or(0),
    }
}

/// By what a verb has returned: 0, an error number, or -1 and `errno`.
pub(super) fn refused_by(what: &'static str, returned: i32) -> Result<(), Refused> {
    match returned {
        0 => Ok(()),
        ..0 => Err(refused(what)),
        errno => Err(Refused { what, errno }),
    }
}
