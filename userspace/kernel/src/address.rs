//! Addresses as the programs have them: four words, IPv4 mapped into IPv6.

use std::net::{IpAddr, SocketAddr};

use signalbox_common::net::Tuple;

/// Converts an address to the words that the programs use (IPv4 mapped into IPv6).
#[must_use]
pub fn to_words(addr: IpAddr) -> [u32; 4] {
    match addr {
        IpAddr::V4(v4) => Tuple::mapped(v4.into()),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
        }
    }
}

/// Converts the words that the programs use back to an address.
#[must_use]
pub fn from_words(words: [u32; 4]) -> IpAddr {
    let bits = words.iter().fold(0u128, |bits, &word| bits << 32 | u128::from(word));
    IpAddr::V6(bits.into()).to_canonical()
}

/// Tuple of the packets that arrive from an address for another one.
#[must_use]
pub fn arriving(from: SocketAddr, to: SocketAddr) -> Tuple {
    Tuple {
        source: to_words(from.ip()),
        destination: to_words(to.ip()),
        ports: u32::from(from.port()) << 16 | u32::from(to.port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in ["192.0.2.7", "2001:db8::1:2", "::1"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(from_words(to_words(addr)), addr);
        }
        assert_eq!(to_words("1.2.3.4".parse().unwrap()), [0, 0, 0xffff, 0x0102_0304]);
    }
}
