//! What the configuration says of other hosts.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use shunt_abi::layout;
use shunt_abi::message::DEVICE_BYTES;
use shunt_hosts::{Keys, PORT};
use toml::Spanned;

use super::Mistake;
use crate::policy::Network;

/// What a connection in use between hosts pins at each end: its ring, and that of the other end's that the NIC writes, in
/// bytes.
pub(crate) const PINNED: u64 = 2 * layout::MIRRORED_RING_BYTES as u64;

/// The table as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    key: Spanned<PathBuf>,
    networks: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    listen: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    port: Option<Spanned<u16>>,
    #[serde(default)]
    pinned_per_process: Option<Spanned<u64>>,
    #[serde(default)]
    pinned: Option<Spanned<u64>>,
    #[serde(default)]
    rdma: bool,
    #[serde(default)]
    device: Option<Spanned<String>>,
}

/// Which other hosts are talked to, and how.
#[derive(Clone, Debug)]
pub struct Between {
    key: PathBuf,
    /// Where the file names that: line and column.
    key_at: (usize, usize),
    networks: Vec<Network>,
    /// Where other hosts are listened to.
    pub(crate) listen: Vec<SocketAddr>,
    /// Where they listen.
    pub(crate) port: u16,
    /// What one process may pin, in bytes.
    pub(crate) pinned_per_process: u64,
    /// What all may pin together.
    pub(crate) pinned: u64,
    /// Payload may go by RDMA.
    pub(crate) rdma: bool,
    /// By which device; `None`: the first that will do.
    pub(crate) device: Option<String>,
}

/// What is wrong, and where: as an offset into the file.
type Wrong = (usize, String);

impl Between {
    /// What the table of a file says. `place`: line and column of an offset.
    pub(super) fn new(
        table: Table,
        place: impl Fn(usize) -> (usize, usize),
    ) -> Result<Self, Wrong> {
        let key_at = table.key.span().start;
        let key = table.key.into_inner();
        if !key.is_absolute() {
            return Err((key_at, format!("`{}` is no absolute path", key.display())));
        }
        let networks_at = table.networks.span().start;
        let networks = table.networks.into_inner().into_iter();
        let networks = networks.map(|word| parsed(word, Network::parse));
        let networks = networks.collect::<Result<Vec<_>, _>>()?;
        if networks.is_empty() {
            let wrong = "no network is named: name those whose hosts may be talked to, or leave [hosts] out";
            return Err((networks_at, wrong.to_owned()));
        }
        let port = match table.port {
            Some(port) if *port.get_ref() == 0 => {
                return Err((port.span().start, "`0` is no port".to_owned()));
            }
            port => port.map_or(PORT, Spanned::into_inner),
        };
        let listen = match table.listen {
            None => vec![SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))],
            Some(addresses) => {
                let address = |word| parsed(word, address).map(|ip| SocketAddr::new(ip, port));
                addresses
                    .into_iter()
                    .map(address)
                    .collect::<Result<_, Wrong>>()?
            }
        };
        let device = table.device.map(|word| parsed(word, device)).transpose()?;
        Ok(Self {
            key,
            key_at: place(key_at),
            networks,
            listen,
            port,
            pinned_per_process: mebibytes(table.pinned_per_process, 64)?,
            pinned: mebibytes(table.pinned, 1024)?,
            rdma: table.rdma,
            device,
        })
    }

    /// Whether a host at this address may be talked to.
    pub(crate) fn names(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(address))
    }

    /// Reads the file with the key.
    ///
    /// # Errors
    /// What is wrong with it, in which line of the configuration it is named, and what to do.
    pub fn keys(&self) -> Result<Keys, Mistake> {
        Keys::read(&self.key).map_err(|wrong| {
            let (line, column) = self.key_at;
            let text = format!("{}: {wrong}", self.key.display());
            Mistake { line, column, text }
        })
    }
}

/// Who is called, and where others are heard.
impl std::fmt::Display for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let listen: Vec<_> = self.listen.iter().map(ToString::to_string).collect();
        let count = self.networks.len();
        let networks = if count == 1 { "network" } else { "networks" };
        write!(
            f,
            "hosts of {count} {networks} are called at port {}",
            self.port
        )?;
        if listen.is_empty() {
            return Ok(());
        }
        write!(f, ", and heard at {}", listen.join(", "))
    }
}

fn parsed<T>(word: Spanned<String>, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, Wrong> {
    let at = word.span().start;
    parse(word.get_ref()).map_err(|wrong| (at, wrong))
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "`{text}` is no address of this host: write 10.0.0.1, fd00::1, or leave `listen` out"
        )
    })
}

