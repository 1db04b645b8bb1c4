//! What one side of a queue pair must know of the other: 48 bytes, which the two hosts exchange by a way that they trust.

/// Bytes of an [`Endpoint`].
pub const BYTES: usize = 48;

/// How the two NICs are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Layer {
    /// Of no real NIC.
    #[default]
    Emulated = 0,
    /// InfiniBand: by LID.
    InfiniBand = 1,
    /// RoCE: by GID.
    Ethernet = 2,
}

/// One end of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Global address of the port.
    pub gid: [u8; 16],
    /// Local address of the port (InfiniBand).
    pub lid: u16,
    /// Link layer.
    pub layer: Layer,
    /// `enum ibv_mtu` of the port.
    pub mtu: u8,
    /// Number of the queue pair.
    pub number: u32,
    /// First packet number that it sends.
    pub first: u32,
    /// How many receives it has posted.
    pub receives: u16,
    /// How many slots its link has.
    pub slots: u16,
    /// This side's half of the secret by which [resume records](crate::resume) are checked.
    pub secret: [u8; 16],
}

impl Endpoint {
    /// As bytes, little endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&self.gid);
        put(&self.lid.to_le_bytes());
        put(&[self.layer as u8, self.mtu]);
        put(&self.number.to_le_bytes());
        put(&self.first.to_le_bytes());
        put(&self.receives.to_le_bytes());
        put(&self.slots.to_le_bytes());
        put(&self.secret);
        bytes
    }

    /// From bytes of a peer; `None`: they are no endpoint that this side can use.
    #[must_use]
    pub fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        let mut left = &bytes[..];
        let endpoint = Self {
            gid: take(&mut left),
            lid: u16::from_le_bytes(take(&mut left)),
            layer: match take::<1>(&mut left)[0] {
                0 => Layer::Emulated,
                1 => Layer::InfiniBand,
                2 => Layer::Ethernet,
                _ => return None,
            },
            mtu: take::<1>(&mut left)[0],
            number: u32::from_le_bytes(take(&mut left)),
            first: u32::from_le_bytes(take(&mut left)),
            receives: u16::from_le_bytes(take(&mut left)),
            slots: u16::from_le_bytes(take(&mut left)),
            secret: take(&mut left),
        };
        let is_sound = (1..=5).contains(&endpoint.mtu)
            && endpoint.number < 1 << 24
            && endpoint.first < 1 << 24
            && endpoint.receives >= crate::grants::LEAST;
        is_sound.then_some(endpoint)
    }
}

/// The next bytes; there are enough.
fn take<const N: usize>(left: &mut &[u8]) -> [u8; N] {
    let (first, rest) = left.split_first_chunk().expect("48 bytes");
    *left = rest;
    *first
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: Endpoint = Endpoint {
        gid: [7; 16],
        lid: 0x1234,
        layer: Layer::Ethernet,
        mtu: 3,
        number: 0x00ab_cdef,
        first: 0x0012_3456,
        receives: 256,
        slots: 16,
        secret: [9; 16],
    };

    #[test]
    fn an_endpoint_comes_back_from_its_bytes() {
        let bytes = ENDPOINT.to_bytes();
        assert_eq!(bytes[16..20], [0x34, 0x12, 2, 3]);
        assert_eq!(Endpoint::parse(&bytes), Some(ENDPOINT));
    }

    #[test]
    fn an_endpoint_that_no_queue_pair_can_have_is_refused() {
        let wrong = [
            Endpoint { mtu: 0, ..ENDPOINT },
            Endpoint { mtu: 6, ..ENDPOINT },
            Endpoint {
                number: 1 << 24,
                ..ENDPOINT
            },
            Endpoint {
                first: u32::MAX,
                ..ENDPOINT
            },
            Endpoint {
                receives: 0,
                ..ENDPOINT
            },
        ];
        for endpoint in wrong {
            assert_eq!(Endpoint::parse(&endpoint.to_bytes()), None, "{endpoint:?}");
        }
        let mut layer = ENDPOINT.to_bytes();
        layer[18] = 3;
        assert_eq!(Endpoint::parse(&layer), None);
    }
}
