use super::*;
use proptest::prelude::*;

fn addresses() -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<([u8; 4], u16)>().prop_map(|(ip, port)| (ip, port).into());
    let v6 = any::<([u8; 16], u16)>().prop_map(|(ip, port)| {
        let ip = Ipv6Addr::from(ip);
        SocketAddr::new(IpAddr::from(ip).to_canonical(), port)
    });
    prop_oneof![v4, v6]
}

fn claims() -> impl Strategy<Value = Claim> {
    let numbers = proptest::option::of(any::<(u32, u32)>());
    let rest = (
        any::<(u64, u64, bool, u8)>(),
        numbers,
        addresses(),
        addresses(),
    );
    rest.prop_map(
        |((end, process, accepts, obstacle), numbers, local, peer)| Claim {
            end,
            process,
            side: if accepts {
                Side::Acceptor
            } else {
                Side::Connector
            },
            numbers: numbers.map(|(sent, received)| Numbers { sent, received }),
            local,
            peer,
            obstacle,
        },
    )
}

fn frames() -> impl Strategy<Value = Frame> {
    let text = proptest::collection::vec(any::<u8>(), WORD);
    prop_oneof![
        any::<(u16, [u8; 16])>().prop_map(|(version, host)| Frame::Hello {
            version,
            host: HostId(host)
        }),
        any::<u32>().prop_map(Frame::Ping),
        any::<u32>().prop_map(Frame::Pong),
        claims().prop_map(Frame::Claim),
        any::<u64>().prop_map(Frame::Drop),
        any::<u64>().prop_map(Frame::Gone),
        any::<(u64, u64, u32, u32)>().prop_map(|(to, from, slot, generation)| Frame::Seat {
            to,
            from,
            slot,
            generation
        }),
        any::<[u64; 4]>().prop_map(|[to, from, received, sent]| Frame::Died {
            to,
            from,
            received,
            sent
        }),
        (any::<(u64, u64)>(), text).prop_map(|((to, from), text)| Frame::Word {
            to,
            from,
            text: text.try_into().unwrap()
        }),
    ]
}

fn bytes(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    bytes
}

/// How many bytes the first frame has, if it has come as a whole.
type Outcome = Result<Option<usize>, Malformed>;

/// Each way to be wrong once, beside what is right: what every later version of this parser must still say.
const CORPUS: [(&[u8], Outcome); 15] = [
    (b"", Ok(None)),
    (b"\x00", Ok(None)),
    (b"\x00\x05\x02\x00\x00\x00", Ok(None)),
    (b"\x00\x05\x02\x00\x00\x00\x07\xff", Ok(Some(7))),
    (b"\x00\x00", Err(Malformed)),
    (b"\x04\x01", Err(Malformed)),
    (b"\x00\x01\x00", Err(Malformed)),
    (b"\x00\x01\x02", Err(Malformed)),
    (b"\x00\x06\x03\x00\x00\x00\x07\x00", Err(Malformed)),
    (b"\x00\x17\x01SHNT\x00\x01................", Ok(Some(25))),
    (b"\x00\x18\x01SHNT\x00\x02................!", Ok(Some(26))),
    (b"\x00\x17\x01TNHS\x00\x01................", Err(Malformed)),
    (b"\x00\x09\x05\0\0\0\0\0\0\0\x01", Ok(Some(11))),
    (
        b"\x00\x11\x07\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02",
        Err(Malformed),
    ),
    (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        Err(Malformed),
    ),
];

#[test]
fn the_corpus_is_read_as_it_was() {
    for (bytes, result) in CORPUS {
        let read = Frame::read(bytes).map(|found| found.map(|(_, length)| length));
        assert_eq!(read, result, "{bytes:02x?}");
    }
}

#[test]
fn an_ipv4_address_in_ipv6_is_no_address() {
    let claim = Claim {
        end: 1,
        process: 2,
        side: Side::Acceptor,
        numbers: None,
        local: "[::ffff:10.0.0.1]:80".parse().unwrap(),
        peer: "10.0.0.2:4000".parse().unwrap(),
        obstacle: 0,
    };
    assert_eq!(Frame::read(&bytes(&Frame::Claim(claim))), Err(Malformed));
}

proptest! {
    #[test]
    fn what_is_written_is_read(frames in proptest::collection::vec(frames(), 1..5)) {
        let mut all: Vec<u8> = frames.iter().flat_map(bytes).collect();
        for frame in frames {
            let (read, length) = Frame::read(&all).unwrap().unwrap();
            prop_assert_eq!(&read, &frame);
            for less in 0..length {
                prop_assert_eq!(Frame::read(&all[..less]), Ok(None));
            }
            all.drain(..length);
        }
        prop_assert!(all.is_empty());
    }

    #[test]
    fn any_bytes_are_a_frame_or_none(bytes: Vec<u8>) {
        if let Ok(Some((frame, length))) = Frame::read(&bytes) {
            prop_assert!(length <= bytes.len() && length <= MOST + 2);
            let mut again = Vec::new();
            frame.write(&mut again);
            // A Hello may be longer than ours; all else is written in one way only, or has numbers that do not count.
            if !matches!(frame, Frame::Hello { .. }) {
                prop_assert_eq!(again.len(), length);
            }
            prop_assert_eq!(Frame::read(&again).unwrap().unwrap().0, frame);
        }
    }

    #[test]
    fn any_change_of_a_frame_is_a_frame_or_none(frame in frames(), at: prop::sample::Index, to: u8) {
        let mut bytes = bytes(&frame);
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(Some((_, length))) = Frame::read(&bytes) {
            prop_assert!(length <= bytes.len());
        }
    }
}
