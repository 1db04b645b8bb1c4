//! The file at which the daemon of a host listens for programs in other network namespaces.

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use common::place::file;
use rustix::io::Errno;

#[test]
fn what_is_no_socket_is_not_replaced() {
    let path = file("what_is_no_socket");
    drop(shuntd::listen_at(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(shuntd::listen_at(&path).unwrap_err(), Errno::NOTSOCK);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let link = path.with_file_name("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(shuntd::listen_at(&link).unwrap_err(), Errno::NOTSOCK);
    assert_eq!(
        shuntd::listen_at(Path::new("socket")).unwrap_err(),
        Errno::INVAL
    );
    let deep = path.with_file_name("none").join("none").join("socket");
    assert_eq!(shuntd::listen_at(&deep).unwrap_err(), Errno::NOENT);
}

#[test]
fn every_user_may_connect_to_the_file_and_none_may_take_its_place() {
    let path = file("every_user_may_connect");
    let listener = shuntd::listen_at(&path).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o666, 0o755));
    assert_eq!(shuntd::listen_at(&path).unwrap_err(), Errno::ADDRINUSE);
    drop(listener);
    let again = shuntd::listen_at(&path).expect("what one has left is replaced");
    drop(again);
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(path.parent().unwrap(), open).unwrap();
    assert_eq!(shuntd::listen_at(&path).unwrap_err(), Errno::ACCESS);
}
