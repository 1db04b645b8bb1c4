//! The trial that `cargo xtask lab rdma` runs over verbs, over emulated NICs: two threads, TCP over loopback between them.

use std::net::{TcpListener, TcpStream};
use std::thread;

use shunt_rdma::fabric::{Fabric, Manners};
use shunt_rdma::transport::Transport;
use shunt_rdma::wire::Wire;

mod trial;

use trial::{CONNECTIONS, Memory, Plan, Side};

fn pair(listener: &TcpListener) -> [TcpStream; 2] {
    let address = listener.local_addr().unwrap();
    let connected = TcpStream::connect(address).unwrap();
    [connected, listener.accept().unwrap().0]
}

fn run<T: Transport + Send>(nics: [T; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let [one, other] = pair(&listener);
    let (ones, others): (Vec<_>, Vec<_>) = (0..CONNECTIONS)
        .map(|_| pair(&listener))
        .map(|[one, other]| (one, other))
        .unzip();
    let plan = Plan {
        bytes: 500_000,
        rounds: 200,
    };
    let [one_nic, other_nic] = nics;
    let sides = [(one_nic, one, ones), (other_nic, other, others)];
    thread::scope(|scope| {
        for (number, (nic, control, bases)) in sides.into_iter().enumerate() {
            scope.spawn(move || {
                let memory = Memory::new(CONNECTIONS);
                let words = control.try_clone().unwrap();
                Side::new(number, nic, control, words, bases, &memory).run(plan, |_| {});
            });
        }
    });
}

#[test]
fn streams_arrive_while_queue_pairs_come_and_go() {
    for seed in 1..=3 {
        let fabric = Fabric::new(Manners {
            seed,
            delay: 20_000,
            placement: true,
            order: true,
            manual: false,
        });
        run([(); 2].map(|()| fabric.nic().unwrap()));
    }
}

#[test]
fn streams_arrive_between_nics_that_write_into_each_others_processes() {
    let directory = format!(
        "{}/wire-{}",
        env!("CARGO_TARGET_TMPDIR"),
        std::process::id()
    );
    std::fs::create_dir(&directory).unwrap();
    run([(); 2].map(|()| Wire::open(directory.as_ref()).unwrap()));
    // The NICs are gone from there.
    std::fs::remove_dir(&directory).unwrap();
}
