//! The program and its maps in the kernel. All of it goes with these descriptors.

use std::os::fd::{AsFd as _, OwnedFd};

use crate::bpf::{self, Map};
use crate::record::{Numbers, Places, Record};
use crate::{Unavailable, cgroup, program};

#[derive(Debug)]
pub(crate) struct Attachment {
    /// From a socket's cookie to what it was when its handshake ended.
    pub(crate) ends: Map<u64, Record>,
    /// From the numbers with which a handshake has ended to the cookies of its two sockets, or
    /// [`crate::AMBIGUOUS`] in the place of one.
    pub(crate) pairs: Map<Numbers, Places>,
    /// Keeps the program attached (`BPF_LINK_CREATE`), and the program itself.
    pub(crate) _link: OwnedFd,
}

impl Attachment {
    pub(crate) fn new(capacity: u32) -> Result<Self, Unavailable> {
        let root = cgroup::root()?;
        let ends = Map::new(c"shunt_ends", capacity).map_err(Unavailable::at("make a map"))?;
        let pairs = Map::new(c"shunt_pairs", capacity).map_err(Unavailable::at("make a map"))?;
        let code = program::assemble(ends.as_fd(), pairs.as_fd());
        let program = bpf::load(&code)?;
        // `EPERM` means here that another program insists on being the only one.
        let refused = |error| Unavailable::Failed("attach the eBPF program", error);
        let link = bpf::attach(program.as_fd(), root.as_fd()).map_err(refused)?;
        Ok(Self {
            ends,
            pairs,
            _link: link,
        })
    }
}
