//! Ranges of addresses (CIDR, RFC 4632).

use std::net::IpAddr;

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    first: IpAddr,
    length: u32,
}

impl Network {
    /// `10.0.0.0/8`, or one address alone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let wrong = || format!("`{text}` is no network: write 10.0.0.0/8, fd00::/8 or an address");
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        if first.to_canonical() != first {
            return Err(format!(
                "`{text}` is an IPv4 address in IPv6: write it as IPv4"
            ));
        }
        let most = if first.is_ipv4() { 32 } else { 128 };
        let length = match length {
            Some(length) => length.parse().ok().filter(|length| *length <= most),
            None => Some(most),
        };
        let length = length.ok_or_else(wrong)?;
        let network = Self { first, length };
        if bits(first) & !network.mask() != 0 {
            return Err(format!(
                "`{text}` has bits set beyond the first {length}: they must be 0"
            ));
        }
        Ok(network)
    }

    /// Whether an address is one of them.
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && bits(address) & self.mask() == bits(self.first)
    }

    fn mask(self) -> u128 {
        u128::MAX.checked_shl(128 - self.length).unwrap_or(0)
    }
}

/// An address as a number whose first bit is the address's.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_addresses_that_begin_as_it_does() {
        let has = |network: &str, address: &str| {
            let network = Network::parse(network).unwrap();
            network.contains(address.parse().unwrap())
        };
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.0.0.1", "10.0.0.1") && !has("10.0.0.1", "10.0.0.2"));
        assert!(has("0.0.0.0/0", "255.1.2.3") && !has("0.0.0.0/0", "::1"));
        assert!(has("::/0", "::1") && !has("::/0", "10.0.0.1"));
        assert!(has("fd00::/8", "fdff::1") && !has("fd00::/8", "fe00::1"));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.1/8",
            "::/129",
            "localhost",
            "::ffff:10.0.0.1",
        ] {
            assert!(Network::parse(text).is_err(), "{text}");
        }
    }
}
