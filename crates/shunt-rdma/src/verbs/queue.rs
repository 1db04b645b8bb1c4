//! A queue pair of a real NIC, with the memory of its receives.

use std::sync::Arc;

use super::abi::{AhAttr, Gid, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Sge, value};
use super::nic::{Opened, refused, refused_by};
use super::region::Pinned;
use crate::endpoint::{Endpoint, Layer};
use crate::immediate::SLOTS;
use crate::transport::{
    Access, NOTE_BYTES, Post, QueueId, RECEIVES, Refused, SENDS, Target, Write,
};

/// How short a write must be to be read as it is posted; devices that know less are not used.
const INLINE: u32 = NOTE_BYTES as u32;
/// 4.096 µs × 2^14 = 67 ms for an acknowledgement, …
const TIMEOUT: u8 = 14;
/// … and this many repetitions: half a second. (7 is endless on soft-RoCE.)
const RETRIES: u8 = 6;
/// The peer has granted what it has posted, so a receive that is missing is an error.
const NO_RECEIVE_RETRIES: u8 = 0;

/// Receives of a queue pair: cells of [`NOTE_BYTES`].
pub(super) struct Receives {
    qp: *mut Qp,
    cells: *mut u8,
    key: u32,
}

// SAFETY: used under the lock of the table that they are in.
unsafe impl Send for Receives {}

impl Receives {
    /// The note that has come to a cell.
    pub(super) fn note(&self, cell: u64, length: u32) -> [u8; NOTE_BYTES] {
        let cell = cell as usize % usize::from(RECEIVES);
        let mut note = [0; NOTE_BYTES];
        let n = (length as usize).min(NOTE_BYTES);
        // SAFETY: a cell of the memory that was mapped for all of them. The NIC has written it before it said so, and does not again
        // before it is posted anew.
        unsafe {
            let from = self.cells.add(cell * NOTE_BYTES);
            std::ptr::copy_nonoverlapping(from, note.as_mut_ptr(), n);
        }
        note
    }

    /// Posts a cell.
    pub(super) fn post(&self, cell: u64) -> Result<(), Refused> {
        let cell = cell % u64::from(RECEIVES);
        let mut sge = Sge {
            addr: self.cells as u64 + cell * NOTE_BYTES as u64,
            length: NOTE_BYTES as u32,
            lkey: self.key,
        };
        let mut request = RecvWr {
            wr_id: cell,
            next: std::ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair lives as long as its entry in the table; the library reads the request during the call only.
        let errno = unsafe {
            let post = (*(*self.qp).context).ops.post_recv;
            post(self.qp, &raw mut request, &raw mut bad)
        };
        refused_by("a receive", errno)
    }
}

/// A queue pair; ended when it is dropped.
pub struct Queue {
    opened: Arc<Opened>,
    qp: *mut Qp,
    number: u32,
    inline: u32,
    first: u32,
    secret: [u8; 16],
    /// Of the cells; given up after the queue pair.
    cells: Option<Pinned>,
    memory: *mut u8,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

const CELLS: usize = RECEIVES as usize * NOTE_BYTES;

impl Queue {
    /// In the state INIT, with all receives posted.
    pub(super) fn new(opened: &Arc<Opened>) -> Result<Self, Refused> {
        let mut random = [0; 20];
        // SAFETY: `random` has `random.len()` writable bytes.
        if unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) } != 20 {
            return Err(refused("a random number"));
        }
        let (secret, first) = random.split_first_chunk().expect("16 of 20 bytes");
        let first = u32::from_le_bytes(first.try_into().expect("4 of 20 bytes"));
        let memory = map_cells()?;
        let mut queue = Self {
            opened: Arc::clone(opened),
            qp: std::ptr::null_mut(),
            number: 0,
            inline: 0,
            first: first & 0x00ff_ffff,
            secret: *secret,
            cells: None,
            memory,
        };
        queue.create()?;
        queue.initialise()?;
        Ok(queue)
    }

