//! The cookie that keeps a client at its cluster or host (RFC 6265), hidden from the host as HAProxy's
//! `cookie insert indirect` hides it. Cookies of others are left as they are.

use serde::{Deserialize, Serialize};

use crate::wire::http1::edit::{FieldEdit, FieldName};
use crate::wire::http1::fields::FieldSection;
use crate::wire::http1::grammar::{is_token, trim_ows};

const COOKIE: FieldName = FieldName::constant("Cookie");
const SET_COOKIE: FieldName = FieldName::constant("Set-Cookie");

/// To which requests of other sites a browser adds a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SameSite {
    /// To links that are followed.
    Lax,
    /// To all; browsers want `Secure` with it.
    None,
    /// To none.
    Strict,
}

impl SameSite {
    /// All of them, with their words in the configuration.
    pub const ALL: [(&'static str, Self); 3] = [("lax", Self::Lax), ("none", Self::None), ("strict", Self::Strict)];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Lax => "Lax",
            Self::None => "None",
            Self::Strict => "Strict",
        }
    }
}

/// A sticky cookie of a route.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StickyCookie {
    name: Box<str>,
    same_site: Option<SameSite>,
}

impl StickyCookie {
    /// Cookie of a name; `None` if that is no token.
    #[must_use]
    pub fn new(name: &str, same_site: Option<SameSite>) -> Option<Self> {
        is_token(name.as_bytes()).then(|| Self {
            name: name.into(),
            same_site,
        })
    }

    /// Name of the cookie.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Values that a request brings, without quotes around them. Browsers send cookies of the name that they have for
    /// other paths or domains, too (RFC 6265, section 5.4).
    pub fn values<'b>(&self, fields: &FieldSection, buffer: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        let pairs = fields.values(buffer, "cookie").flat_map(pairs);
        pairs.filter_map(|pair| self.value_of(pair)).map(|value| {
            let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
            quoted.unwrap_or(value)
        })
    }

    /// Change that hides the cookie from the host; `None` if the request has none of the name.
    #[must_use]
    pub fn hide(&self, fields: &FieldSection, buffer: &[u8]) -> Option<FieldEdit> {
        let all = || fields.values(buffer, "cookie").flat_map(pairs);
        all().find(|pair| self.value_of(pair).is_some())?;
        let others: Vec<&[u8]> = all().filter(|pair| self.value_of(pair).is_none()).collect();
        Some(if others.is_empty() {
            FieldEdit::Remove(COOKIE)
        } else {
            FieldEdit::Set(COOKIE, others.join(&b"; "[..]))
        })
    }

    /// Set-Cookie field that gives a client a value, for the browser's session and the paths below a path; `None` if
    /// the value has characters that no cookie may have (RFC 6265, section 4.1.1). A path that no attribute may hold
    /// becomes `/`. `is_secure`: browsers send the cookie over TLS only; without it they refuse `SameSite=None`, which
    /// is then left out.
    #[must_use]
    pub fn set(&self, value: &str, path: &str, is_secure: bool) -> Option<FieldEdit> {
        let is_octet = |b: &u8| b.is_ascii_graphic() && !matches!(b, b'"' | b',' | b';' | b'\\');
        if !value.as_bytes().iter().all(is_octet) {
            return None;
        }
        let is_path = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && b != b';');
        let path = if is_path { path } else { "/" };
        let mut text = format!("{}={value}; Path={path}; HttpOnly", self.name);
        if is_secure {
            text.push_str("; Secure");
        }
        let same_site = self
            .same_site
            .filter(|same_site| is_secure || *same_site != SameSite::None);
        if let Some(same_site) = same_site {
            text.push_str("; SameSite=");
            text.push_str(same_site.as_str());
        }
        Some(FieldEdit::Add(SET_COOKIE, text.into_bytes()))
    }

    /// Value of a pair, if it is the cookie's. Names of cookies are case-sensitive.
    fn value_of<'b>(&self, pair: &'b [u8]) -> Option<&'b [u8]> {
        let rest = pair.strip_prefix(self.name.as_bytes())?;
        trim_ows(rest).strip_prefix(b"=").map(trim_ows)
    }
}

