//! Two daemons on two hosts, which are network namespaces here. The fake clients are all one process.

mod common;

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

use common::place::two;
use common::scene::{Files, NETWORKS, Scene, claim};
use common::{Client, Fixture, WATCHDOG};
use shunt_abi::Reason;
use shunt_abi::message::{FLAG_NEW_LINK, FLAG_REACHES, Kind, Message, Role, TEXT_BYTES};

/// The answer to a claim that leads to nothing.
fn refusal(client: &Client) -> Option<Reason> {
    let (answer, _) = client.expect(Kind::Unpaired);
    Reason::from_number(answer.status)
}

fn word(link: u64, first: u8) -> Message {
    let mut word = Message::new(Kind::Word);
    word.link = link;
    let mut text = [7; TEXT_BYTES];
    text[0] = first;
    word.set_text(&text);
    word
}

#[test]
fn the_connector_learns_of_the_acceptors_claim_and_without_devices_both_ends_are_told() {
    let Some(scene) = Scene::alike("without_devices") else {
        return;
    };
    let ends = scene.connection();
    let [connector, acceptor] = scene.clients();
    acceptor.claim(&ends[1], Role::Acceptor, 0);
    let begun = Instant::now();
    while !connector.port_is_set(7000) {
        assert!(begun.elapsed() < WATCHDOG, "the port is not listed");
        std::thread::yield_now();
    }
    connector.claim(&ends[0], Role::Connector, 0);
    for client in [&connector, &acceptor] {
        assert_eq!(refusal(client), Some(Reason::NoDevice));
    }
}

#[test]
fn processes_that_can_use_rdma_meet_and_talk() {
    let Some(scene) = Scene::alike("meeting") else {
        return;
    };
    scene.files.make_device();
    let clients = scene.clients();
    let ends = [scene.connection(), scene.connection()];
    let cookies = claim(&clients, &ends[0], FLAG_REACHES);
    let meets = [0, 1].map(|i| clients[i].expect(Kind::Meet).0);
    for (meet, cookie) in meets.iter().zip(cookies) {
        assert_eq!(meet.cookie, cookie);
        assert_ne!(meet.generation, 0);
        assert_eq!(meet.flags, FLAG_NEW_LINK);
        assert_eq!(meet.bytes[0][0], (64 << 20) - (512 << 10));
    }
    assert_eq!(meets[0].slot, meets[1].slot);
    assert_eq!(meets[0].generation, meets[1].generation);
    assert_ne!(
        meets[0].role, meets[1].role,
        "one of both hands out the slots"
    );
    // A second connection of the same processes is on the same link.
    claim(&clients, &ends[1], FLAG_REACHES);
    let seconds = [0, 1].map(|i| clients[i].expect(Kind::Meet).0);
    for (second, first) in seconds.iter().zip(&meets) {
        assert_eq!((second.link, second.flags), (first.link, 0));
        assert_ne!(second.slot, first.slot);
    }
    for first in 0..100 {
        clients[0].send(&word(meets[0].link, first), None);
    }
    for first in 0..100 {
        let (heard, _) = clients[1].expect(Kind::Word);
        assert_eq!(heard.link, meets[1].link);
        assert_eq!(heard.text(), word(0, first).text());
    }
    // A link that is not one's own says nothing to anybody.
    clients[1].send(&word(meets[1].link + 77, 1), None);
    clients[0].release(cookies[0]);
    let (left, _) = clients[1].expect(Kind::Unpaired);
    assert_eq!(left.status, Reason::PeerLeft as u8);
    assert_eq!((left.cookie, left.slot), (cookies[1], meets[1].slot));
    let [connector, acceptor] = clients;
    acceptor.sync();
    drop(connector);
    let (left, _) = acceptor.expect(Kind::Unpaired);
    assert_eq!(left.status, Reason::PeerLeft as u8);
    let (gone, _) = acceptor.expect(Kind::Gone);
    assert_eq!((gone.link, gone.flags), (meets[1].link, FLAG_REACHES));
}

#[test]
fn a_connector_that_has_claimed_before_its_connect_meets_its_acceptor() {
    let Some(scene) = Scene::alike("ahead") else {
        return;
    };
    scene.files.make_device();
    let clients = scene.clients();
    let ends = [scene.connection(), scene.connection()];
    // The first claim of a client is looked at in any case.
    claim(&clients, &ends[0], FLAG_REACHES);
    for client in &clients {
        client.expect(Kind::Meet);
    }
    let connector = clients[0].claim_ahead(&ends[1][0], FLAG_REACHES);
    clients[0].sync();
    let acceptor = clients[1].claim(&ends[1][1], Role::Acceptor, FLAG_REACHES);
    for (client, cookie) in clients.iter().zip([connector, acceptor]) {
        assert_eq!(client.expect(Kind::Meet).0.cookie, cookie);
    }
}

