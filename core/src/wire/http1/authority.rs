//! Host and port that a request is for: the Host field, or the authority of its target (RFC 9112, section 3.2).

use crate::wire::hostname::Hostname;

/// Authority of a request: `host`, `host:port`, `[v6]` or `[v6]:port`; never with user information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Host name; `None` for an IPv6 address and for an empty Host field, which no route has.
    pub hostname: Option<Hostname>,
    /// Port, where one is written.
    pub port: Option<u16>,
    /// IPv6 address between brackets.
    v6: Option<std::net::Ipv6Addr>,
}

impl Authority {
    /// Parses an authority; `None` if it is none. Empty text is an authority without a host.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        if let Some(rest) = text.strip_prefix(b"[") {
            let end = rest.iter().position(|&b| b == b']')?;
            let (address, rest) = (&rest[..end], &rest[end + 1..]);
            return Some(Self {
                hostname: None,
                port: port(rest)?,
                v6: Some(std::str::from_utf8(address).ok()?.parse().ok()?),
            });
        }
        let end = text.iter().position(|&b| b == b':').unwrap_or(text.len());
        let (host, rest) = text.split_at(end);
        let hostname = match host {
            b"" if rest.is_empty() => None,
            host => Some(Hostname::parse(host).ok()?),
        };
        Some(Self {
            hostname,
            port: port(rest)?,
            v6: None,
        })
    }

    /// Whether both name the same host and, where a port that is not written is the default one, the same port.
    #[must_use]
    pub fn agrees_with(&self, other: &Self, default_port: u16) -> bool {
        let port = |authority: &Self| authority.port.unwrap_or(default_port);
        self.hostname == other.hostname && self.v6 == other.v6 && port(self) == port(other)
    }

    /// Whether no host is named at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.hostname.is_none() && self.v6.is_none()
    }
}

/// Port of `:8080`; `Some(None)` of nothing and of a colon alone, as RFC 3986, section 3.2.3 has it.
#[expect(clippy::option_option, reason = "a missing port and a bad one are different things")]
fn port(text: &[u8]) -> Option<Option<u16>> {
    match text {
        b"" | b":" => Some(None),
        [b':', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => {
            let port = std::str::from_utf8(digits).ok()?.parse().ok()?;
            Some(Some(port))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_names_addresses_and_ports() {
        let parse = |text: &str| Authority::parse(text.as_bytes());
        let named = |text: &str| parse(text).unwrap().hostname.unwrap().as_str().to_owned();
        assert_eq!(named("App.Example.com:8080"), "app.example.com");
        assert_eq!(parse("a.test:8080").unwrap().port, Some(8080));
        assert_eq!(parse("a.test:").unwrap().port, None);
        assert_eq!(parse("[2001:db8::1]:443").unwrap().port, Some(443));
        assert!(parse("").unwrap().is_empty());
        assert!(!parse("[::1]").unwrap().is_empty());
        for bad in [
            "a b",
            "user@a.test",
            "a.test:70000",
            "a.test:+1",
            "a.test:1:2",
            "[::1",
            "[::1]x",
            "[fe80::1%25eth0]",
            ":80",
            "a.test,b.test",
            "a/b",
            "a..b",
            "b\u{fc}cher",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_port_that_is_not_written_is_the_default_one() {
        let agree = |a: &str, b: &str| {
            let parse = |text: &str| Authority::parse(text.as_bytes()).unwrap();
            parse(a).agrees_with(&parse(b), 80)
        };
        assert!(agree("a.test", "A.TEST.:80"));
        assert!(agree("[::1]", "[0:0::1]:80"));
        assert!(!agree("a.test", "a.test:443"));
        assert!(!agree("a.test", ""));
        assert!(!agree("a.test", "b.test"));
    }
}
