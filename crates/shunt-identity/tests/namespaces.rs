//! Connections between network namespaces, through translated addresses, and with addresses that others have, too.

mod common;

use std::net::TcpStream;

use common::{Namespace, PLENTY, assert_ends, attach_or_skip, netns, skip};

#[test]
fn ends_in_two_namespaces_mirror_each_other() {
    let name = "ends_in_two_namespaces_mirror_each_other";
    let Some(identities) = attach_or_skip(name, PLENTY) else {
        return;
    };
    let Some([client, server]) = Namespace::several(name) else {
        return;
    };
    let (ours, theirs) = (
        ["10.77.0.1/24", "fd77::1/64"],
        ["10.77.0.2/24", "fd77::2/64"],
    );
    client.join(("c", &ours), &server, ("s", &theirs));
    let listener = server.listen("[::]:80");
    for address in ["10.77.0.2:80", "[fd77::2]:80"] {
        let connector = client.connect(address);
        let acceptor = listener.accept().unwrap().0;
        assert_ne!(netns(&connector), netns(&acceptor));
        assert_ends(&identities, &connector, &acceptor);
    }
}

/// As a container's published port: a router between them changes the destination, and the source.
#[test]
fn ends_behind_translated_addresses_mirror_each_other() {
    let name = "ends_behind_translated_addresses_mirror_each_other";
    let Some(identities) = attach_or_skip(name, PLENTY) else {
        return;
    };
    let Some([client, router, server]) = Namespace::several(name) else {
        return;
    };
    client.join(
        ("c", &["10.77.1.2/24", "fd77:1::2/64"]),
        &router,
        ("outside", &["10.77.1.1/24", "fd77:1::1/64"]),
    );
    server.join(
        ("s", &["10.77.2.2/24", "fd77:2::2/64"]),
        &router,
        ("inside", &["10.77.2.1/24", "fd77:2::1/64"]),
    );
    router.run(
        "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
    );
    if let Err(why) = router.try_run(TRANSLATE) {
        assert!(!why.contains("syntax error"), "{why}");
        return skip(name, format!("no translation by nftables: {why}"));
    }
    let listener = server.listen("[::]:8080");
    for address in ["10.77.1.1:80", "[fd77:1::1]:80"] {
        let connector = client.connect(address);
        let acceptor = listener.accept().unwrap().0;
        assert_ends(&identities, &connector, &acceptor);
        // All that the two ends could be known by has been changed on the way.
        let local = |socket: &TcpStream| socket.local_addr().unwrap();
        let remote = |socket: &TcpStream| socket.peer_addr().unwrap();
        assert_ne!(remote(&connector), local(&acceptor));
        assert_ne!(local(&connector).ip(), remote(&acceptor).ip());
        assert_ne!(local(&connector).port(), remote(&acceptor).port());
    }
}

/// Both changes of docker's: of the destination for a published port, and of the source for who is outside.
const TRANSLATE: &str = r#"
nft -f - <<'END'
table inet test {
    chain destination {
        type nat hook prerouting priority dstnat;
        ip daddr 10.77.1.1 tcp dport 80 dnat ip to 10.77.2.2:8080
        ip6 daddr fd77:1::1 tcp dport 80 dnat ip6 to [fd77:2::2]:8080
    }
    chain source {
        type nat hook postrouting priority srcnat;
        oifname "inside" meta l4proto tcp masquerade to :1024-9999 fully-random
    }
}
END
"#;

/// Two pairs of containers that know nothing of each other have the same addresses and ports.
#[test]
fn the_same_addresses_elsewhere_are_other_connections() {
    let name = "the_same_addresses_elsewhere_are_other_connections";
    let Some(identities) = attach_or_skip(name, PLENTY) else {
        return;
    };
    let Some([client, server, other_client, other_server]) = Namespace::several(name) else {
        return;
    };
    let pairs = [(&client, &server), (&other_client, &other_server)];
    let connections = pairs.map(|(client, server)| {
        client.join(("c", &["10.77.0.1/24"]), server, ("s", &["10.77.0.2/24"]));
        // The one port that there is.
        client.run("echo 4000 4000 > /proc/sys/net/ipv4/ip_local_port_range");
        let listener = server.listen("10.77.0.2:80");
        let connector = client.connect("10.77.0.2:80");
        (connector, listener.accept().unwrap().0)
    });
    let names = |socket: &TcpStream| (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
    let [one, other] = &connections;
    assert_eq!(names(&one.0), names(&other.0));
    assert_eq!(names(&one.1), names(&other.1));
    for (connector, acceptor) in &connections {
        assert_ends(&identities, connector, acceptor);
    }
}
