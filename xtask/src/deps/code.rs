//! Source text with comments and literals blanked, so that a rule about code does not stumble over prose.

/// Blanks comments and literals; the result is as long as `text`, line by line.
pub(super) fn only_code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blank = blank_len(rest, out.chars().next_back());
        let (piece, after) = rest.split_at(if blank > 0 { blank } else { first.len_utf8() });
        if blank > 0 {
            out.extend(piece.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            out.push(first);
        }
        rest = after;
    }
    out
}

/// Number of bytes at the start of `rest` that are a comment or a literal.
fn blank_len(rest: &str, before: Option<char>) -> usize {
    let in_ident = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    match rest.as_bytes() {
        [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => string(rest),
        [b'\'', ..] => char_literal(rest),
        // An `r` that ends a name (`for`, `attr`) starts no raw string.
        [b'r', b'"' | b'#', ..] if !in_ident => raw_string(rest),
        _ => 0,
    }
}

/// Length of a block comment. These nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        match rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of a raw string, `r"..."` or `r#"..."#`; a raw identifier (`r#type`) is none.
fn raw_string(rest: &str) -> usize {
    let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
    let body = 1 + hashes;
    if !rest[body..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    rest[body + 1..]
        .find(&end)
        .map_or(rest.len(), |at| body + 1 + at + end.len())
}

/// Length of a character literal, `'x'` or `'\n'`; a lifetime is none.
fn char_literal(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((escaped, c))) => {
            let after = escaped + c.len_utf8();
            rest[after..].find('\'').map_or(0, |at| after + at + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_blanked_and_code_stays() {
        for (text, code) in [
            ("a // b", "a"),
            ("a /* b /* c */ d */ e", "a e"),
            (r#"a "b \" c" d"#, "a d"),
            (r###"a r#"b " c"# d"###, "a d"),
            ("for \"x\" r#type", "for r#type"),
            (r"'\'' a '\u{1F600}' b '/' /", "a b /"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("b\"x\" é 'é'", "b é"),
        ] {
            let blanked = only_code(text);
            assert_eq!(blanked.split_whitespace().collect::<Vec<_>>().join(" "), code, "{text}");
        }
    }

    #[test]
    fn lines_keep_their_numbers() {
        assert_eq!(only_code("/* a\nb */\n\"c\nd\"\ne").lines().count(), 5);
    }
}
