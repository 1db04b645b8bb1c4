//! Connections between network namespaces. The fake clients are all one process, but connect from
//! different ones.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use common::place::{Namespace, crossing, file, two};
use common::{Client, Fixture};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SocketType, sockopt};
use shunt_abi::Reason;
use shunt_abi::message::{FLAG_CROSSES, FLAG_RESENDS, Kind, Message, Role, SOCKETS};

/// A connection from the first namespace to the second.
fn connection([near, far]: &[Namespace; 2]) -> (TcpStream, TcpStream) {
    let listener = far.within(|| TcpListener::bind("10.77.0.2:7000").unwrap());
    let near = near.within(|| TcpStream::connect("10.77.0.2:7000").unwrap());
    (near, listener.accept().unwrap().0)
}

/// Two network namespaces, and a daemon of the host that serves both.
struct Scene {
    _daemon: Fixture,
    file: PathBuf,
    places: [Namespace; 2],
}

impl Scene {
    /// `None`: it cannot be had here, which is said.
    fn of(test: &str, config: &str) -> Option<Self> {
        let places = two(test)?;
        let (daemon, file) = crossing(test, config)?;
        Some(Self {
            _daemon: daemon,
            file,
            places,
        })
    }

    /// A client in the first namespace, where connections begin.
    fn connector(&self) -> Client {
        self.places[0].within(|| Client::at(&self.file))
    }

    /// A client in the second one, where they are accepted.
    fn acceptor(&self) -> Client {
        self.places[1].within(|| Client::at(&self.file))
    }
}

#[test]
fn the_board_of_the_connectors_namespace_learns_the_port_from_the_acceptors_claim() {
    let test = "the_board_of_the_connectors_namespace_learns_the_port";
    let Some(scene) = Scene::of(test, "") else {
        return;
    };
    let (near, far) = connection(&scene.places);
    let connector = scene.connector();
    let acceptor = scene.acceptor();
    acceptor.listen(1, 7000);
    acceptor.sync();
    assert!(acceptor.port_is_set(7000) && !connector.port_is_set(7000));
    acceptor.claim(&far, Role::Acceptor, 0);
    acceptor.sync();
    assert!(
        connector.port_is_set(7000),
        "the claim tells where it is reached"
    );
    // One that comes later finds it there, too.
    let later = scene.connector();
    assert!(later.port_is_set(7000));
    let _memory = [connector.spare(1), acceptor.spare(2)];
    acceptor.sync();
    connector.claim(&near, Role::Connector, 0);
    let links = [&connector, &acceptor].map(|client| {
        // One to call by, some to be called at; all before there is anybody to be called.
        let passed = [Role::Connector].into_iter();
        for role in passed.chain((0..SOCKETS).map(|_| Role::Acceptor)) {
            let (message, socket) = client.expect(Kind::Abroad);
            assert_eq!(message.role, role as u8);
            assert_eq!(sockopt::socket_type(socket.unwrap()), Ok(SocketType::DGRAM));
        }
        let (paired, _) = client.expect(Kind::Paired);
        assert_ne!(paired.flags & FLAG_CROSSES, 0);
        paired.link
    });
    assert_eq!(links[0], links[1]);
    drop(acceptor);
    while connector.port_is_set(7000) {
        std::thread::yield_now();
    }
}

#[test]
fn a_board_that_comes_after_the_claim_knows_the_port() {
    let test = "a_board_that_comes_after_the_claim";
    let Some(scene) = Scene::of(test, "") else {
        return;
    };
    let (_near, far) = connection(&scene.places);
    let acceptor = scene.acceptor();
    acceptor.claim(&far, Role::Acceptor, 0);
    acceptor.sync();
    assert!(scene.connector().port_is_set(7000));
}

