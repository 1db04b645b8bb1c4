//! Two hosts, which are network namespaces here, with a daemon on each.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use shunt_abi::message::Role;

use super::place::{Namespace, two};
use super::{Client, Fixture};

/// What a test's hosts call their network.
pub const NETWORKS: &str = "networks = [\"10.77.0.0/24\"]\n";

/// A directory of a test's own, with a key and devices.
pub struct Files(pub PathBuf);

impl Files {
    pub fn new(test: &str) -> Self {
        let name = format!("{test}-{}", std::process::id());
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("devices")).unwrap();
        let files = Self(directory);
        files.key("key");
        files
    }

    /// Makes a key, and says how a configuration names it.
    pub fn key(&self, name: &str) -> String {
        let path = self.0.join(name);
        if !path.exists() {
            fs::write(&path, shunt_hosts::key::generate().unwrap()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        format!(
            "[hosts]\nkey = \"{}\"\n{NETWORKS}rdma = true\n",
            path.display()
        )
    }

    /// Where devices are listed; there are none unless one is made.
    pub fn devices(&self) -> PathBuf {
        self.0.join("devices")
    }

    pub fn make_device(&self) {
        let port = self.devices().join("rxe0/ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
        fs::write(self.devices().join("rxe0/node_type"), "1: CA\n").unwrap();
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two hosts, a process on each, and a connection from the first to the second.
pub struct Scene {
    pub files: Files,
    pub places: [Namespace; 2],
    pub daemons: [Option<Fixture>; 2],
}

impl Scene {
    /// With a daemon on each, configured like this; `None`: it cannot be had here, which is said.
    pub fn new(test: &str, config: impl Fn(&Files, usize) -> Option<String>) -> Option<Self> {
        let places = two(test)?;
        let files = Files::new(test);
        let daemons = [0, 1].map(|host| {
            let config = config(&files, host)?;
            Some(Fixture::on(&places[host], &config, &files.devices()))
        });
        Some(Self {
            files,
            places,
            daemons,
        })
    }

    /// With the same key on both.
    pub fn alike(test: &str) -> Option<Self> {
        Self::new(test, |files, _| Some(files.key("key")))
    }

    pub fn client(&self, host: usize) -> Client {
        let daemon = self.daemons[host].as_ref().unwrap();
        self.places[host].within(|| daemon.client())
    }

    pub fn clients(&self) -> [Client; 2] {
        [self.client(0), self.client(1)]
    }

    /// A connection from the first host to the second.
    pub fn connection(&self) -> [TcpStream; 2] {
        let listener = self.places[1].within(|| TcpListener::bind("10.77.0.2:7000").unwrap());
        let near = self.places[0].within(|| TcpStream::connect("10.77.0.2:7000").unwrap());
        [near, listener.accept().unwrap().0]
    }
}

const ROLES: [Role; 2] = [Role::Connector, Role::Acceptor];

/// Claims both ends.
pub fn claim(clients: &[Client; 2], ends: &[TcpStream; 2], flags: u32) -> [u64; 2] {
    [0, 1].map(|i| clients[i].claim(&ends[i], ROLES[i], flags))
}
