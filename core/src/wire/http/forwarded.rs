//! Fields `X-Forwarded-*` and `Forwarded` (RFC 7239), which name the client and its request, by OpenShift's policies.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::wire::http1::edit::{FieldEdit, FieldName};
use crate::wire::http1::fields::FieldSection;
use crate::wire::http1::grammar::{elements, is_token};

const FORWARDED: FieldName = FieldName::constant("Forwarded");
const FORWARDED_FOR: FieldName = FieldName::constant("X-Forwarded-For");
const FORWARDED_HOST: FieldName = FieldName::constant("X-Forwarded-Host");
const FORWARDED_PORT: FieldName = FieldName::constant("X-Forwarded-Port");
const FORWARDED_PROTO: FieldName = FieldName::constant("X-Forwarded-Proto");
const FORWARDED_PROTO_VERSION: FieldName = FieldName::constant("X-Forwarded-Proto-Version");

/// Policy for the fields: the annotation `set-forwarded-headers` of OpenShift's Routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedPolicy {
    /// Lines are added after those of the request.
    #[default]
    Append,
    /// Each field is set if the request lacks it.
    IfNone,
    /// Nothing is added or removed.
    Never,
    /// Lines that came are replaced.
    Replace,
}

impl ForwardedPolicy {
    /// Word in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::IfNone => "if-none",
            Self::Never => "never",
            Self::Replace => "replace",
        }
    }
}

/// The connection that a request came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop<'a> {
    /// Address of the peer: the client, or a proxy before the balancer.
    pub peer: IpAddr,
    /// Port that the peer connected to.
    pub port: u16,
    /// Whether TLS was terminated.
    pub is_https: bool,
    /// Whether the peer speaks HTTP/2.
    pub is_http2: bool,
    /// Host field as it came, if one did.
    pub host: Option<&'a [u8]>,
}

impl Hop<'_> {
    const fn proto(&self) -> &'static str {
        if self.is_https { "https" } else { "http" }
    }

    /// Element of a Forwarded field (RFC 7239, section 4).
    fn element(&self) -> Vec<u8> {
        let mut element = match self.peer.to_canonical() {
            IpAddr::V4(address) => format!("for={address}"),
            // An IPv6 address needs brackets, and so quotes (section 6).
            IpAddr::V6(address) => format!("for=\"[{address}]\""),
        }
        .into_bytes();
        if let Some(host) = self.host {
            element.extend_from_slice(b";host=");
            push_value(&mut element, host);
        }
        element.extend_from_slice(b";proto=");
        element.extend_from_slice(self.proto().as_bytes());
        element
    }
}

/// Changes that put a hop into the fields of a request. `trusted`: prefixes of the proxies that are believed; fields
/// from other peers are dropped. `None` believes all peers, as the router does.
#[must_use]
pub fn edits(
    policy: ForwardedPolicy,
    trusted: Option<&[IpNet]>,
    hop: &Hop<'_>,
    fields: &FieldSection,
    buffer: &[u8],
) -> Vec<FieldEdit> {
    if policy == ForwardedPolicy::Never {
        return Vec::new();
    }
    let is_believed = trusted.is_none_or(|trusted| is_in(trusted, hop.peer));
    let policy = if is_believed { policy } else { ForwardedPolicy::Replace };
    let version = hop.is_http2.then(|| b"h2".to_vec());
    let lines = [
        (FORWARDED_FOR, Some(hop.peer.to_canonical().to_string().into_bytes())),
        (FORWARDED_HOST, hop.host.map(<[u8]>::to_vec)),
        (FORWARDED_PORT, Some(hop.port.to_string().into_bytes())),
        (FORWARDED_PROTO, Some(hop.proto().as_bytes().to_vec())),
        (FORWARDED_PROTO_VERSION, version),
        (FORWARDED, Some(hop.element())),
    ];
    let edit = |(name, value): (FieldName, Option<Vec<u8>>)| match (policy, value) {
        (ForwardedPolicy::Append, Some(value)) => Some(FieldEdit::Add(name, value)),
        (ForwardedPolicy::IfNone, Some(value)) => {
            (!fields.has(buffer, name.as_str())).then_some(FieldEdit::Add(name, value))
        }
        (ForwardedPolicy::Replace, Some(value)) => Some(FieldEdit::Set(name, value)),
        (ForwardedPolicy::Replace, None) => Some(FieldEdit::Remove(name)),
        _ => None,
    };
    lines.into_iter().filter_map(edit).collect()
}

/// Address of the client behind trusted proxies: of X-Forwarded-For, read from its end, the first address that is no
/// trusted proxy's. The peer's own if that is not trusted; the last one understood where an element is no address.
#[must_use]
pub fn client_address(peer: IpAddr, trusted: &[IpNet], fields: &FieldSection, buffer: &[u8]) -> IpAddr {
    let said: Vec<&[u8]> = fields.values(buffer, "x-forwarded-for").flat_map(elements).collect();
    let mut address = peer.to_canonical();
    for element in said.into_iter().rev() {
        if !is_in(trusted, address) {
            break;
        }
        match parse_address(element) {
            Some(before) => address = before,
            None => break,
        }
    }
    address
}

fn is_in(prefixes: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    prefixes.iter().any(|prefix| prefix.contains(&address))
}

/// Address in an element: `192.0.2.1`, `2001:db8::1`, `[2001:db8::1]`, each also with a port.
fn parse_address(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let address = bare.parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    address.map(|address| address.to_canonical())
}

/// Adds a token, or anything else as a quoted string (RFC 9110, section 5.6.4).
fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    if is_token(value) {
        return out.extend_from_slice(value);
    }
    out.push(b'"');
    for &byte in value {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests;
