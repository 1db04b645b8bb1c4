//! What is used of libibverbs (rdma-core), as `infiniband/verbs.h` declares it. The ABI is stable since `IBVERBS_1.1`.
//!
//! Sizes and offsets are asserted below for x86-64 and AArch64, and compared with the headers by a test where those are installed.

#![allow(dead_code)] // Fields that only the library reads, or that are there for their room.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`: only what comes before the name.
#[repr(C)]
pub(super) struct Device {
    ops: [*mut c_void; 2],
    pub(super) node_type: c_int,
    pub(super) transport_type: c_int,
}

/// `struct ibv_context`.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: Ops,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
    mutex: libc::pthread_mutex_t,
    abi_compat: *mut c_void,
}

/// `struct ibv_context_ops`: the verbs that never leave the process.
#[repr(C)]
pub(super) struct Ops {
    before: [*mut c_void; 11],
    pub(super) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    between: [*mut c_void; 12],
    pub(super) post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    behind: [*mut c_void; 5],
}

/// `struct ibv_pd`, opaque here.
#[repr(C)]
pub(super) struct Pd {
    opaque: [u8; 0],
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
    refcnt: c_int,
}

/// `struct ibv_cq`: only its beginning.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

/// `struct ibv_qp`: only its beginning.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    before: [*mut c_void; 5],
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_sge`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`; of its unions what an RDMA write uses.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    /// In network byte order.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) rest: [u64; 9],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In network byte order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// `struct ibv_port_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct PortAttr {
    pub(super) state: c_int,
    pub(super) max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
    /// A later library may know more fields.
    pub(super) room: [u64; 8],
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, with `struct ibv_global_route` in front.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct AhAttr {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `union ibv_gid`.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct Gid {
    pub(super) raw: [u8; 16],
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// Values of the headers' enumerations.
pub(super) mod value {
    use std::ffi::{c_int, c_uint};

    pub(crate) const TRANSPORT_IB: c_int = 0;
    pub(crate) const PORT_ACTIVE: c_int = 4;
    pub(crate) const LAYER_INFINIBAND: u8 = 1;
    pub(crate) const LAYER_ETHERNET: u8 = 2;
    pub(crate) const FORK_UNNEEDED: c_int = 2;
    pub(crate) const QPT_RC: c_int = 2;
    pub(crate) const QPS_INIT: c_int = 1;
    pub(crate) const QPS_RTR: c_int = 2;
    pub(crate) const QPS_RTS: c_int = 3;
    pub(crate) const QPS_ERR: c_int = 6;
    pub(crate) const QP_STATE: c_int = 1;
    pub(crate) const QP_ACCESS_FLAGS: c_int = 1 << 3;
    pub(crate) const QP_PKEY_INDEX: c_int = 1 << 4;
    pub(crate) const QP_PORT: c_int = 1 << 5;
    pub(crate) const QP_AV: c_int = 1 << 7;
    pub(crate) const QP_PATH_MTU: c_int = 1 << 8;
    pub(crate) const QP_TIMEOUT: c_int = 1 << 9;
    pub(crate) const QP_RETRY_CNT: c_int = 1 << 10;
    pub(crate) const QP_RNR_RETRY: c_int = 1 << 11;
    pub(crate) const QP_RQ_PSN: c_int = 1 << 12;
    pub(crate) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub(crate) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
    pub(crate) const QP_SQ_PSN: c_int = 1 << 16;
    pub(crate) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(crate) const QP_DEST_QPN: c_int = 1 << 20;
    pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
    pub(crate) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
    pub(crate) const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
    pub(crate) const WR_SEND: c_int = 2;
    pub(crate) const SEND_SIGNALED: c_uint = 1 << 1;
    pub(crate) const SEND_INLINE: c_uint = 1 << 3;
    pub(crate) const WC_SUCCESS: c_uint = 0;
    pub(crate) const WC_RECV: c_uint = 1 << 7;
    pub(crate) const WC_RECV_RDMA_WITH_IMM: c_uint = WC_RECV + 1;
}

/// Types of the functions that are looked up by name.
pub(super) type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut Device;
pub(super) type FreeDeviceList = unsafe extern "C" fn(*mut *mut Device);
pub(super) type GetDeviceName = unsafe extern "C" fn(*mut Device) -> *const c_char;
pub(super) type OpenDevice = unsafe extern "C" fn(*mut Device) -> *mut Context;
pub(super) type CloseDevice = unsafe extern "C" fn(*mut Context) -> c_int;
pub(super) type QueryPort = unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int;
pub(super) type AllocPd = unsafe extern "C" fn(*mut Context) -> *mut Pd;
pub(super) type DeallocPd = unsafe extern "C" fn(*mut Pd) -> c_int;
pub(super) type RegMr = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
pub(super) type DeregMr = unsafe extern "C" fn(*mut Mr) -> c_int;
pub(super) type CreateCompChannel = unsafe extern "C" fn(*mut Context) -> *mut CompChannel;
pub(super) type DestroyCompChannel = unsafe extern "C" fn(*mut CompChannel) -> c_int;
pub(super) type CreateCq =
    unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
pub(super) type DestroyCq = unsafe extern "C" fn(*mut Cq) -> c_int;
pub(super) type ResizeCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub(super) type GetCqEvent =
    unsafe extern "C" fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
pub(super) type AckCqEvents = unsafe extern "C" fn(*mut Cq, c_uint);
pub(super) type CreateQp = unsafe extern "C" fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
pub(super) type ModifyQp = unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
pub(super) type DestroyQp = unsafe extern "C" fn(*mut Qp) -> c_int;
pub(super) type IsForkInitialized = unsafe extern "C" fn() -> c_int;

/// As the headers say on machines of 64 bits.
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Context, ops) == 8 && size_of::<Ops>() == 32 * 8);
    assert!(offset_of!(Context, cmd_fd) == 264 && offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(Ops, poll_cq) == 88 && offset_of!(Ops, post_send) == 200);
    assert!(offset_of!(Qp, qp_num) == 52 && offset_of!(Mr, lkey) == 36);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, remote_addr) == 40);
    assert!(size_of::<RecvWr>() == 32 && size_of::<Wc>() == 48 && size_of::<Sge>() == 16);
    assert!(size_of::<QpInitAttr>() == 64 && size_of::<AhAttr>() == 32);
    assert!(size_of::<QpAttr>() == 144);
};
