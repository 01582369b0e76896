//! ClientHello messages by hand: with the post-quantum key share that makes real ones longer than a segment.

/// A ClientHello handshake message as current browsers send it, with X25519MLKEM768 first; `None` for no SNI.
pub(crate) fn client_hello(sni: Option<&str>) -> Vec<u8> {
    hello(sni, true)
}

/// A ClientHello of a client without post-quantum key shares: it fits a segment.
pub(crate) fn short_client_hello(sni: &str) -> Vec<u8> {
    hello(Some(sni), false)
}

fn hello(sni: Option<&str>, is_long: bool) -> Vec<u8> {
    let mut extensions = Vec::new();
    if let Some(name) = sni {
        let entry = [&[0][..], &with_len16(name.as_bytes())].concat();
        extensions.extend(extension(0, &with_len16(&entry)));
    }
    extensions.extend(extension(10, &with_len16(&[0x11, 0xec, 0x00, 0x1d, 0x00, 0x17])));
    extensions.extend(extension(11, &[1, 0]));
    extensions.extend(extension(13, &with_len16(&[4, 3, 8, 4, 4, 1, 5, 3, 8, 5, 5, 1])));
    let alpn = [&[2][..], b"h2", &[8], b"http/1.1"].concat();
    extensions.extend(extension(16, &with_len16(&alpn)));
    extensions.extend(extension(43, &[2, 3, 4]));
    extensions.extend(extension(45, &[1, 1]));
    // Encrypted ClientHello as browsers send it for GREASE: with it the message does not fit a segment.
    let sealed_bytes = if is_long { 208 } else { 16 };
    let sealed = [with_len16(&pattern(32)), with_len16(&pattern(sealed_bytes))].concat();
    extensions.extend(extension(0xfe0d, &[&[0, 0, 1, 0, 1, 0x2a][..], &sealed].concat()));
    let share = |group: u16, len: usize| [&group.to_be_bytes()[..], &with_len16(&pattern(len))].concat();
    let mut shares = share(0x001d, 32);
    if is_long {
        shares = [share(0x11ec, 1216), shares].concat();
    }
    extensions.extend(extension(51, &with_len16(&shares)));

    let mut body = vec![3, 3];
    body.extend(pattern(32));
    body.push(32);
    body.extend(pattern(32));
    body.extend(with_len16(&[0x13, 1, 0x13, 2, 0x13, 3, 0xc0, 0x2b]));
    body.extend([1, 0]);
    body.extend(with_len16(&extensions));

    let mut message = vec![1];
    message.extend(&(body.len() as u32).to_be_bytes()[1..]);
    message.extend(body);
    message
}

/// A handshake message in `count` TLS records of about the same length.
pub(crate) fn records(message: &[u8], count: usize) -> Vec<u8> {
    let each = message.len().div_ceil(count);
    let record = |part: &[u8]| [&[22, 3, 1][..], &with_len16(part)].concat();
    message.chunks(each).flat_map(record).collect()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &with_len16(body)].concat()
}

fn with_len16(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u16).to_be_bytes()[..], body].concat()
}

/// Bytes that show where they belong.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 3) as u8).collect()
}
