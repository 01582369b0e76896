//! Header blocks (RFC 7541, section 6) with malformed fields.

use super::huffman;
use crate::wire::http1::grammar::{is_field_byte, is_tchar, is_token};

/// Bits that begin a literal which goes into the table of fields.
const INDEXED_LITERAL: u8 = 0x40;

/// Lengths of the names in the static table, from index 1 on (RFC 7541, appendix A).
#[rustfmt::skip]
const STATIC_NAMES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13, 12, 6, 4, 4,
    6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3, 16,
];

/// Returns the block with each malformed field replaced by one that ends its stream but no other (RFC 9113, section
/// 8.1.1), or of a path, by one that is answered with 400. The new field has the same size in the table of fields, so
/// both sides keep the same table. `None` if all fields are well-formed, or if the block cannot be read, which ends the
/// connection.
pub(super) fn replace_malformed(block: &[u8], scratch: &mut Scratch) -> Option<Vec<u8>> {
    let mut replaced: Option<Vec<u8>> = None;
    let (mut at, mut copied) = (0, 0);
    while at < block.len() {
        let first = block[at];
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            INDEXED_LITERAL.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let start = at;
        let index = integer(block, &mut at, prefix)?;
        if !is_literal {
            continue;
        }
        scratch.name.clear();
        scratch.value.clear();
        if index == 0 {
            string(block, &mut at, &mut scratch.name)?;
        }
        let value_at = at;
        string(block, &mut at, &mut scratch.value)?;
        if is_malformed(index, &scratch.name, &scratch.value) {
            let out = replaced.get_or_insert_default();
            out.extend_from_slice(&block[copied..start]);
            copied = at;
            push_substitute(out, &block[start..value_at], index, scratch)?;
        }
    }
    let mut replaced = replaced?;
    replaced.extend_from_slice(&block[copied..]);
    Some(replaced)
}

/// Decoded strings of a field.
#[derive(Default)]
pub(super) struct Scratch {
    name: Vec<u8>,
    value: Vec<u8>,
}