#[test]
fn a_namespace_that_all_have_left_is_told_anew() {
    let test = "a_namespace_that_all_have_left";
    let Some(scene) = Scene::of(test, "") else {
        return;
    };
    let acceptor = scene.acceptor();
    let (_near, far) = connection(&scene.places);
    let connector = || scene.connector();
    let first = connector();
    acceptor.claim(&far, Role::Acceptor, 0);
    acceptor.sync();
    assert!(first.port_is_set(7000));
    drop(first);
    while connector().port_is_set(7000) {
        std::thread::yield_now();
    }
    let later = connector();
    let (_near, far) = connection(&scene.places);
    acceptor.claim(&far, Role::Acceptor, 0);
    acceptor.sync();
    assert!(later.port_is_set(7000));
}

#[test]
fn many_ports_of_one_namespace_keep_no_other_from_being_told() {
    const MOST: usize = 64;
    let test = "many_ports_of_one_namespace";
    // It had room for no more than these.
    let config = format!("[limits]\nconnections_per_client = {}", MOST + 2);
    let Some(scene) = Scene::of(test, &config) else {
        return;
    };
    let acceptor = scene.acceptor();
    let connector = scene.connector();
    let bind = |_| TcpListener::bind("10.77.0.2:0").unwrap();
    let listeners: Vec<_> = scene.places[1].within(|| (0..=MOST).map(bind).collect());
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let connect = |listener| TcpStream::connect(("10.77.0.2", port(listener))).unwrap();
    let _near: Vec<_> = scene.places[0].within(|| listeners.iter().map(connect).collect());
    let accept = |listener: &TcpListener| listener.accept().unwrap().0;
    let far: Vec<_> = listeners.iter().map(accept).collect();
    for accepted in &far {
        acceptor.claim(accepted, Role::Acceptor, 0);
    }
    acceptor.sync();
    assert!(!connector.port_is_set(port(&listeners[0])));
    let mut kept = listeners[1..].iter().map(port);
    assert!(kept.all(|port| connector.port_is_set(port)));
}

#[test]
fn connections_that_leave_the_namespace_and_have_no_mirror_are_answered_at_once() {
    let test = "connections_without_a_mirror";
    let Some(places) = two(test) else { return };
    let (_older, far) = connection(&places);
    let Some((_daemon, file)) = crossing(test, "") else {
        return;
    };
    let client = places[1].within(|| Client::at(&file));
    client.claim(&far, Role::Acceptor, 0);
    let (answer, _) = client.expect(Kind::Unpaired);
    assert_eq!(answer.status, Reason::Older as u8);
}

#[test]
fn a_claim_before_the_acceptors_handshake_is_done_waits_for_that() {
    let test = "a_claim_before_the_acceptors_handshake";
    let Some(scene) = Scene::of(test, "") else {
        return;
    };
    let listener = scene.places[1].within(|| TcpListener::bind("10.77.0.2:7000").unwrap());
    defer_accept(&listener);
    let connect = || TcpStream::connect("10.77.0.2:7000").unwrap();
    let (early, mut near) = scene.places[0].within(|| (connect(), connect()));
    let connector = scene.connector();
    let acceptor = scene.acceptor();
    let _memory = [connector.spare(1), acceptor.spare(2)];
    acceptor.sync();
    connector.claim(&near, Role::Connector, 0);
    connector.sync();
    near.write_all(b"x").unwrap();
    let (far, _) = listener.accept().unwrap();
    acceptor.claim(&far, Role::Acceptor, 0);
    for client in [&connector, &acceptor] {
        for _ in 0..=SOCKETS {
            client.expect(Kind::Abroad);
        }
        client.expect(Kind::Paired);
        client.expect(Kind::NeedSpare);
    }
    // One that nobody accepts in time is answered then.
    let cookie = connector.claim(&early, Role::Connector, 0);
    let (answer, _) = connector.expect(Kind::Unpaired);
    assert_eq!(
        (answer.status, answer.cookie),
        (Reason::NotLocal as u8, cookie)
    );
}

/// Its connections are there when their first data are (`tcp(7)`).
fn defer_accept(listener: &TcpListener) {
    let seconds = 10_i32;
    // SAFETY: the option is an int, and the kernel reads no more.
    let done = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of::<i32>() as u32,
        )
    };
    assert_eq!(done, 0);
}