    fn create(&mut self) -> Result<(), Refused> {
        let opened = &self.opened;
        let mut attributes = QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: opened.cq,
            recv_cq: opened.cq,
            srq: std::ptr::null_mut(),
            cap: QpCap {
                max_send_wr: u32::from(SENDS),
                max_recv_wr: u32::from(RECEIVES),
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: INLINE,
            },
            qp_type: value::QPT_RC,
            sq_sig_all: 0,
        };
        opened.make_room_for_queue()?;
        // SAFETY: the protection domain and the completion queue live as long as `opened`.
        self.qp = unsafe { (opened.library.create_qp)(opened.pd, &raw mut attributes) };
        if self.qp.is_null() {
            opened.queue_has_gone();
            return Err(refused("a queue pair"));
        }
        // SAFETY: made above.
        self.number = unsafe { (*self.qp).qp_num };
        self.inline = attributes.cap.max_inline_data;
        Ok(())
    }

    fn initialise(&mut self) -> Result<(), Refused> {
        let mut attributes = QpAttr {
            qp_state: value::QPS_INIT,
            port_num: self.opened.port,
            qp_access_flags: (value::ACCESS_LOCAL_WRITE | value::ACCESS_REMOTE_WRITE) as u32,
            ..QpAttr::default()
        };
        let which =
            value::QP_STATE | value::QP_PKEY_INDEX | value::QP_PORT | value::QP_ACCESS_FLAGS;
        self.modify(&mut attributes, which)?;
        // SAFETY: mapped for this queue alone, until it is dropped, after the region.
        let cells = unsafe { Pinned::new(&self.opened, self.memory, CELLS, Access::Target) }?;
        let receives = Receives {
            qp: self.qp,
            cells: self.memory,
            key: cells.local_key(),
        };
        self.cells = Some(cells);
        for cell in 0..u64::from(RECEIVES) {
            receives.post(cell)?;
        }
        self.opened.table().insert(self.number, receives);
        Ok(())
    }

    fn modify(&self, attributes: &mut QpAttr, which: i32) -> Result<(), Refused> {
        // SAFETY: the queue pair is this one's; the attributes are read during the call only.
        let errno = unsafe { (self.opened.library.modify_qp)(self.qp, attributes, which) };
        refused_by("a state of a queue pair", errno)
    }

    pub(super) fn id(&self) -> QueueId {
        QueueId(self.number)
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint {
            gid: self.opened.gid,
            lid: self.opened.lid,
            layer: self.opened.layer,
            mtu: self.opened.mtu,
            number: self.number,
            first: self.first,
            receives: RECEIVES,
            slots: SLOTS as u16,
            secret: self.secret,
        }
    }

    /// Ready to receive, then ready to send.
    pub(super) fn connect(&self, peer: &Endpoint) -> Result<(), Refused> {
        if peer.layer != self.opened.layer {
            return Err(Refused {
                what: "a peer on another kind of network",
                errno: libc::EPROTOTYPE,
            });
        }
        let mut attributes = QpAttr {
            qp_state: value::QPS_RTR,
            path_mtu: self.opened.mtu.min(peer.mtu).into(),
            dest_qp_num: peer.number,
            rq_psn: peer.first,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 1,
            ah_attr: AhAttr {
                dgid: Gid { raw: peer.gid },
                sgid_index: self.opened.gid_index,
                hop_limit: 64,
                dlid: peer.lid,
                is_global: u8::from(self.opened.layer == Layer::Ethernet),
                port_num: self.opened.port,
                ..AhAttr::default()
            },
            ..QpAttr::default()
        };
        let which = value::QP_STATE
            | value::QP_AV
            | value::QP_PATH_MTU
            | value::QP_DEST_QPN
            | value::QP_RQ_PSN
            | value::QP_MAX_DEST_RD_ATOMIC
            | value::QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, which)?;
        let mut attributes = QpAttr {
            qp_state: value::QPS_RTS,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: NO_RECEIVE_RETRIES,
            sq_psn: self.first,
            max_rd_atomic: 0,
            ..QpAttr::default()
        };
        let which = value::QP_STATE
            | value::QP_TIMEOUT
            | value::QP_RETRY_CNT
            | value::QP_RNR_RETRY
            | value::QP_SQ_PSN
            | value::QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, which)
    }

    /// Into the state ERR: everything that is posted comes back with a status.
    pub(super) fn end(&self) {
        let mut attributes = QpAttr {
            qp_state: value::QPS_ERR,
            ..QpAttr::default()
        };
        // One that is there already answers with an error.
        let _ = self.modify(&mut attributes, value::QP_STATE);
    }

    pub(super) fn post(&self, post: &Post<'_, Pinned>, tag: Option<u64>) -> Result<(), Refused> {
        match post {
            Post::Note(note) => {
                let sges = [
                    Sge {
                        addr: note.as_ptr() as u64,
                        length: note.len() as u32,
                        lkey: 0,
                    },
                    Sge::default(),
                ];
                let nowhere = Target { key: 0, address: 0 };
                self.post_send(value::WR_SEND, sges, 1, true, 0, nowhere, tag)
            }
            Post::Write(write) => self.post_write(write, tag),
        }
    }

    fn post_write(&self, write: &Write<'_, Pinned>, tag: Option<u64>) -> Result<(), Refused> {
        let region = write.region;
        let part = |offset: u32, length: u32| {
            // A bug here would send memory that is none of the ring.
            assert!(u64::from(offset) + u64::from(length) <= region.length() as u64);
            Sge {
                addr: region.address() + u64::from(offset),
                length,
                lkey: region.local_key(),
            }
        };
        let mut sges = [part(write.offset, write.length), Sge::default()];
        let mut count = i32::from(write.length > 0);
        let mut total = write.length;
        if let Some(trailer) = write.trailer {
            sges[count as usize] = part(trailer, 8);
            count += 1;
            total += 8;
        }
        self.post_send(
            value::WR_RDMA_WRITE_WITH_IMM,
            sges,
            count,
            total <= self.inline,
            write.immediate,
            write.target,
            tag,
        )
    }

    #[allow(clippy::too_many_arguments)] // The fields of one structure.
    fn post_send(
        &self,
        opcode: i32,
        mut sges: [Sge; 2],
        count: i32,
        inline: bool,
        immediate: u32,
        target: Target,
        tag: Option<u64>,
    ) -> Result<(), Refused> {
        let mut flags = 0;
        if inline {
            flags |= value::SEND_INLINE;
        }
        if tag.is_some() {
            flags |= value::SEND_SIGNALED;
        }
        let mut request = SendWr {
            wr_id: tag.unwrap_or(0),
            next: std::ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: count,
            opcode,
            send_flags: flags,
            imm_data: immediate.to_be(),
            remote_addr: target.address,
            rkey: target.key,
            rest: [0; 9],
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is this one's. The library reads the request, and bytes that are inline, during the call; other
        // bytes lie in registered memory.
        let errno = unsafe {
            let post = (*(*self.qp).context).ops.post_send;
            post(self.qp, &raw mut request, &raw mut bad)
        };
        refused_by("a post", errno)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // First, so that nobody posts a receive to what is gone.
        self.opened.table().remove(&self.number);
        if !self.qp.is_null() {
            // SAFETY: made by `create_qp`, destroyed once.
            unsafe { (self.opened.library.destroy_qp)(self.qp) };
            self.opened.queue_has_gone();
        }
        drop(self.cells.take());
        // SAFETY: mapped by `map_cells`; neither the NIC nor the table knows it any more.
        unsafe { libc::munmap(self.memory.cast(), CELLS) };
    }
}

fn map_cells() -> Result<*mut u8, Refused> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory at an address of the kernel's choice.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), CELLS, prot, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(refused("memory for receives"));
    }
    Ok(memory.cast())
}
