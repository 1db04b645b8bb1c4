//! The structures of `abi` are those of the headers, where these are installed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

use super::abi::*;

/// What C calls it, and what we say it is.
type Fact = (&'static str, usize);

macro_rules! at {
    ($c:literal, $type:ty, $field:ident) => {
        (
            concat!("offsetof(struct ", $c, ", ", stringify!($field), ")"),
            offset_of!($type, $field),
        )
    };
}

macro_rules! size {
    ($c:literal, $type:ty) => {
        (concat!("sizeof(struct ", $c, ")"), size_of::<$type>())
    };
}

fn layouts() -> Vec<Fact> {
    vec![
        at!("ibv_device", Device, node_type),
        at!("ibv_device", Device, transport_type),
        at!("ibv_context", Context, device),
        at!("ibv_context", Context, ops),
        at!("ibv_context", Context, cmd_fd),
        at!("ibv_context", Context, async_fd),
        at!("ibv_context", Context, num_comp_vectors),
        size!("ibv_context", Context),
        at!("ibv_context_ops", Ops, poll_cq),
        at!("ibv_context_ops", Ops, req_notify_cq),
        at!("ibv_context_ops", Ops, post_send),
        at!("ibv_context_ops", Ops, post_recv),
        size!("ibv_context_ops", Ops),
        at!("ibv_comp_channel", CompChannel, context),
        at!("ibv_comp_channel", CompChannel, fd),
        size!("ibv_comp_channel", CompChannel),
        at!("ibv_cq", Cq, context),
        at!("ibv_qp", Qp, context),
        at!("ibv_qp", Qp, qp_num),
        at!("ibv_mr", Mr, addr),
        at!("ibv_mr", Mr, length),
        at!("ibv_mr", Mr, lkey),
        at!("ibv_mr", Mr, rkey),
        size!("ibv_mr", Mr),
        at!("ibv_sge", Sge, addr),
        at!("ibv_sge", Sge, length),
        at!("ibv_sge", Sge, lkey),
        size!("ibv_sge", Sge),
        at!("ibv_send_wr", SendWr, sg_list),
        at!("ibv_send_wr", SendWr, num_sge),
        at!("ibv_send_wr", SendWr, opcode),
        at!("ibv_send_wr", SendWr, send_flags),
        at!("ibv_send_wr", SendWr, imm_data),
        (
            "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)",
            offset_of!(SendWr, remote_addr),
        ),
        (
            "offsetof(struct ibv_send_wr, wr.rdma.rkey)",
            offset_of!(SendWr, rkey),
        ),
        size!("ibv_send_wr", SendWr),
        at!("ibv_recv_wr", RecvWr, sg_list),
        at!("ibv_recv_wr", RecvWr, num_sge),
        size!("ibv_recv_wr", RecvWr),
        at!("ibv_wc", Wc, status),
        at!("ibv_wc", Wc, opcode),
        at!("ibv_wc", Wc, byte_len),
        at!("ibv_wc", Wc, imm_data),
        at!("ibv_wc", Wc, qp_num),
        size!("ibv_wc", Wc),
        at!("ibv_port_attr", PortAttr, state),
        at!("ibv_port_attr", PortAttr, active_mtu),
        at!("ibv_port_attr", PortAttr, gid_tbl_len),
        at!("ibv_port_attr", PortAttr, lid),
        at!("ibv_port_attr", PortAttr, link_layer),
        at!("ibv_qp_init_attr", QpInitAttr, send_cq),
        at!("ibv_qp_init_attr", QpInitAttr, recv_cq),
        at!("ibv_qp_init_attr", QpInitAttr, cap),
        at!("ibv_qp_init_attr", QpInitAttr, qp_type),
        at!("ibv_qp_init_attr", QpInitAttr, sq_sig_all),
        size!("ibv_qp_init_attr", QpInitAttr),
        size!("ibv_qp_cap", QpCap),
        (
            "offsetof(struct ibv_ah_attr, grh.sgid_index)",
            offset_of!(AhAttr, sgid_index),
        ),
        (
            "offsetof(struct ibv_ah_attr, grh.hop_limit)",
            offset_of!(AhAttr, hop_limit),
        ),
        (
            "offsetof(struct ibv_ah_attr, grh.traffic_class)",
            offset_of!(AhAttr, traffic_class),
        ),
        at!("ibv_ah_attr", AhAttr, dlid),
        at!("ibv_ah_attr", AhAttr, is_global),
        at!("ibv_ah_attr", AhAttr, port_num),
        size!("ibv_ah_attr", AhAttr),
        at!("ibv_qp_attr", QpAttr, path_mtu),
        at!("ibv_qp_attr", QpAttr, rq_psn),
        at!("ibv_qp_attr", QpAttr, sq_psn),
        at!("ibv_qp_attr", QpAttr, dest_qp_num),
        at!("ibv_qp_attr", QpAttr, qp_access_flags),
        at!("ibv_qp_attr", QpAttr, ah_attr),
        at!("ibv_qp_attr", QpAttr, max_rd_atomic),
        at!("ibv_qp_attr", QpAttr, max_dest_rd_atomic),
        at!("ibv_qp_attr", QpAttr, min_rnr_timer),
        at!("ibv_qp_attr", QpAttr, port_num),
        at!("ibv_qp_attr", QpAttr, timeout),
        at!("ibv_qp_attr", QpAttr, retry_cnt),
        at!("ibv_qp_attr", QpAttr, rnr_retry),
        size!("ibv_qp_attr", QpAttr),
    ]
}

fn values() -> Vec<Fact> {
    let signed: [(&str, i32); 29] = [
        ("IBV_TRANSPORT_IB", value::TRANSPORT_IB),
        ("IBV_PORT_ACTIVE", value::PORT_ACTIVE),
        ("IBV_FORK_UNNEEDED", value::FORK_UNNEEDED),
        ("IBV_QPT_RC", value::QPT_RC),
        ("IBV_QPS_INIT", value::QPS_INIT),
        ("IBV_QPS_RTR", value::QPS_RTR),
        ("IBV_QPS_RTS", value::QPS_RTS),
        ("IBV_QPS_ERR", value::QPS_ERR),
        ("IBV_QP_STATE", value::QP_STATE),
        ("IBV_QP_ACCESS_FLAGS", value::QP_ACCESS_FLAGS),
        ("IBV_QP_PKEY_INDEX", value::QP_PKEY_INDEX),
        ("IBV_QP_PORT", value::QP_PORT),
        ("IBV_QP_AV", value::QP_AV),
        ("IBV_QP_PATH_MTU", value::QP_PATH_MTU),
        ("IBV_QP_TIMEOUT", value::QP_TIMEOUT),
        ("IBV_QP_RETRY_CNT", value::QP_RETRY_CNT),
        ("IBV_QP_RNR_RETRY", value::QP_RNR_RETRY),
        ("IBV_QP_RQ_PSN", value::QP_RQ_PSN),
        ("IBV_QP_MAX_QP_RD_ATOMIC", value::QP_MAX_QP_RD_ATOMIC),
        ("IBV_QP_MIN_RNR_TIMER", value::QP_MIN_RNR_TIMER),
        ("IBV_QP_SQ_PSN", value::QP_SQ_PSN),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", value::QP_MAX_DEST_RD_ATOMIC),
        ("IBV_QP_DEST_QPN", value::QP_DEST_QPN),
        ("IBV_ACCESS_LOCAL_WRITE", value::ACCESS_LOCAL_WRITE),
        ("IBV_ACCESS_REMOTE_WRITE", value::ACCESS_REMOTE_WRITE),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", value::WR_RDMA_WRITE_WITH_IMM),
        ("IBV_WR_SEND", value::WR_SEND),
        ("IBV_LINK_LAYER_INFINIBAND", value::LAYER_INFINIBAND as i32),
        ("IBV_LINK_LAYER_ETHERNET", value::LAYER_ETHERNET as i32),
    ];
    let unsigned = [
        ("IBV_SEND_SIGNALED", value::SEND_SIGNALED),
        ("IBV_SEND_INLINE", value::SEND_INLINE),
        ("IBV_WC_SUCCESS", value::WC_SUCCESS),
        ("IBV_WC_RECV", value::WC_RECV),
        ("IBV_WC_RECV_RDMA_WITH_IMM", value::WC_RECV_RDMA_WITH_IMM),
    ];
    let signed = signed
        .into_iter()
        .map(|(name, value)| (name, value as usize));
    signed
        .chain(unsigned.map(|(name, value)| (name, value as usize)))
        .collect()
}

#[test]
fn the_structures_are_those_of_the_headers() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("skipped: no headers of libibverbs here (libibverbs-dev)");
        return;
    }
    let facts: Vec<_> = layouts().into_iter().chain(values()).collect();
    let mut program = String::from("#include <infiniband/verbs.h>\n#include <stddef.h>\n");
    for (expression, value) in &facts {
        writeln!(
            program,
            "_Static_assert({expression} == {value}, \"{expression}\");"
        )
        .unwrap();
    }
    let mut compiler = Command::new("cc")
        .args(["-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    let mut input = compiler.stdin.take().unwrap();
    input.write_all(program.as_bytes()).unwrap();
    drop(input);
    let output = compiler.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