#[test]
fn a_program_that_cannot_use_rdma_is_told_so_at_both_ends() {
    let Some(scene) = Scene::alike("cannot") else {
        return;
    };
    scene.files.make_device();
    let (ends, clients) = (scene.connection(), scene.clients());
    clients[0].claim(&ends[0], Role::Connector, FLAG_REACHES);
    clients[1].claim(&ends[1], Role::Acceptor, 0);
    for client in &clients {
        assert_eq!(refusal(client), Some(Reason::OtherHost));
    }
}

#[test]
fn a_rule_of_either_host_keeps_a_connection_on_tcp() {
    for denies in 0..2 {
        let rule = "[[policy.rule]]\naction = \"deny\"\nacross = \"host\"\nport = 7000\n";
        let test = format!("rule_{denies}");
        let config = |files: &Files, host| {
            let rule = if host == denies { rule } else { "" };
            Some(rule.to_owned() + &files.key("key"))
        };
        let Some(scene) = Scene::new(&test, config) else {
            return;
        };
        scene.files.make_device();
        let (ends, clients) = (scene.connection(), scene.clients());
        claim(&clients, &ends, FLAG_REACHES);
        for client in &clients {
            assert_eq!(refusal(client), Some(Reason::Policy));
        }
    }
}

#[test]
fn what_may_be_pinned_bounds_the_connections_of_a_process() {
    let config = |files: &Files, _| Some(files.key("key") + "pinned_per_process = 1\n");
    let Some(scene) = Scene::new("pinned", config) else {
        return;
    };
    scene.files.make_device();
    let clients = scene.clients();
    let ends = [(); 3].map(|()| scene.connection());
    for pair in &ends[..2] {
        claim(&clients, pair, FLAG_REACHES);
        clients
            .iter()
            .for_each(|client| drop(client.expect(Kind::Meet)));
    }
    claim(&clients, &ends[2], FLAG_REACHES);
    for client in &clients {
        assert_eq!(refusal(client), Some(Reason::Pinned));
    }
}

#[test]
fn with_another_key_both_ends_are_told() {
    let Some(scene) = Scene::new("other_key", |files, host| {
        Some(files.key(["key", "other"][host]))
    }) else {
        return;
    };
    let (ends, clients) = (scene.connection(), scene.clients());
    claim(&clients, &ends, FLAG_REACHES);
    for client in &clients {
        assert_eq!(refusal(client), Some(Reason::HostKey));
    }
}

#[test]
fn where_no_daemon_answers_the_end_is_told_and_later_ones_at_once() {
    let Some(scene) = Scene::new("no_daemon", |files, host| {
        (host == 0).then(|| files.key("key"))
    }) else {
        return;
    };
    let client = scene.client(0);
    for _ in 0..3 {
        let [near, _far] = scene.connection();
        client.claim(&near, Role::Connector, FLAG_REACHES);
        assert_eq!(refusal(&client), Some(Reason::HostSilent));
    }
    client.send(&Message::new(Kind::Hosts), None);
    let (row, _) = client.expect(Kind::Host);
    assert_eq!(row.status, Reason::HostSilent as u8);
    assert_eq!(row.addresses[0][..4], [10, 77, 0, 2]);
    assert_eq!(client.expect(Kind::End).0.index, 1);
}

#[test]
fn nobody_waits_for_a_host_that_says_nothing() {
    let Some(scene) = Scene::new("stopped", |files, host| {
        (host == 0).then(|| files.key("key"))
    }) else {
        return;
    };
    let port = ("10.77.0.2", shunt_hosts::PORT);
    let stopped = scene.places[1].within(|| TcpListener::bind(port).unwrap());
    let [near, _far] = scene.connection();
    let client = scene.client(0);
    client.claim(&near, Role::Connector, FLAG_REACHES);
    let (mut called, _) = stopped.accept().unwrap();
    // Meanwhile all others are served as ever.
    let other = scene.client(0);
    let pair = scene.places[0].within(common::connection);
    let _memory = [other.spare(1), other.spare(2)];
    other.claim(&pair.0, Role::Connector, 0);
    other.claim(&pair.1, Role::Acceptor, 0);
    other.expect(Kind::Paired);
    client.expect_nothing();
    assert_eq!(refusal(&client), Some(Reason::HostSilent));
    let mut bytes = Vec::new();
    let _ = called.read_to_end(&mut bytes); // Closed by now.
    assert!(!bytes.is_empty(), "it has said hello");
}

