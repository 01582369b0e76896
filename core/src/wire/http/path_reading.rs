//! Readings of a request's path that a host may have of it: with parameters dropped, escapes decoded, slashes merged, dot
//! segments resolved. Routes are found by the bytes of a path, and a host may serve another one then.

/// Steps of a reading, in the order in which they are taken.
const DROPS_PARAMETERS: u8 = 1;
const DECODES: u8 = 2;
const MERGES: u8 = 4;
const RESOLVES: u8 = 8;

/// Readings of a path that differ from its bytes; none if all hosts read it in one way.
pub fn readings(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let all = DROPS_PARAMETERS | DECODES | MERGES | RESOLVES;
    let last = if is_plain(path) { 0 } else { all };
    (1..=last).map(move |steps| read(path, steps))
}

/// Path as RFC 3986, section 6.2.2, has it, with slashes merged: letters, digits and `-._~` are not escaped, and no dot
/// segment is left. Other escapes stay. `None`: the path is so already.
#[must_use]
pub fn normalize(path: &[u8]) -> Option<Vec<u8>> {
    if is_plain(path) {
        return None;
    }
    let is_unreserved = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    let mut text = decoded(path, is_unreserved);
    merge_slashes(&mut text);
    Some(resolved(&text)).filter(|text| text != path)
}

/// Whether a path has none of the characters that make a difference.
fn is_plain(path: &[u8]) -> bool {
    !path.iter().any(|b| matches!(b, b'%' | b';' | b'\\')) && !path.windows(2).any(|pair| matches!(pair, b"//" | b"/."))
}

fn read(path: &[u8], steps: u8) -> Vec<u8> {
    let takes = |step| steps & step != 0;
    let mut text = path.to_vec();
    if takes(DROPS_PARAMETERS) {
        text = without_parameters(&text);
    }
    if takes(DECODES) {
        text = decoded(&text, |_| true);
        // A backslash is a slash to some, and a NUL the end.
        text.iter_mut().filter(|b| **b == b'\\').for_each(|b| *b = b'/');
        text.truncate(text.iter().position(|b| *b == 0).unwrap_or(text.len()));
    }
    if takes(MERGES) {
        merge_slashes(&mut text);
    }
    if takes(RESOLVES) { resolved(&text) } else { text }
}

/// Decodes escapes once, those of the bytes that are wanted.
fn decoded(path: &[u8], is_wanted: impl Fn(u8) -> bool) -> Vec<u8> {
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (mut out, mut rest) = (Vec::with_capacity(path.len()), path);
    while let [first, behind @ ..] = rest {
        let escaped = match rest {
            [b'%', high, low, ..] => digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        if let Some(byte) = escaped.filter(|byte| is_wanted(*byte)) {
            out.push(byte);
            rest = &rest[3..];
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    out
}

/// Drops the text after the first semicolon of each segment, as Java's servers do.
fn without_parameters(path: &[u8]) -> Vec<u8> {
    let segments = path.split(|&b| b == b'/');
    let kept = segments.map(|segment| segment.split(|&b| b == b';').next().unwrap_or_default());
    kept.collect::<Vec<_>>().join(&b'/')
}

fn merge_slashes(path: &mut Vec<u8>) {
    path.dedup_by(|next, last| (*next, *last) == (b'/', b'/'));
}

/// Removes dot segments (RFC 3986, section 5.2.4). Nothing is above the root.
fn resolved(path: &[u8]) -> Vec<u8> {
    let Some(inner) = path.strip_prefix(b"/") else {
        return path.to_vec();
    };
    let mut kept: Vec<&[u8]> = vec![b""];
    let mut is_open = false;
    for segment in inner.split(|&b| b == b'/') {
        is_open = matches!(segment, b"." | b"..");
        match segment {
            b"." => {}
            b".." if kept.len() > 1 => drop(kept.pop()),
            b".." => {}
            segment => kept.push(segment),
        }
    }
    if is_open {
        kept.push(b"");
    }
    kept.join(&b'/')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_is_normalized_as_rfc_3986_has_it() {
        for (path, expected) in [
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/%6cogin", "/login"),
            ("/x/../login", "/login"),
            ("/%2e%2E/login//", "/login/"),
            ("/../../a", "/a"),
            ("/a/.", "/a/"),
            ("/a/..", "/"),
            ("/a/b/../%7Eme", "/a/~me"),
            ("/a%2fb//c", "/a%2fb/c"),
            ("/%%36c/./", "/%6c/"),
        ] {
            let found = normalize(path.as_bytes()).map(|path| String::from_utf8(path).unwrap());
            assert_eq!(found.as_deref(), Some(expected), "{path}");
        }
        for path in [
            "/",
            "*",
            "",
            "/a/",
            "/a%20b",
            "/.well-known/x",
            "/a.b/..c/...",
            "/a;b",
            "/%zz",
            "/a%",
        ] {
            assert_eq!(normalize(path.as_bytes()), None, "{path}");
        }
    }

    #[test]
    fn a_host_may_read_another_path() {
        for path in [
            "//login",
            "/./login",
            "/%6cogin",
            "/x/../login",
            "/x%2f..%2Flogin",
            "/x\\..\\login",
            "/x/..;/login",
            "/login;x",
            "/login%00.png",
            "/x/%2e%2e;y//login",
        ] {
            let mut all = readings(path.as_bytes());
            assert!(all.any(|reading| reading == b"/login"), "{path}");
        }
        for path in ["/", "*", "", "/login", "/a.b/c"] {
            assert_eq!(readings(path.as_bytes()).count(), 0, "{path}");
        }
    }

    #[test]
    fn escapes_are_decoded_once() {
        let twice = b"/x/%252e%252e/login".as_slice();
        assert_eq!(normalize(twice), None);
        let all: Vec<_> = readings(twice).collect();
        assert!(all.contains(&b"/x/%2e%2e/login".to_vec()) && !all.contains(&b"/login".to_vec()));
    }

    proptest! {
        #[test]
        fn a_normalized_path_has_no_dot_segment_or_double_slash(path in "(/|[a.;%]|%2[eEfF]|%6c){0,12}") {
            let path = format!("/{path}");
            let found = normalize(path.as_bytes()).unwrap_or_else(|| path.into_bytes());
            prop_assert!(found.starts_with(b"/") && !found.windows(2).any(|pair| pair == b"//"));
            prop_assert!(!found.split(|&b| b == b'/').any(|segment| matches!(segment, b"." | b"..")));
        }
    }
}
