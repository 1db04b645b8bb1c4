//! Clients in a container: this process moves into a control group that is named as Docker names its own.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Client, Fixture, connection, skip};
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Role};

const ID: &str = "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592";

/// The control group, which this process has left when it is dropped.
struct Container {
    root: PathBuf,
    group: PathBuf,
}

impl Container {
    fn enter() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let is_unified = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
        let root = PathBuf::from(mounts.lines().find(is_unified)?.split(' ').nth(1)?);
        let group = root.join(format!("docker-{ID}.scope"));
        fs::create_dir_all(&group).ok()?;
        let container = Self { root, group };
        move_to(&container.group).ok()?;
        Some(container)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = move_to(&self.root);
        let _ = fs::remove_dir(&self.group);
    }
}

fn move_to(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// What two clients are told of a connection between them.
fn told(config: &str) -> [Option<Reason>; 2] {
    let daemon = Fixture::of(config, true);
    let clients = [(); 2].map(|()| {
        let client = daemon.client();
        drop(client.spare(1));
        client.sync();
        client
    });
    let ends = connection();
    clients[0].claim(&ends.0, Role::Connector, 0);
    clients[1].claim(&ends.1, Role::Acceptor, 0);
    clients.each_ref().map(|client: &Client| {
        let (answer, _) = client.receive().expect("the daemon has closed");
        match answer.kind() {
            Some(Kind::Paired) => None,
            Some(Kind::Unpaired) => Reason::from_number(answer.status),
            _ => panic!("{answer:?}"),
        }
    })
}

/// One test, as all of this process is in one container.
#[test]
fn rules_and_quotas_know_the_container() {
    let Some(_container) = Container::enter() else {
        return skip("rules_and_quotas_know_the_container: no control groups");
    };
    let short = &ID[..12];
    let deny =
        |pattern: &str| format!("[[policy.rule]]\naction = \"deny\"\ncontainer = \"{pattern}\"\n");
    assert_eq!(told(""), [None; 2]);
    for pattern in [
        "*".into(),
        format!("{short}*"),
        format!("*/docker-{short}*"),
    ] {
        assert_eq!(
            told(&deny(&pattern)),
            [Some(Reason::Policy); 2],
            "{pattern}"
        );
    }
    assert_eq!(told(&deny("ffff*")), [None; 2]);
    let quota = |slots| format!("[limits.container]\nslots = {slots}");
    assert_eq!(told(&quota(2)), [None; 2]);
    assert_eq!(told(&quota(1)), [Some(Reason::Quota); 2]);
}