#[test]
fn where_it_cannot_listen_for_others_it_serves_its_own_host() {
    let Some(places) = two("taken") else {
        return;
    };
    let files = Files::new("taken");
    let config = files.key("key");
    let port = ("10.77.0.1", shunt_hosts::PORT);
    let _taken = places[0].within(|| TcpListener::bind(port).unwrap());
    let daemon = Fixture::on(&places[0], &config, &files.devices());
    let client = places[0].within(|| daemon.client());
    client.send(&Message::new(Kind::Hosts), None);
    assert_eq!(client.expect(Kind::End).0.index, 0, "it talks to others");
    let pair = places[0].within(common::connection);
    let _memory = [client.spare(1), client.spare(2)];
    client.claim(&pair.0, Role::Connector, 0);
    client.claim(&pair.1, Role::Acceptor, 0);
    client.expect(Kind::Paired);
}

#[test]
fn an_address_outside_the_networks_is_never_called() {
    let config = |files: &Files, _| {
        let config = files.key("key");
        Some(config.replace(NETWORKS, "networks = [\"10.78.0.0/16\"]\n"))
    };
    let Some(scene) = Scene::new("outside", config) else {
        return;
    };
    let (ends, clients) = (scene.connection(), scene.clients());
    claim(&clients, &ends, FLAG_REACHES);
    for client in &clients {
        assert_eq!(refusal(client), Some(Reason::NotLocal));
        client.send(&Message::new(Kind::Hosts), None);
        assert_eq!(client.expect(Kind::End).0.index, 1, "no host is known");
    }
}

#[test]
fn when_the_other_daemon_ends_what_has_met_goes_on_and_its_successor_is_found() {
    let Some(mut scene) = Scene::alike("successor") else {
        return;
    };
    scene.files.make_device();
    let (ends, clients) = (scene.connection(), scene.clients());
    claim(&clients, &ends, FLAG_REACHES);
    let meets = [0, 1].map(|i| clients[i].expect(Kind::Meet).0);
    let [client, other] = clients;
    drop(scene.daemons[1].take());
    // No new connection will use the link, and nothing is said of the connection.
    assert_eq!(client.expect(Kind::Gone).0.link, meets[0].link);
    client.sync();
    client.expect_nothing();
    drop(other);
    let later = scene.connection();
    client.claim(&later[0], Role::Connector, FLAG_REACHES);
    assert_eq!(refusal(&client), Some(Reason::HostSilent));
    let config = scene.files.key("key");
    let devices = scene.files.devices();
    scene.daemons[1] = Some(Fixture::on(&scene.places[1], &config, &devices));
    let other = scene.client(1);
    let last = scene.connection();
    // It calls, as its own client claims.
    other.claim(&last[1], Role::Acceptor, FLAG_REACHES);
    let begun = Instant::now();
    while !client.port_is_set(7000) {
        assert!(begun.elapsed() < WATCHDOG, "the successor has not called");
        std::thread::yield_now();
    }
    client.claim(&last[0], Role::Connector, FLAG_REACHES);
    let meet = client.expect(Kind::Meet).0;
    assert_ne!(meet.link, meets[0].link);
    assert_eq!(other.expect(Kind::Meet).0.slot, meet.slot);
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let files = Files::new("open_key");
    let config = files.key("key");
    let path = files.0.join("key");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let file = files.0.join("shunt.toml");
    fs::write(&file, config).unwrap();
    let check = |file: &Path| {
        let mut shuntd = std::process::Command::new(env!("CARGO_BIN_EXE_shuntd"));
        let shuntd = shuntd.args(["--system", "--check"]).arg(file);
        let done = shuntd.output().unwrap();
        let text = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
        (done.status.success(), text)
    };
    let (is_valid, text) = check(&file);
    assert!(!is_valid && text.contains("shunt.toml:2:7:"), "{text}");
    assert!(text.contains("chmod 600"), "{text}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let (is_valid, text) = check(&file);
    assert!(is_valid && text.contains("public key"), "{text}");
}
