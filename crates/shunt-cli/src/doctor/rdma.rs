//! What there is for connections between hosts: RDMA devices, and other hosts that answer.

use std::fs;
use std::path::Path;

use rustix::process::Resource;
use shunt_abi::Reason;

use super::Found;
use crate::host;
use crate::library::Fault;

/// Where the kernel lists devices.
const LIST: &str = "/sys/class/infiniband";
/// What one process pins for as many connections as it may have, unless the configuration says otherwise.
const PINNED: u64 = 64 << 20;
/// A port has no more GIDs than this (IBTA 10.2.2.1: up to 65,535; drivers have 256 at most).
const GIDS: usize = 256;

/// The devices of this host. None is no fault: connections to other hosts are plain TCP.
pub(super) fn devices() -> Found {
    let ports = ports(Path::new(LIST));
    if ports.is_empty() {
        return Ok("no device: connections to other hosts stay on TCP".into());
    }
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let limit = limit.filter(|limit| *limit < PINNED).map(|limit| {
        let limit = limit >> 10;
        format!(
            "; reduced: programs started from here may lock {limit} KiB, of {} (`ulimit -l`)",
            PINNED >> 10
        )
    });
    Ok(ports.join("; ") + &limit.unwrap_or_default())
}

/// A line for each port of each device.
fn ports(list: &Path) -> Vec<String> {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let devices = names(list).into_iter();
    devices
        .flat_map(|device| {
            let name = last(&device);
            let kind = line(&device.join("node_type"));
            let usable = kind.as_deref().is_some_and(|kind| kind.starts_with("1:"));
            names(&device.join("ports"))
                .into_iter()
                .map(move |port| format!("{name} port {}: {}", last(&port), about(&port, usable)))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// What a port can do.
fn about(port: &Path, usable: bool) -> String {
    let state = line(&port.join("state")).unwrap_or_default();
    let layer = line(&port.join("link_layer")).unwrap_or_default();
    let state = state.split_once(": ").map_or("unknown", |(_, state)| state);
    if !usable {
        return format!("{state}; reduced: of a kind that Shunt cannot use (iWARP, EFA)");
    }
    if state != "ACTIVE" {
        return format!(
            "{layer}, {state}; reduced: see `rdma link`, and the interface's own state"
        );
    }
    if layer != "Ethernet" {
        return format!("{layer}, active");
    }
    match gid(port) {
        Some((index, interface)) => format!("RoCE v2, active, GID {index} ({interface})"),
        None => "RoCE, active; reduced: no GID of RoCE v2, give its interface an IP address".into(),
    }
}

/// The first GID of RoCE v2 that is made of an IPv4 address or, without one, of any: its index, and its interface. (One of a
/// link-local address is there before any address is given.)
fn gid(port: &Path) -> Option<(usize, String)> {
    let attributes = port.join("gid_attrs");
    let is_v2 = |index: &usize| {
        let kind = line(&attributes.join(format!("types/{index}")));
        kind.is_some_and(|kind| kind == "RoCE v2")
    };
    let gid = |index: usize| line(&port.join(format!("gids/{index}"))).unwrap_or_default();
    let all: Vec<_> = (0..GIDS).filter(is_v2).collect();
    let is_v4 = |index: &&usize| gid(**index).starts_with("0000:0000:0000:0000:0000:ffff:");
    let index = *all.iter().find(is_v4).or(all.first())?;
    let interface = line(&attributes.join(format!("ndevs/{index}")));
    Some((index, interface.unwrap_or_default()))
}

fn last(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_owned())
}

/// Other hosts. One that is silent may be one without Shunt; one with another key was to be one of ours.
pub(super) fn hosts() -> Found {
    let Ok(hosts) = host::collect() else {
        return Ok("not talked to: only `shuntd --system` does, and tells root".into());
    };
    let Some(hosts) = hosts else {
        return Ok("not talked to: see [hosts] in shunt.toml(5)".into());
    };
    let with = |reason: Reason| {
        let is_it = move |host: &&host::Host| host.reason.as_deref() == Some(reason.name());
        let found = hosts.iter().filter(is_it);
        let addresses: Vec<_> = found.map(|host| host.address.to_string()).collect();
        addresses.join(", ")
    };
    for (reason, advice) in [
        (
            Reason::HostKey,
            "copy the file that `key` in [hosts] of shunt.toml(5) names from one host to the other",
        ),
        (
            Reason::HostVersion,
            "install the same version of Shunt on both hosts",
        ),
    ] {
        let addresses = with(reason);
        if !addresses.is_empty() {
            let what = format!("{addresses}: {}", reason.text());
            return Err(Fault::new(what, advice));
        }
    }
    let found = hosts.iter().filter(|host| host.reason.is_none()).count();
    let silent = with(Reason::HostSilent);
    let silent = if silent.is_empty() {
        String::new()
    } else {
        format!("; no shuntd answers at {silent}")
    };
    Ok(format!("{found} found{silent}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device as the kernel shows it.
    fn device(list: &Path, name: &str, kind: &str, files: &[(&str, &str)]) {
        let device = list.join(name);
        for (file, text) in files {
            let path = device.join("ports/1").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        fs::write(device.join("node_type"), kind).unwrap();
    }

    #[test]
    fn a_port_is_described_with_the_gid_that_is_of_use() {
        let list = std::env::temp_dir().join(format!("shunt-rdma-{}", std::process::id()));
        assert!(ports(&list).is_empty());
        let roce = [
            ("state", "4: ACTIVE"),
            ("link_layer", "Ethernet"),
            ("gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0001"),
            ("gid_attrs/types/0", "IB/RoCE v1"),
            ("gids/1", "fe80:0000:0000:0000:0000:00ff:fe00:0001"),
            ("gid_attrs/types/1", "RoCE v2"),
            ("gid_attrs/ndevs/1", "eth1"),
            ("gids/3", "0000:0000:0000:0000:0000:ffff:0a01:0001"),
            ("gid_attrs/types/3", "RoCE v2"),
            ("gid_attrs/ndevs/3", "eth1"),
        ];
        device(&list, "mlx5_0", "1: CA", &roce);
        device(&list, "mlx5_1", "1: CA", &roce[..4]);
        device(
            &list,
            "mlx5_2",
            "1: CA",
            &[("state", "4: ACTIVE"), ("link_layer", "InfiniBand")],
        );
        device(
            &list,
            "mlx5_3",
            "1: CA",
            &[("state", "1: DOWN"), ("link_layer", "Ethernet")],
        );
        device(&list, "siw0", "4: RNIC", &roce);
        let lines = ports(&list);
        fs::remove_dir_all(&list).unwrap();
        assert_eq!(lines[0], "mlx5_0 port 1: RoCE v2, active, GID 3 (eth1)");
        assert!(lines[1].contains("reduced: no GID of RoCE v2"), "{lines:?}");
        assert_eq!(lines[2], "mlx5_2 port 1: InfiniBand, active");
        assert!(lines[3].contains("Ethernet, DOWN; reduced"), "{lines:?}");
        assert!(lines[4].contains("iWARP"), "{lines:?}");
    }
}
