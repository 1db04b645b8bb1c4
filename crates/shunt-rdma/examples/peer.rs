//! One side of the trial over verbs, for `cargo xtask lab rdma`:
//!
//! ```text
//! peer listen  ADDRESS:PORT DEVICE BYTES ROUNDS
//! peer connect ADDRESS:PORT DEVICE BYTES ROUNDS
//! ```
//! It prints what has held, and ends with 0 if all has.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use shunt_rdma::verbs::{self, Verbs};

#[path = "../tests/trial/mod.rs"]
mod trial;

use trial::{CONNECTIONS, Memory, Plan, Side};

/// Numbers of the library's descriptors.
const ABOVE: i32 = 500;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, address, device, bytes, rounds] = &words[..] else {
        eprintln!("usage: peer listen|connect ADDRESS:PORT DEVICE BYTES ROUNDS");
        return ExitCode::from(2);
    };
    let plan = Plan {
        bytes: bytes.parse().expect("a number of bytes"),
        rounds: rounds.parse().expect("a number of rounds"),
    };
    println!("devices: {:?}", verbs::devices());
    let nic = match Verbs::open(Some(device), ABOVE) {
        Ok(nic) => nic,
        Err(obstacle) => {
            eprintln!("{device}: {}", obstacle.text());
            return ExitCode::FAILURE;
        }
    };
    println!("descriptors: {:?}", nic.descriptors());
    assert!(nic.descriptors().iter().all(|&fd| fd >= ABOVE));
    let listens = role == "listen";
    let mut sockets = if listens {
        accept(address)
    } else {
        connect(address)
    };
    let bases = sockets.split_off(1);
    let control = sockets.remove(0);
    let memory = Memory::new(CONNECTIONS);
    let number = usize::from(listens);
    let words = control.try_clone().expect("a descriptor");
    let mut side = Side::new(number, nic, control, words, bases, &memory);
    side.run(plan, |what| println!("held: {what}"));
    let while_it_stands = pinned();
    assert_ne!(
        while_it_stands, 0,
        "the kernel does not count what is pinned"
    );
    drop(side);
    assert_eq!(pinned(), 0, "of {while_it_stands} KiB");
    println!("held: nothing stays pinned of {while_it_stands} KiB");
    ExitCode::SUCCESS
}

/// What the kernel says is pinned of this process's memory, in KiB (`VmPin` of `proc_pid_status(5)`).
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
    size.expect("VmPin").parse().expect("a number")
}

/// The control connection first, as [`connect`] has them. The kernel may hand connections out in another order than that in which they
/// were made (the last packets of their handshakes are handled by any processor), so each begins with its number.
fn accept(address: &str) -> Vec<TcpStream> {
    let listener = TcpListener::bind(address).expect("a listener");
    let mut sockets: Vec<_> = (0..=CONNECTIONS).map(|_| take(&listener)).collect();
    let order: Vec<_> = sockets.iter().map(|(number, _)| *number).collect();
    println!("connections, in the order in which they were accepted: {order:?}");
    sockets.sort_by_key(|(number, _)| *number);
    let numbers = sockets.iter().map(|(number, _)| *number);
    assert!(numbers.eq(0..=CONNECTIONS as u8));
    sockets.into_iter().map(|(_, socket)| socket).collect()
}

/// A connection, and its number.
fn take(listener: &TcpListener) -> (u8, TcpStream) {
    let (mut socket, _) = listener.accept().expect("a connection");
    let mut number = [0];
    socket.read_exact(&mut number).expect("its number");
    (number[0], socket)
}

fn connect(address: &str) -> Vec<TcpStream> {
    let one = |number| {
        for _ in 0..300 {
            if let Ok(mut socket) = TcpStream::connect(address) {
                socket.write_all(&[number]).expect("the other side");
                return socket;
            }
            // The other side is not there yet.
            thread::sleep(Duration::from_millis(100));
        }
        panic!("nobody listens at {address}");
    };
    (0..=CONNECTIONS as u8).map(one).collect()
}
