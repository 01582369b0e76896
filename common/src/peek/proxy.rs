//! PROXY header version 2 to hosts (haproxy.org, doc/proxy-protocol.txt, section 2.2): what a program and a worker write
//! alike. A header is: fixed part, addresses, `PP2_TYPE_UNIQUE_ID`, `PP2_TYPE_CRC32C`, `PP2_TYPE_AUTHORITY`.

use core::fmt;

/// Bytes before the addresses: signature, version and command, family, length.
pub const FIXED_BYTES: u32 = 16;
/// Bytes before the value of a TLV: type and length.
pub const TLV_BYTES: u32 = 3;
/// Characters of a [`ConnectionId`].
pub const ID_BYTES: u32 = 32;
/// Bytes of a checksum.
pub const CRC_BYTES: u32 = 4;

/// Parts of a header, as bits of [`PeekCluster::proxy`](super::abi::PeekCluster::proxy). 0: hosts get no header.
pub mod part {
    /// The header itself.
    pub const HEADER: u32 = 1 << 0;
    /// `PP2_TYPE_AUTHORITY`: the name that the client asks for.
    pub const AUTHORITY: u32 = 1 << 1;
    /// `PP2_TYPE_UNIQUE_ID`: the connection's id.
    pub const UNIQUE_ID: u32 = 1 << 2;
    /// `PP2_TYPE_CRC32C`: the header's checksum.
    pub const CRC32C: u32 = 1 << 3;
}

/// Length of a header. `addresses`: bytes of both addresses and ports; `name`: bytes of the client's name.
#[inline(always)]
#[must_use]
pub const fn header_length(parts: u32, addresses: u32, name: u32) -> u32 {
    if parts == 0 {
        return 0;
    }
    let mut length = FIXED_BYTES + addresses;
    if parts & part::UNIQUE_ID != 0 {
        length += TLV_BYTES + ID_BYTES;
    }
    if parts & part::CRC32C != 0 {
        length += TLV_BYTES + CRC_BYTES;
    }
    if parts & part::AUTHORITY != 0 {
        length += TLV_BYTES + name;
    }
    length
}

/// Id of a connection to a host, which the host's header and the access log name: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId {
    /// Random number of the process, with [`OF_PROGRAM`](Self::OF_PROGRAM) or without.
    pub seed: u64,
    /// Number of the connection.
    pub number: u64,
}

impl ConnectionId {
    /// Lowest bit of the seed of connections that a program makes, whose numbers a worker might give, too.
    pub const OF_PROGRAM: u64 = 1;

    /// Id of a flow of a program: its index, and the tick at which it began.
    #[inline(always)]
    #[must_use]
    pub const fn of_flow(seed: u64, started: u32, index: u32) -> Self {
        Self {
            seed: seed | Self::OF_PROGRAM,
            number: (started as u64) << 32 | index as u64,
        }
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.seed, self.number)
    }
}

/// The eight hexadecimal digits of a number; the first digit is the highest byte.
#[inline(always)]
#[must_use]
pub const fn hex_digits(number: u32) -> u64 {
    let digits = number as u64;
    let digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
    let digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
    let digits = (digits | digits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // 1 in the bytes of digits above 9, which are letters.
    let letters = ((digits + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    digits + 0x3030_3030_3030_3030 + letters * 0x27
}

/// Value of [`crc32c_step`] before the first byte; the checksum is the inverse of the last value.
pub const CRC32C_START: u32 = u32::MAX;

/// CRC32C (RFC 3720, appendix B.4) of one more byte.
#[inline(always)]
#[must_use]
pub fn crc32c_step(crc: u32, byte: u8) -> u32 {
    (crc >> 8) ^ CRC32C[((crc ^ byte as u32) & 0xff) as usize]
}

/// Values of each byte.
static CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ ((value & 1) * 0x82f6_3b78);
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_standard_library() {
        for number in [0, 1, 9, 10, 0x1234_5678, 0x9abc_def0, 0xa0b9_0a9f, u32::MAX] {
            assert_eq!(hex_digits(number).to_be_bytes(), *format!("{number:08x}").as_bytes());
        }
    }

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        let sum = |bytes: &[u8]| !bytes.iter().fold(CRC32C_START, |crc, byte| crc32c_step(crc, *byte));
        assert_eq!(sum(b"123456789"), 0xe306_9283);
        assert_eq!(sum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(sum(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn the_longest_header_fits_its_room() {
        let all = part::HEADER | part::AUTHORITY | part::UNIQUE_ID | part::CRC32C;
        let longest = header_length(all, 36, crate::peek::name::MAX_NAME_BYTES as u32);
        assert_eq!(longest, 52 + 35 + 7 + 3 + 62);
        assert!(longest as usize <= crate::peek::abi::HEAD_ROOM);
        assert_eq!(header_length(0, 36, 9), 0);
        assert_eq!(header_length(part::HEADER, 12, 9), 28);
    }

    #[test]
    fn ids_of_programs_and_workers_differ() {
        let worker = ConnectionId {
            seed: 6,
            number: 1 << 32 | 2,
        };
        let program = ConnectionId::of_flow(6, 1, 2);
        assert_eq!(program.number, worker.number);
        assert_ne!(program.to_string(), worker.to_string());
        assert_eq!(worker.to_string(), "00000000000000060000000100000002");
    }
}