#[test]
fn policy_keeps_namespaces_apart() {
    let test = "policy_keeps_namespaces_apart";
    let file = file(test);
    let _daemon = Fixture::crossing("[policy]\ncross_namespace = false", &file);
    let welcome = Client::welcome_at(&file);
    assert_eq!(welcome.flags & FLAG_CROSSES, 0);
}

#[test]
fn a_policy_that_lets_namespaces_together_holds_for_those_that_are_there() {
    let test = "a_policy_that_lets_namespaces_together";
    let Some(places) = two(test) else { return };
    if crossing(&format!("{test}_if_any"), "").is_none() {
        return;
    }
    let file = file(test);
    let name = format!("{test}-{}.toml", std::process::id());
    let configuration = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&configuration, "[policy]\ncross_namespace = false").unwrap();
    let daemon = Fixture::crossing_as_read(&configuration, &file);
    let crosses = || Client::welcome_at(&file).flags & FLAG_CROSSES != 0;
    let scene = Scene {
        _daemon: daemon,
        file: file.clone(),
        places,
    };
    let (acceptor, connector) = (scene.acceptor(), scene.connector());
    let _memory = [connector.spare(1), acceptor.spare(2)];
    assert!(!crosses() && !connector.crosses());
    std::fs::write(&configuration, "").unwrap();
    scene._daemon.reload();
    assert!(crosses() && connector.crosses());
    let (near, far) = connection(&scene.places);
    acceptor.claim(&far, Role::Acceptor, 0);
    acceptor.sync();
    connector.claim(&near, Role::Connector, 0);
    for client in [&connector, &acceptor] {
        let mut told = client.receive().expect("the daemon has closed").0;
        while told.kind() == Some(Kind::Abroad) {
            told = client.receive().expect("the daemon has closed").0;
        }
        assert_eq!(told.kind(), Some(Kind::Paired), "{told:?}");
    }
    std::fs::remove_file(configuration).unwrap();
}

#[test]
fn a_claim_of_anothers_socket_is_not_believed_though_its_mirror_is_known() {
    let test = "a_claim_of_anothers_socket";
    let Some(scene) = Scene::of(test, "") else {
        return;
    };
    let (near, far) = connection(&scene.places);
    let acceptor = scene.acceptor();
    let liar = scene.connector();
    let cookie = acceptor.claim(&far, Role::Acceptor, 0);
    acceptor.sync();
    // It names the cookie of a socket, and a descriptor of another one.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirrored = sockopt::socket_cookie(&near).unwrap();
    liar.claim_as(&listener, mirrored, Role::Connector, 0);
    let (answer, _) = liar.expect(Kind::Unpaired);
    assert_eq!(answer.status, Reason::NotEstablished as u8);
    acceptor.expect_nothing();
    assert_ne!(cookie, mirrored);
}

/// Two clients of two namespaces, and the ends of a connection between them that has been paired.
fn paired(scene: &Scene) -> ([Client; 2], [TcpStream; 2]) {
    let clients = [scene.connector(), scene.acceptor()];
    let (near, far) = connection(&scene.places);
    for client in &clients {
        client.spare(1);
        client.sync();
    }
    clients[1].claim(&far, Role::Acceptor, 0);
    clients[1].sync();
    clients[0].claim(&near, Role::Connector, 0);
    for client in &clients {
        (0..=SOCKETS).for_each(|_| drop(client.expect(Kind::Abroad)));
        client.expect(Kind::Paired);
        client.expect(Kind::NeedSpare);
    }
    near.set_read_timeout(Some(common::WATCHDOG)).unwrap();
    (clients, [near, far])
}

/// What a client asks of the other end of its socket.
fn of_other_end(kind: Kind, own: &TcpStream) -> Message {
    let mut message = Message::new(kind);
    (message.fd, message.cookie) = (own.as_raw_fd(), sockopt::socket_cookie(own).unwrap());
    message
}

/// A memory file with these bytes.
fn memory_file(bytes: &[u8]) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("resend", flags).unwrap();
    assert_eq!(rustix::io::write(&file, bytes), Ok(bytes.len()));
    file
}