/// Reads an integer with a prefix of `prefix` bits.
fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let mut next = || {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        Some(byte)
    };
    let most = (1 << prefix) - 1;
    let mut value = next()? & most;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = next()?;
        value += (byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn string(block: &[u8], at: &mut usize, out: &mut Vec<u8>) -> Option<()> {
    let is_coded = block.get(*at)? & 0x80 != 0;
    let length = integer(block, at, 7)?;
    let text = block.get(*at..at.checked_add(length)?)?;
    *at += length;
    if is_coded {
        return huffman::decode(text, out);
    }
    out.extend_from_slice(text);
    Some(())
}

const fn is_path(index: usize, name: &[u8]) -> bool {
    matches!((index, name), (4 | 5, _) | (0, b":path"))
}

/// Whether the crate h2 takes a path. It resets streams with other paths, without a word to us.
fn is_target(text: &[u8]) -> bool {
    let query_at = text.iter().position(|&b| b == b'?').unwrap_or(text.len());
    let (path, query) = text.split_at(query_at);
    let is_bad = |b: &u8| b.is_ascii_control() || matches!(b, b' ' | b'<' | b'>');
    let has_form = text == b"*" || text.starts_with(b"/");
    let has_bad = text.iter().any(is_bad) || path.contains(&b'`') || query.contains(&b'"');
    has_form && !has_bad && std::str::from_utf8(text).is_ok()
}

/// Whether a literal's name or value may not be in a message. `index`: that of the name, 0 where `name` is it.
fn is_malformed(index: usize, name: &[u8], value: &[u8]) -> bool {
    let is_text = || std::str::from_utf8(value).is_ok();
    match (index, name) {
        _ if is_path(index, name) => !is_target(value),
        (1 | 6 | 7, _) | (0, b":authority" | b":scheme" | b":protocol") => !is_text(),
        (2 | 3, _) | (0, b":method") => !is_token(value),
        (8..=14, _) | (0, b":status") => !matches!(value, [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9']),
        (0, name) if name.is_empty() || !name.iter().all(|&b| is_tchar(b) && !b.is_ascii_uppercase()) => true,
        _ => !value.iter().all(|&b| is_field_byte(b)),
    }
}

/// Writes `te: xxx`, which no message may have, as long as the malformed field. Where the length of the name is not
/// known, because an earlier field had it, the value alone changes, and a second field, for this block alone, says that
/// the message is malformed. A path becomes one that h2 takes, and that no request may have.
fn push_substitute(out: &mut Vec<u8>, head: &[u8], index: usize, scratch: &Scratch) -> Option<()> {
    if is_path(index, &scratch.name) {
        out.extend_from_slice(head);
        push_string(out, &vec![b'?'; scratch.value.len()]);
        return Some(());
    }
    let name = match index {
        0 => Some(scratch.name.len()),
        _ => STATIC_NAMES.get(index - 1).map(|&length| usize::from(length)),
    };
    if let Some(name) = name {
        // Shorter than `te`: no substitute has its length.
        let value = (name + scratch.value.len()).checked_sub(2)?;
        out.push(if head[0] & 0xc0 == INDEXED_LITERAL {
            INDEXED_LITERAL
        } else {
            0
        });
        push_string(out, b"te");
        push_string(out, &vec![b'x'; value]);
    } else {
        out.extend_from_slice(head);
        push_string(out, &vec![b'x'; scratch.value.len()]);
        out.push(0);
        push_string(out, b"te");
        push_string(out, b"x");
    }
    Some(())
}

fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text.len();
    if rest < 0x7f {
        out.push(rest as u8);
    } else {
        out.push(0x7f);
        rest -= 0x7f;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    fn read(decoder: &mut loona_hpack::Decoder<'_>, block: &[u8]) -> Fields {
        decoder.decode(block).unwrap()
    }

    fn replace(block: &[u8]) -> Option<Vec<u8>> {
        replace_malformed(block, &mut Scratch::default())
    }

    fn literal(kind: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut block = vec![kind];
        push_string(&mut block, name);
        push_string(&mut block, value);
        block
    }

    #[test]
    fn well_formed_fields_stay_as_they_are() {
        let fields: [(&[u8], &[u8]); 5] = [
            (b":method", b"GET"),
            (b":path", b"/a?b=\xc3\xa4"),
            (b"cookie", b"a=b; c=\td"),
            (b"x-long", &[b'v'; 5000]),
            (b"x-bytes", b"\x80\xff"),
        ];
        assert_eq!(replace(&loona_hpack::Encoder::new().encode(fields)), None);
        // Huffman-coded: `www.example.com`.
        let host = [
            0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(replace(&host), None);
    }

    #[test]
    fn malformed_fields_become_one_that_ends_the_stream() {
        for (name, value) in [
            (&b"x-a"[..], &b"a\x01b"[..]),
            (b"x-a", b"a\x7fb"),
            (b"x-a", b"a\0b"),
            (b"x-a", b"a\r\nb"),
            (b"X-Upper", b"v"),
            (b"x a", b"v"),
            (b"", b"value"),
            (b":unknown", b"v"),
            (b":status", b"2x0"),
            (b":method", b"G T"),
            (b":authority", b"a\xff"),
        ] {
            for kind in [0x40, 0x00, 0x10] {
                let block = literal(kind, name, value);
                let replaced = replace(&block).unwrap_or_else(|| panic!("{name:?}: {value:?}"));
                let fields = read(&mut loona_hpack::Decoder::new(), &replaced);
                let [(te, filler)] = &fields[..] else {
                    panic!("{fields:?}")
                };
                assert_eq!(te, b"te");
                assert_ne!(filler, b"trailers");
                assert_eq!(te.len() + filler.len(), name.len() + value.len());
                assert_eq!(replaced[0] & 0x40, kind & 0x40);
            }
        }
    }

    #[test]
    fn paths_that_h2_would_not_take_become_one_that_is_refused() {
        let named = |path: &[u8]| [&[0x44, path.len() as u8][..], path].concat();
        let paths: [&[u8]; 11] = [
            b"/\xff", b"/a<b", b"/a>b", b"/`", b"/a?\"", b"/a b", b"/\n", b"/?\x7f", b"a", b"?", b"*a",
        ];
        for path in paths {
            for block in [named(path), literal(0x40, b":path", path)] {
                let fields = read(&mut loona_hpack::Decoder::new(), &replace(&block).unwrap());
                assert_eq!(fields, [(b":path".to_vec(), vec![b'?'; path.len()])]);
            }
        }
        for path in ["*", "/", "/\"|^{}\\", "/?`|^{}\\?", "/\u{e4}?\u{e4}"] {
            assert_eq!(replace(&named(path.as_bytes())), None, "{path}");
        }
    }

    /// The table of fields has the same entries at the same places for both sides.
    #[test]
    fn later_blocks_mean_what_they_meant() {
        let mut decoder = loona_hpack::Decoder::new();
        let before = [
            literal(0x40, b"x-good", b"1"),
            literal(0x40, b"X-Bad", b"2"),
            literal(0x40, b"x-last", b"3"),
        ]
        .concat();
        read(&mut decoder, &replace(&before).unwrap());
        // 62 is the newest entry.
        let fields = read(&mut decoder, &[0x80 | 62, 0x80 | 64]);
        assert_eq!(
            fields,
            [(b"x-last".to_vec(), b"3".to_vec()), (b"x-good".to_vec(), b"1".to_vec())]
        );
        // A malformed value under a name of the table, and then a well-formed one.
        let fields = read(&mut decoder, &replace(&literal_at(62, b"a\0b")).unwrap());
        assert_eq!(fields[0], (b"x-last".to_vec(), b"xxx".to_vec()));
        assert_eq!(fields[1].0, b"te");
        let fields = read(&mut decoder, &[0x80 | 63]);
        assert_eq!(fields, [(b"x-last".to_vec(), b"3".to_vec())]);
    }

    fn literal_at(index: u8, value: &[u8]) -> Vec<u8> {
        let mut block = vec![0x40 | index];
        push_string(&mut block, value);
        block
    }

    #[test]
    fn names_of_the_static_table_have_these_lengths() {
        for (index, length) in (1..).zip(STATIC_NAMES) {
            let fields = read(&mut loona_hpack::Decoder::new(), &literal_at(index, b""));
            assert_eq!(fields[0].0.len(), usize::from(length), "{fields:?}");
        }
    }

    #[test]
    fn blocks_that_cannot_be_read_are_left_to_the_reader() {
        for block in [
            &[0x40][..],
            &[0x40, 0x03, b'X'],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x40, 0x01, b'A', 0x81, 0x00],
        ] {
            assert_eq!(replace(block), None, "{block:x?}");
        }
    }
}