/// `name=value` pairs of a Cookie field.
fn pairs(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    field
        .split(|&b| b == b';')
        .map(trim_ows)
        .filter(|pair| !pair.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::http1::limits::MessageLimits;
    use crate::wire::http1::parse::{self, ParsedRequest};

    fn sb() -> StickyCookie {
        StickyCookie::new("sb", Some(SameSite::Lax)).unwrap()
    }

    fn of<T>(cookies: &[&str], run: impl FnOnce(&FieldSection, &[u8]) -> T) -> T {
        let lines: String = cookies.iter().map(|cookie| format!("Cookie: {cookie}\r\n")).collect();
        let text = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n");
        match parse::request(text.as_bytes(), &MessageLimits::default()) {
            Ok(ParsedRequest::Head(head)) => run(&head.fields, text.as_bytes()),
            outcome => panic!("{text:?}: {outcome:?}"),
        }
    }

    fn values(cookies: &[&str]) -> Vec<String> {
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        of(cookies, |fields, buffer| {
            sb().values(fields, buffer).map(text).collect()
        })
    }

    #[test]
    fn the_values_are_found_among_others() {
        for (cookies, expected) in [
            (&["a=1; sb=x7; c=2"][..], &["x7"][..]),
            (&["a=1", "sb=x7", "sb=\"y\""], &["x7", "y"]),
            (&["sb=\"x7\""], &["x7"]),
            (&["sb=x=7;sb=y"], &["x=7", "y"]),
            (&["sb="], &[""]),
            (&[" sb = x7 "], &["x7"]),
            (&["sbx=1; xsb=2; SB=3; a=sb=4; sb"], &[]),
            (&[], &[]),
        ] {
            assert_eq!(values(cookies), expected, "{cookies:?}");
        }
    }

    #[test]
    fn the_cookie_is_hidden_and_others_stay() {
        let hidden = |cookies: &[&str]| of(cookies, |fields, buffer| sb().hide(fields, buffer));
        let rest = |text: &str| Some(FieldEdit::Set(COOKIE, text.into()));
        assert_eq!(hidden(&["a=1; sb=x; b=\"2; 3\"; sb=y"]), rest("a=1; b=\"2; 3\""));
        assert_eq!(hidden(&["a=1", "sb=x", "b=2"]), rest("a=1; b=2"));
        assert_eq!(hidden(&["sb=x"]), Some(FieldEdit::Remove(COOKIE)));
        assert_eq!(hidden(&["a=1;b=2"]), None);
    }

    #[test]
    fn a_cookie_is_set_for_the_session_and_read_again() {
        let set = |cookie: &StickyCookie, value: &str| cookie.set(value, "/", true);
        let text = |text: &str| Some(FieldEdit::Add(SET_COOKIE, text.into()));
        assert_eq!(set(&sb(), "x7"), text("sb=x7; Path=/; HttpOnly; Secure; SameSite=Lax"));
        let plain = StickyCookie::new("JSESSION-1_a", Some(SameSite::None)).unwrap();
        for (path, is_secure, rest) in [
            ("/", false, "Path=/; HttpOnly"),
            ("/api", true, "Path=/api; HttpOnly; Secure; SameSite=None"),
            ("/a;b", false, "Path=/; HttpOnly"),
            ("", false, "Path=/; HttpOnly"),
        ] {
            let expected = text(&format!("JSESSION-1_a=x; {rest}"));
            assert_eq!(plain.set("x", path, is_secure), expected, "{path}");
        }
        assert_eq!(values(&["sb=x7"]), ["x7"]);
        for bad in ["a b", "a;b", "a,b", "a\"", "a\r\n", "\u{fc}"] {
            assert_eq!(set(&sb(), bad), None, "{bad:?}");
        }
        assert_eq!(StickyCookie::new("a=b", None), None);
        assert_eq!(StickyCookie::new("", None), None);
    }
}
