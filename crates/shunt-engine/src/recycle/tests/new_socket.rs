//! New sockets in whose places connections have come.

use super::*;

/// The program's new socket has become a connection that is used again, after `change` was done to it. Its name.
fn replaced_after(scene: &mut Scene, change: impl FnOnce(&Socket, c_int)) -> u64 {
    let waits = scene.awaited();
    let fd = Scene::fresh();
    let socket = Socket::of(fd).unwrap();
    socket.made.note(libc::SOCK_CLOEXEC);
    let name = socket.whereabouts.place(fd).unwrap().cookie;
    change(socket, fd);
    assert_eq!(Scene::connect(fd, &scene.target()), Outcome::Done(0));
    scene.ends.fds[CONNECTED] = fd;
    waits.end();
    scene.accept_again();
    name
}

fn name_of(fd: c_int) -> Option<u64> {
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok()
}

#[test]
fn the_socket_whose_place_a_connection_takes_is_the_next_new_one_of_its_family() {
    let mut scene = Scene::new();
    let name = replaced_after(&mut scene, |_, _| ());
    assert!(take_new(libc::AF_INET6, 0).is_none());
    let fd = take_new(libc::AF_INET, libc::SOCK_NONBLOCK).unwrap().fd;
    assert_eq!(name_of(fd), Some(name));
    let flags = [libc::F_GETFD, libc::F_GETFL].map(|which| sys::fcntl(fd, which, 0).unwrap());
    assert_eq!(flags, [0, (libc::O_RDWR | libc::O_NONBLOCK) as usize]);
    assert!(take_new(libc::AF_INET, 0).is_none());
    sys::close(fd);
}

#[test]
fn one_that_is_not_as_it_was_made_is_nobodys_next_one() {
    let changes: [fn(&Socket, c_int); 4] = [
        |socket, _| {
            socket
                .settings
                .note(libc::IPPROTO_TCP, libc::TCP_NODELAY, Some(1))
        },
        |socket, _| socket.made.forget(),
        |_, _| crate::socket::made::before_child(),
        |socket, _| socket.set_reason(shunt_abi::Reason::Passed),
    ];
    for change in changes {
        let mut scene = Scene::new();
        replaced_after(&mut scene, change);
        assert!(take_new(libc::AF_INET, 0).is_none());
    }
}

#[test]
fn what_the_program_has_put_in_the_place_of_one_is_its_own() {
    let mut scene = Scene::new();
    let name = replaced_after(&mut scene, |_, _| ());
    let mut kept = -1;
    table::each(|fd, word| {
        if word == Word::OURS && name_of(fd) == Some(name) {
            kept = fd;
        }
    });
    let other = sys::eventfd().unwrap();
    sys::dup3(other, kept, 0).unwrap();
    assert!(take_new(libc::AF_INET, 0).is_none());
    assert!(sys::fcntl(kept, libc::F_GETFD, 0).is_ok() && table::look(kept) == Word::NOTHING);
    sys::close(kept);
    sys::close(other);
    // Likewise where another socket has taken the number before it connects.
    replaced_after(&mut scene, |_, fd| {
        let other = sys::socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        sys::dup3(other, fd, 0).unwrap();
        sys::close(other);
    });
    assert!(take_new(libc::AF_INET, 0).is_none());
}

#[test]
fn new_sockets_are_given_up_with_all_that_is_kept() {
    let ends: [fn(); 4] = [
        || lock::lock().unwrap().sweep_at(u64::MAX),
        || assert!(give_up_all()),
        || {
            before_fork();
            after_fork_parent();
        },
        || table::each(|fd, _| make_way(fd)),
    ];
    for end in ends {
        let mut scene = Scene::new();
        replaced_after(&mut scene, |_, _| ());
        end();
        assert!(take_new(libc::AF_INET, 0).is_none());
    }
}