#[test]
fn the_other_end_elsewhere_is_not_lent_but_the_daemon_sends_by_it() {
    let test = "the_other_end_elsewhere";
    let Some(scene) = Scene::of(test, "") else {
        return;
    };
    let (clients, [mut near, far]) = paired(&scene);
    clients[0].send(&of_other_end(Kind::Lend, &near), None);
    let (lent, socket) = clients[0].expect(Kind::Lent);
    assert_eq!(lent.status, Reason::NotEstablished as u8);
    assert_ne!(lent.flags & FLAG_RESENDS, 0);
    assert!(socket.is_none(), "lent after all");
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
    let file = memory_file(&bytes);
    let resend = of_other_end(Kind::Resend, &near);
    clients[0].send(&resend, Some(file.as_fd()));
    let mut got = vec![0; bytes.len()];
    near.read_exact(&mut got).unwrap();
    assert!(got == bytes);
    let (resent, _) = clients[0].expect(Kind::Resent);
    assert_eq!((resent.status, resent.cookie), (0, resend.cookie));
    drop(far);
    assert_eq!(near.read(&mut [0]).unwrap(), 0, "a copy holds it open");
}

#[test]
fn what_its_process_has_sealed_is_not_sent_any_more() {
    let test = "what_its_process_has_sealed";
    let Some(scene) = Scene::of(test, "") else {
        return;
    };
    let (clients, [mut near, far]) = paired(&scene);
    let file = memory_file(b"late");
    rustix::fs::fcntl_add_seals(&file, SealFlags::SEAL).unwrap();
    clients[0].send(&of_other_end(Kind::Resend, &near), Some(file.as_fd()));
    let (resent, _) = clients[0].expect(Kind::Resent);
    assert_eq!(resent.status, Reason::NotEstablished as u8);
    drop(far);
    assert_eq!(near.read(&mut [0]).unwrap(), 0);
}

#[test]
fn the_daemon_sends_memory_only_and_for_a_holder_only() {
    let test = "the_daemon_sends_memory_only";
    let Some(scene) = Scene::of(test, "") else {
        return;
    };
    let ([asker, peer], [near, mut far]) = paired(&scene);
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let file = memory_file(b"forged");
    let own = of_other_end(Kind::Resend, &near);
    let mut unpaired = of_other_end(Kind::Resend, &common::connection().0);
    let mut anothers = own;
    anothers.cookie = sockopt::socket_cookie(&far).unwrap();
    unpaired.fd = near.as_raw_fd();
    for (request, with) in [(own, &reader), (unpaired, &file), (anothers, &file)] {
        asker.send(&request, Some(with.as_fd()));
        let (resent, _) = asker.expect(Kind::Resent);
        assert_eq!(resent.status, Reason::NotEstablished as u8);
    }
    peer.sync();
    drop(near);
    far.set_read_timeout(Some(common::WATCHDOG)).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
    asker.send(&own, None);
    asker.expect_closed();
}

#[test]
fn who_has_a_link_with_another_namespace_shares_a_page_of_the_cores_with_it() {
    let test = "who_has_a_link_with_another_namespace";
    let Some(scene) = Scene::of(test, "") else {
        return;
    };
    let (near, far) = connection(&scene.places);
    let clients = [scene.connector(), scene.acceptor()];
    let _memory = clients.each_ref().map(|client| client.spare(1));
    clients[0].sync();
    clients[1].claim(&far, Role::Acceptor, 0);
    clients[1].sync();
    clients[0].claim(&near, Role::Connector, 0);
    let [near, far] = clients.each_ref().map(|client| {
        let mut pages = Vec::new();
        loop {
            let (message, fd) = client.receive_any().expect("the daemon has closed");
            match message.kind() {
                Some(Kind::Cores) => pages.push((message.index, fd.unwrap())),
                Some(Kind::Paired) => return pages,
                _ => {}
            }
        }
    });
    assert_eq!([near[0].0, near[1].0], [0, 1]);
    assert!(!common::same_file(&near[0].1, &far[0].1));
    assert!(common::same_file(&near[1].1, &far[1].1));
    assert_eq!([near.len(), far.len()], [2, 2]);
}
