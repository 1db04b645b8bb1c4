//! Which RDMA devices there are, and why one will not do.

use std::ffi::CStr;
use std::fs;

use super::abi::{self, value};
use super::library::{Library, library};

/// Why RDMA is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// libibverbs is not installed, or older than rdma-core 35.
    NoLibrary,
    /// There is no device.
    NoDevice,
    /// The device has no write with immediate (iWARP), or no reliable connections (EFA).
    Kind,
    /// A forked child could not use its memory (Linux before 5.12).
    Fork,
    /// The device cannot be opened: permissions, a container without `/dev/infiniband`.
    Closed,
    /// No port is active.
    PortDown,
    /// The port has no address for RoCE version 2.
    NoAddress,
}

impl Obstacle {
    /// One sentence for a person.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoLibrary => "libibverbs is not installed, or older than rdma-core 35.",
            Self::NoDevice => "There is no RDMA device.",
            Self::Kind => {
                "The device has no write with immediate (iWARP) or no reliable connections (EFA)."
            }
            Self::Fork => "The kernel (before 5.12) cannot fork a process that uses RDMA.",
            Self::Closed => "The device cannot be opened (permissions of /dev/infiniband).",
            Self::PortDown => "No port of the device is active.",
            Self::NoAddress => "The port has no GID for RoCE version 2.",
        }
    }
}

/// A device that libibverbs knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// As in `/sys/class/infiniband`.
    pub name: String,
    /// Whether it is of a kind that will do.
    pub is_usable: bool,
}

/// All devices.
///
/// # Errors
/// [`Obstacle`]: none can be used, whatever there is.
pub fn devices() -> Result<Vec<Device>, Obstacle> {
    let library = usable_library()?;
    Ok(with_list(library, |list| {
        list.iter()
            .map(|&device| Device {
                name: name_of(library, device),
                is_usable: is_usable(device),
            })
            .collect()
    }))
}

fn usable_library() -> Result<&'static Library, Obstacle> {
    let library = library().ok_or(Obstacle::NoLibrary)?;
    // SAFETY: takes nothing, and looks at the kernel only.
    let fork = unsafe { (library.is_fork_initialized)() };
    if fork == value::FORK_UNNEEDED {
        Ok(library)
    } else {
        Err(Obstacle::Fork)
    }
}

/// Opens a device by its name, or the first that will do.
pub(super) fn open(
    name: Option<&str>,
) -> Result<(&'static Library, String, *mut abi::Context), Obstacle> {
    let library = usable_library()?;
    with_list(library, |list| {
        let mut named = list
            .iter()
            .copied()
            .filter(|&device| name.is_none_or(|name| name_of(library, device) == name))
            .peekable();
        if named.peek().is_none() {
            return Err(Obstacle::NoDevice);
        }
        let device = named
            .find(|&device| is_usable(device))
            .ok_or(Obstacle::Kind)?;
        // SAFETY: a device of the list, which is still there.
        let context = unsafe { (library.open_device)(device) };
        if context.is_null() {
            return Err(Obstacle::Closed);
        }
        Ok((library, name_of(library, device), context))
    })
}

fn with_list<T>(library: &Library, work: impl FnOnce(&[*mut abi::Device]) -> T) -> T {
    let mut count = 0;
    // SAFETY: `count` is writable.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        return work(&[]);
    }
    // SAFETY: the library says that the list has `count` entries; it stays until `free_device_list`.
    let result = work(unsafe { std::slice::from_raw_parts(list, count as usize) });
    // SAFETY: given by `get_device_list`, and freed once.
    unsafe { (library.free_device_list)(list) };
    result
}

fn name_of(library: &Library, device: *mut abi::Device) -> String {
    // SAFETY: a device of the list, whose name is a C string as long as it is there.
    let name = unsafe { CStr::from_ptr((library.get_device_name)(device)) };
    name.to_string_lossy().into_owned()
}

fn is_usable(device: *mut abi::Device) -> bool {
    // SAFETY: a device of the list.
    unsafe { (*device).transport_type == value::TRANSPORT_IB }
}

/// The address of a port by which it is reached: its place in the table, and itself. RoCE version 2 with an IPv4 address, before
/// one with an IPv6 address; on InfiniBand the first.
pub(super) fn gid(device: &str, port: u8, layer: u8) -> Option<(u8, [u8; 16])> {
    let directory = format!("/sys/class/infiniband/{device}/ports/{port}");
    let at = |index: u8| parse_gid(&fs::read_to_string(format!("{directory}/gids/{index}")).ok()?);
    if layer == value::LAYER_INFINIBAND {
        return Some((0, at(0)?));
    }
    let is_second = |index: u8| {
        let kind = fs::read_to_string(format!("{directory}/gid_attrs/types/{index}"));
        kind.is_ok_and(|kind| kind.trim() == "RoCE v2")
    };
    let all = (0..=u8::MAX).filter(|&index| is_second(index));
    let there = all.filter_map(|index| Some((index, at(index)?)));
    there
        .filter(|(_, gid)| *gid != [0; 16])
        .min_by_key(|(index, gid)| (!is_ipv4(gid), *index))
}

fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

/// `0000:…:0a08:0001` as bytes.
fn parse_gid(text: &str) -> Option<[u8; 16]> {
    let mut gid = [0; 16];
    let mut parts = text.trim().split(':');
    for place in gid.chunks_exact_mut(2) {
        let part = u16::from_str_radix(parts.next()?, 16).ok()?;
        place.copy_from_slice(&part.to_be_bytes());
    }
    parts.next().is_none().then_some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_read_as_the_kernel_writes_it() {
        let gid = parse_gid("0000:0000:0000:0000:0000:ffff:0a08:0001\n").unwrap();
        assert_eq!(gid[10..], [0xff, 0xff, 10, 8, 0, 1]);
        assert!(is_ipv4(&gid));
        assert!(!is_ipv4(
            &parse_gid("fe80:0000:0000:0000:5054:00ff:fe12:3456").unwrap()
        ));
        for wrong in ["", "fe80", "fe80:0:0:0:0:0:0:0:0", "x:0:0:0:0:0:0:0"] {
            assert_eq!(parse_gid(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_said_so() {
        let error = open(Some("no such device")).err();
        let expected = [Obstacle::NoLibrary, Obstacle::Fork, Obstacle::NoDevice];
        assert!(
            error.is_some_and(|obstacle| expected.contains(&obstacle)),
            "{error:?}"
        );
    }
}
