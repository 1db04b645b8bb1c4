//! Which RDMA devices this host has, as the kernel lists them (`/sys/class/infiniband`).

use std::fs;
use std::path::Path;

use shunt_abi::Reason;

/// Where the kernel lists them.
pub(crate) const LIST: &str = "/sys/class/infiniband";

/// Why no connection can go by RDMA from here, if none can: there is no device (of this name, if one is given), or none of a kind that can be
/// used has an active port.
pub(crate) fn obstacle(list: &Path, name: Option<&str>) -> Option<Reason> {
    let devices = fs::read_dir(list).into_iter().flatten().flatten();
    let mut reason = Reason::NoDevice;
    let named = devices.filter(|device| name.is_none_or(|name| device.file_name() == name));
    for device in named.map(|entry| entry.path()) {
        if !has_active_port(&device) {
            continue;
        }
        if is_usable(&device) {
            return None;
        }
        reason = Reason::DeviceKind;
    }
    Some(reason)
}

/// Whether a port of a device is active: `4: ACTIVE`.
fn has_active_port(device: &Path) -> bool {
    let ports = fs::read_dir(device.join("ports")).into_iter().flatten();
    let state = |port: fs::DirEntry| fs::read_to_string(port.path().join("state"));
    ports
        .flatten()
        .filter_map(|port| state(port).ok())
        .any(|state| state.starts_with("4:"))
}

/// Only channel adapters (`1: CA`) have what is needed, of InfiniBand and of RoCE alike: reliable connections, and writes with
/// immediate. (iWARP is `4: RNIC`, EFA is of no specified kind.)
fn is_usable(device: &Path) -> bool {
    fs::read_to_string(device.join("node_type")).is_ok_and(|kind| kind.starts_with("1:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_counts_if_it_is_of_a_kind_that_can_be_used_and_has_an_active_port() {
        let list = std::env::temp_dir().join(format!("shunt-devices-{}", std::process::id()));
        let make = |name: &str, kind: &str, states: &[&str]| {
            let device = list.join(name);
            for (port, state) in states.iter().enumerate() {
                let port = device.join(format!("ports/{}", port + 1));
                fs::create_dir_all(&port).unwrap();
                fs::write(port.join("state"), state).unwrap();
            }
            fs::write(device.join("node_type"), kind).unwrap();
        };
        assert_eq!(obstacle(&list, None), Some(Reason::NoDevice));
        make("mlx5_0", "1: CA\n", &["1: DOWN\n"]);
        assert_eq!(obstacle(&list, None), Some(Reason::NoDevice));
        make("siw0", "4: RNIC\n", &["4: ACTIVE\n"]);
        assert_eq!(obstacle(&list, None), Some(Reason::DeviceKind));
        make("rxe0", "1: CA\n", &["1: DOWN\n", "4: ACTIVE\n"]);
        assert_eq!(obstacle(&list, None), None);
        let of = |name| obstacle(&list, Some(name));
        assert_eq!(of("rxe0"), None);
        assert_eq!(of("siw0"), Some(Reason::DeviceKind));
        assert_eq!(of("rxe1"), Some(Reason::NoDevice));
        fs::remove_dir_all(&list).unwrap();
    }
}
