//! Huffman-coded strings of header blocks (RFC 7541, section 5.2).

const SYMBOLS: usize = 257;
const END_OF_STRING: u16 = 256;
const LONGEST: usize = 30;

/// Lengths in bits of the codes of bytes 0 to 255 and of the end of a string (RFC 7541, appendix B). Codes of a length
/// follow each other in the order of their symbols, so that these are the whole code.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28,
    28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15,
    6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20,
    20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23,
    24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22,
    22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27,
    24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26,
    26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// Symbols by code: those of a length are the `counts` from `places` on, and their codes begin with `codes`.
struct Codes {
    symbols: [u16; SYMBOLS],
    places: [u16; LONGEST + 1],
    counts: [u16; LONGEST + 1],
    codes: [u32; LONGEST + 1],
}

const CODES: Codes = Codes::build();

impl Codes {
    const fn build() -> Self {
        let mut built = Self {
            symbols: [0; SYMBOLS],
            places: [0; LONGEST + 1],
            counts: [0; LONGEST + 1],
            codes: [0; LONGEST + 1],
        };
        let (mut length, mut place, mut code) = (1, 0, 0);
        while length <= LONGEST {
            built.places[length] = place;
            built.codes[length] = code;
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if LENGTHS[symbol] as usize == length {
                    built.symbols[place as usize] = symbol as u16;
                    place += 1;
                    code += 1;
                }
                symbol += 1;
            }
            built.counts[length] = place - built.places[length];
            code <<= 1;
            length += 1;
        }
        built
    }
}

/// Symbol that these bits begin with, and the length of its code.
fn first_symbol(bits: u64) -> (u16, usize) {
    for length in 5..=LONGEST {
        let above = (bits >> (64 - length)) as u32 - CODES.codes[length];
        if above < u32::from(CODES.counts[length]) {
            return (
                CODES.symbols[usize::from(CODES.places[length]) + above as usize],
                length,
            );
        }
    }
    (END_OF_STRING, LONGEST)
}

/// Appends the string that `coded` encodes. `None` if it is no string: wrong padding, or its end within it.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (mut bits, mut held) = (0u64, 0usize);
    let mut rest = coded.iter();
    loop {
        while held <= 56
            && let Some(&byte) = rest.next()
        {
            bits |= u64::from(byte) << (56 - held);
            held += 8;
        }
        let (symbol, length) = first_symbol(bits);
        if length > held {
            // Padding: the first bits of the end's code, fewer than a byte of them.
            return (held < 8 && bits == !(u64::MAX >> held)).then_some(());
        }
        if symbol == END_OF_STRING {
            return None;
        }
        out.push(symbol as u8);
        bits <<= length;
        held -= length;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(coded: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(coded, &mut out).map(|()| out)
    }

    /// RFC 7541, appendix C.4.1 and C.6.1.
    #[test]
    fn examples_of_the_rfc_are_read() {
        let host = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&host).unwrap(), b"www.example.com");
        assert_eq!(decoded(&[0x64, 0x02]).unwrap(), b"302");
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn wrong_padding_and_an_end_within_are_refused() {
        for coded in [
            &[0x64, 0x02, 0x00][..],
            &[0xff],
            &[0x64, 0x02, 0xff],
            &[0xff, 0xff, 0xff, 0xff],
        ] {
            assert_eq!(decoded(coded), None, "{coded:x?}");
        }
    }

    proptest! {
        #[test]
        fn another_decoder_agrees(coded in prop::collection::vec(any::<u8>(), 0..40)) {
            let theirs = loona_hpack::huffman::HuffmanDecoder::new().decode(&coded);
            prop_assert_eq!(decoded(&coded), theirs.ok());
        }
    }
}