/// As the kernel names it.
fn device(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.len() < DEVICE_BYTES && !text.contains(['/', '\0']);
    is_name.then(|| text.to_owned()).ok_or_else(|| {
        format!("`{text}` is no RDMA device's name: write one of /sys/class/infiniband, or leave `device` out")
    })
}

/// An amount in MiB, in bytes.
fn mebibytes(amount: Option<Spanned<u64>>, default: u64) -> Result<u64, Wrong> {
    let Some(amount) = amount else {
        return Ok(default << 20);
    };
    let bytes = amount.get_ref().checked_mul(1 << 20);
    let bytes = bytes.filter(|bytes| *bytes >= PINNED && *bytes <= i64::MAX as u64);
    let wrong = || {
        format!(
            "`{}` MiB: write 1 or more, or leave [hosts] out",
            amount.get_ref()
        )
    };
    bytes.ok_or_else(|| (amount.span().start, wrong()))
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn parse(text: &str) -> Result<super::Between, (usize, usize, String)> {
        match Config::parse(&format!("[hosts]\n{text}")) {
            Ok(config) => Ok(config.hosts.unwrap()),
            Err(mistake) => Err((mistake.line, mistake.column, mistake.text)),
        }
    }

    const LEAST: &str =
        "key = \"/etc/shunt/hosts.key\"\nnetworks = [\"10.1.0.0/16\", \"fd00::/8\"]\n";

    #[test]
    fn other_hosts_are_off_until_a_key_and_networks_are_named() {
        assert!(Config::parse("").unwrap().hosts.is_none());
        let hosts = parse(LEAST).unwrap();
        let names = |address: &str| hosts.names(address.parse().unwrap());
        assert!(names("10.1.2.3") && names("fd00::1"));
        assert!(!names("10.2.0.1") && !names("127.0.0.1"));
        assert_eq!(hosts.listen, ["[::]:7482".parse().unwrap()]);
        assert_eq!(
            (hosts.pinned_per_process, hosts.pinned),
            (64 << 20, 1 << 30)
        );
        let text = format!("{LEAST}listen = [\"10.1.0.1\"]\nport = 7000\npinned = 3");
        let hosts = parse(&text).unwrap();
        assert_eq!(hosts.listen, ["10.1.0.1:7000".parse().unwrap()]);
        assert_eq!((hosts.port, hosts.pinned), (7000, 3 << 20));
    }

    #[test]
    fn payload_goes_by_rdma_where_that_is_said_and_by_the_device_that_is_named() {
        let hosts = parse(LEAST).unwrap();
        assert_eq!((hosts.rdma, hosts.device), (false, None));
        let hosts = parse(&format!("{LEAST}rdma = true\ndevice = \"mlx5_0\"")).unwrap();
        assert_eq!(
            (hosts.rdma, hosts.device.as_deref()),
            (true, Some("mlx5_0"))
        );
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        for (text, line, column, says) in [
            ("", 1, 1, "missing field `key`"),
            ("key = \"/k\"", 1, 1, "missing field `networks`"),
            (
                "key = \"k\"\nnetworks = [\"::/0\"]",
                2,
                7,
                "no absolute path",
            ),
            ("key = \"/k\"\nnetworks = []", 3, 12, "no network is named"),
            (
                "key = \"/k\"\nnetworks = [\"10.0.0.1/8\"]",
                3,
                13,
                "must be 0",
            ),
            (
                "key = \"/k\"\nnetworks = [\"rdma0\"]",
                3,
                13,
                "is no network",
            ),
        ] {
            let (at, from, wrong) = parse(text).unwrap_err();
            assert_eq!((at, from), (line, column), "{text}: {wrong}");
            assert!(wrong.contains(says), "{text}: {wrong}");
        }
        for (line, column, says) in [
            ("listen = [\"10.1.0.1:7\"]", 11, "is no address"),
            ("port = 0", 8, "no port"),
            ("port = 70000", 8, "u16"),
            ("pinned = 0", 10, "1 or more"),
            ("pinned_per_process = 18446744073709551", 22, "1 or more"),
            ("rdma = 1", 8, "boolean"),
            ("device = \"../x\"", 10, "no RDMA device's name"),
            ("keys = 1", 1, "unknown field"),
        ] {
            let (at, from, wrong) = parse(&format!("{LEAST}{line}")).unwrap_err();
            assert_eq!((at, from), (4, column), "{line}: {wrong}");
            assert!(wrong.contains(says), "{line}: {wrong}");
        }
    }

    #[test]
    fn a_key_that_cannot_be_used_is_told_with_the_line_that_names_it() {
        let mistake = parse(LEAST).unwrap().keys().unwrap_err();
        assert_eq!((mistake.line, mistake.column), (2, 7));
        assert!(mistake.text.contains("/etc/shunt/hosts.key"), "{mistake}");
        assert!(mistake.text.contains("shunt host key"), "{mistake}");
    }
}
