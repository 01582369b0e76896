//! Repair of an answer's head that breaks rules which other balancers do not mind, for hosts whose operator asks for it:
//! lines that end in LF alone, folded lines, a length beside chunks, the same length twice, `chunked` twice.
//!
//! Never of a request: one that its sender and the host read differently can be used to smuggle another. The repaired
//! head is parsed as strictly as any other.

use super::grammar::is_ows;

/// Head of an answer as it should have been written, and how many bytes it had; `None`: it is not whole.
#[must_use]
pub fn answer_head(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut lines, used) = unfolded(bytes)?;
    repair_length(&mut lines);
    let mut text = Vec::with_capacity(used);
    for line in lines.iter().map(Vec::as_slice).chain([&b""[..]]) {
        text.extend_from_slice(line);
        text.extend_from_slice(b"\r\n");
    }
    Some((text, used))
}

/// Lines of a head without their ends and without the empty one, folded ones joined (RFC 9112, section 5.2), and the
/// number of bytes up to the body.
fn unfolded(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (mut lines, mut at): (Vec<Vec<u8>>, _) = (Vec::new(), 0);
    loop {
        let length = bytes[at..].iter().position(|&b| b == b'\n')?;
        let line = &bytes[at..at + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        at += length + 1;
        let has_field = lines.len() > 1;
        match line.first() {
            None => return Some((lines, at)),
            Some(first) if is_ows(*first) && has_field => {
                let last = lines.last_mut()?;
                last.truncate(last.iter().rposition(|&b| !is_ows(b)).map_or(0, |end| end + 1));
                last.push(b' ');
                last.extend(line.iter().copied().skip_while(|&b| is_ows(b)));
            }
            Some(_) => lines.push(line.to_vec()),
        }
    }
}

/// Removes lengths beside a Transfer-Encoding (RFC 9112, section 6.3), and all but one that say the same. Lines that
/// say `chunked` and nothing else are reduced to the first.
fn repair_length(lines: &mut Vec<Vec<u8>>) {
    const LENGTH: &str = "content-length";
    const ENCODING: &str = "transfer-encoding";
    if lines.iter().any(|line| value(line, ENCODING).is_some()) {
        let mut has_chunks = false;
        lines.retain(|line| {
            let coding = value(line, ENCODING).map(<[u8]>::trim_ascii);
            let is_chunked = coding.is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"));
            let is_repeated = is_chunked && std::mem::replace(&mut has_chunks, true);
            !is_repeated && value(line, LENGTH).is_none()
        });
        return;
    }
    let all = lines.iter().filter_map(|line| value(line, LENGTH));
    let mut all = all
        .flat_map(|value| value.split(|&b| b == b','))
        .map(<[u8]>::trim_ascii);
    let Some(first) = all.next().map(<[u8]>::to_vec) else {
        return;
    };
    if !all.all(|other| other == first) {
        return;
    }
    let mut only = Some([b"Content-Length: ", &first[..]].concat());
    lines.retain_mut(|line| {
        if value(line, LENGTH).is_none() {
            return true;
        }
        let kept = only.take();
        let is_first = kept.is_some();
        *line = kept.unwrap_or_default();
        is_first
    });
}

/// Value of a field line, if its name is this one.
fn value<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (own, value) = line.split_at_checked(name.len())?;
    let value = value.strip_prefix(b":")?;
    own.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::super::framing::{self, AnswerKind, BodyLength};
    use super::super::limits::MessageLimits;
    use super::super::method::Method;
    use super::super::parse;
    use super::*;

    fn repaired(text: &str) -> String {
        let (head, used) = answer_head(text.as_bytes()).unwrap();
        assert_eq!(&text.as_bytes()[used..], b"body", "{text:?}");
        String::from_utf8(head).unwrap()
    }

    fn kind(head: &str) -> Result<AnswerKind, String> {
        let parsed = parse::response(head.as_bytes(), &MessageLimits::default()).map_err(|fault| fault.to_string())?;
        let parsed = parsed.ok_or("incomplete")?;
        framing::answer(&parsed, head.as_bytes(), Method::Get).map_err(|fault| fault.to_string())
    }

    #[test]
    fn answers_that_haproxy_tolerates_are_repaired_to_a_valid_head() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let known = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
        for (text, expected) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nTransfer-Encoding: chunked\r\n\r\nbody",
                chunked,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\ntransfer-encoding:Chunked \r\n\r\nbody",
                chunked,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length:4\r\n\r\nbody",
                known,
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 4, 4\r\n\r\nbody", known),
            ("HTTP/1.1 200 OK\nContent-Length: 4\n\nbody", known),
            (
                "HTTP/1.1 200 OK\r\nX: a \r\n \t b\r\n\tc\r\nTransfer-Encoding:\r\n chunked\r\n\r\nbody",
                "HTTP/1.1 200 OK\r\nX: a b c\r\nTransfer-Encoding: chunked\r\n\r\n",
            ),
        ] {
            let head = repaired(text);
            assert_eq!(head, expected, "{text:?}");
            let length = if head.contains("chunked") {
                BodyLength::Chunked
            } else {
                BodyLength::Known(4)
            };
            assert_eq!(kind(&head), Ok(AnswerKind::Final(length)), "{text:?}");
        }
    }

    #[test]
    fn ambiguous_answers_stay_refused_after_repair() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n 5\r\n\r\nbody",
            "HTTP/1.1 200 OK\r\n X: folded\r\n\r\nbody",
            "HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\nbody",
            "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\nbody",
            "HTTP/1.0 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nbody",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nContent-Length: 4\r\n\r\nbody",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\nbody",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\nbody",
            "\r\nbody",
        ] {
            assert!(kind(&repaired(text)).is_err(), "{text:?}");
        }
        for text in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nX: a\r\n "] {
            assert_eq!(answer_head(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_right_head_stays_as_it_is() {
        for head in [
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX:y\r\n\r\n",
            "HTTP/1.1 103 Early\r\n\r\n",
        ] {
            assert_eq!(repaired(&format!("{head}body")), head);
        }
    }
}
