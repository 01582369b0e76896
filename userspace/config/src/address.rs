//! Addresses that listeners listen on: parsing them, and which address and port is taken.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use signalbox_core::model::Bind;

use super::node::{NodeRef, Position};
use super::report::{Report, quote};

const BIND_EXAMPLES: &str = "such as 10.1.0.1:80, [fd00:1::1]:80, 10.9.0.0/24:80, [fd00:9::/64]:80 or *:80";

/// Owner of each taken address and port, with the place where the owner is written, unless the address is a default.
#[derive(Default)]
pub(super) struct BindOwners {
    taken: HashMap<Bind, (String, Option<Position>)>,
    admin: Option<SocketAddr>,
}

impl BindOwners {
    /// Takes the address of the admin API, before all others.
    pub(super) fn claim_admin(&mut self, at: SocketAddr, spot: Option<Position>) {
        let bind = Bind {
            prefix: IpNet::from(at.ip()),
            port: at.port(),
        };
        self.taken.insert(bind, ("admin.listen".to_owned(), spot));
        self.admin = Some(at);
    }

    /// Takes an address and port; the error names the owner that has it already.
    pub(super) fn claim(&mut self, bind: Bind, owner: &str, spot: Option<Position>) -> Result<(), String> {
        if let Some(admin) = self.admin.filter(|admin| bind.port == admin.port())
            && bind.prefix.contains(&admin.ip())
            && bind.single() != Some(admin)
        {
            return Err(format!(
                "{bind} covers {admin}, the address of the admin API, which clients could no longer reach: give \
                 `admin.listen` another port, or list other addresses here"
            ));
        }
        if let Some((other, at)) = self.taken.get(&bind) {
            let at = at.map_or_else(|| "by default".to_owned(), |at| format!("on line {}", at.line));
            return Err(format!("{bind} is already used by {other} {at}"));
        }
        self.taken.insert(bind, (owner.to_owned(), spot));
        Ok(())
    }
}

/// Binds that an address of a listener means; `*:80` is two.
pub(super) fn binds(text: &str) -> Result<Vec<Bind>, String> {
    let shown = quote(text);
    if let Some((address, port)) = without_brackets(text) {
        return Err(format!(
            "{shown} has no brackets: write [{address}]:{port}, or [{text}]:80 if {text} is the address"
        ));
    }
    if let Some(whole) = without_port(text) {
        let example = if whole.contains(':') {
            format!("[{whole}]:80")
        } else {
            format!("{whole}:80")
        };
        return Err(format!("{shown} has no port: write {example}"));
    }
    let Some((place, port)) = text.rsplit_once(':') else {
        return Err(format!("{shown} is not an address with a port, {BIND_EXAMPLES}"));
    };
    if is_hostname(place) {
        return Err(format!(
            "{shown} is not an address with a port, {BIND_EXAMPLES}: names are not looked up, write the address"
        ));
    }
    let port = match port.parse::<u16>() {
        Ok(number) if number > 0 && port.bytes().all(|b| b.is_ascii_digit()) => number,
        _ => {
            return Err(format!(
                "{shown} needs a port from 1 to 65535 after the last colon, {BIND_EXAMPLES}"
            ));
        }
    };
    let prefixes = match place {
        "" | "*" => vec![IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())],
        _ => {
            let inner = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let net = any_or_prefix(inner.unwrap_or(place)).map_err(|problem| match problem {
                None => format!("{shown} is not an address with a port, {BIND_EXAMPLES}"),
                Some(problem) => problem,
            })?;
            match (net, inner) {
                (IpNet::V6(_), None) => return Err(format!("{shown}: write IPv6 in brackets: [{place}]:{port}")),
                (IpNet::V4(_), Some(inner)) => {
                    return Err(format!("{shown}: write IPv4 without brackets: {inner}:{port}"));
                }
                _ if is_of_no_machine(net.addr()) => {
                    return Err(format!(
                        "{shown} is a multicast or broadcast address: write an address of this machine"
                    ));
                }
                _ => vec![net],
            }
        }
    };
    Ok(prefixes.into_iter().map(|prefix| Bind { prefix, port }).collect())
}

/// IPv6 address and port that lack their brackets, such as `fd00::1:80`. The text is an address itself, but probably a
/// mistake.
fn without_brackets(text: &str) -> Option<(Ipv6Addr, u16)> {
    text.parse::<Ipv6Addr>().ok()?;
    let (address, port) = text.rsplit_once(':')?;
    Some((address.parse().ok()?, port.parse().ok().filter(|port| *port > 0)?))
}

/// Whether a text is written as a name, not as an address.
pub(super) fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    text.bytes().any(|b| b.is_ascii_alphabetic()) && text.split('.').all(is_label)
}

/// Whether an address of this kind can never be a machine's own.
pub(super) fn is_of_no_machine(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Address or prefix of the text, if the text has nothing else.
fn without_port(text: &str) -> Option<&str> {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    (inner.parse::<IpAddr>().is_ok() || inner.parse::<IpNet>().is_ok()).then_some(inner)
}

/// Parses as [`prefix`] does, but 0.0.0.0 and :: alone mean every address, as in a bind call.
fn any_or_prefix(text: &str) -> Result<IpNet, Option<String>> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => Ok(IpNet::V4(Ipv4Net::default())),
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => Ok(IpNet::V6(Ipv6Net::default())),
        _ => prefix(text),
    }
}

/// Parses a prefix, or an address as the prefix of only itself. `Err(None)`: the text is neither.
fn prefix(text: &str) -> Result<IpNet, Option<String>> {
    let net = match text.parse::<IpAddr>() {
        Ok(ip) => IpNet::from(ip),
        Err(_) => text.parse::<IpNet>().map_err(|_| wrong_length(text))?,
    };
    if let IpNet::V6(v6) = net
        && v6.prefix_len() >= 96
        && let Some(v4) = v6.addr().to_ipv4_mapped()
    {
        let length = v6.prefix_len() - 96;
        let right = if length == 32 {
            v4.to_string()
        } else {
            format!("{v4}/{length}")
        };
        return Err(Some(format!(
            "{} is an IPv4-mapped IPv6 address: write {right}",
            quote(text)
        )));
    }
    if net.addr() != net.network() {
        let right = net.trunc();
        return Err(Some(format!(
            "{} has bits set beyond its length: write {right}",
            quote(text)
        )));
    }
    Ok(net)
}

/// Message for a prefix length that is too large, such as `10.0.0.0/33`.
fn wrong_length(text: &str) -> Option<String> {
    let (ip, _) = text.split_once('/')?;
    let most = match ip.parse::<IpAddr>().ok()? {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    };
    Some(format!(
        "{}: the prefix length of {ip} must be 0 to {most}",
        quote(text)
    ))
}

impl NodeRef<'_> {
    /// Value as a prefix of addresses.
    pub(super) fn prefix(&self, report: &mut Report) -> Option<IpNet> {
        let text = self.text(report)?;
        prefix(text)
            .map_err(|problem| {
                let problem = problem
                    .unwrap_or_else(|| format!("{} is not a prefix, such as 10.0.0.0/8 or fd00::/8", quote(text)));
                self.error(report, problem);
            })
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match binds(text) {
            Ok(binds) => binds.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            Err(message) => message,
        }
    }

    #[test]
    fn every_form_is_understood() {
        for (text, meaning) in [
            ("10.1.0.1:80", "10.1.0.1:80"),
            ("[fd00:1::1]:80", "[fd00:1::1]:80"),
            ("10.9.0.0/24:80", "10.9.0.0/24:80"),
            ("10.9.0.1/32:80", "10.9.0.1:80"),
            ("[fd00:9::/64]:443", "[fd00:9::/64]:443"),
            ("0.0.0.0:80", "0.0.0.0/0:80"),
            ("[::]:80", "[::/0]:80"),
            ("*:80", "0.0.0.0/0:80 [::/0]:80"),
            (":80", "0.0.0.0/0:80 [::/0]:80"),
            ("10.1.0.1:65535", "10.1.0.1:65535"),
        ] {
            assert_eq!(shown(text), meaning, "{text}");
        }
    }

    #[test]
    fn every_mistake_shows_what_is_right() {
        for (text, part) in [
            ("10.1.0.1", "has no port: write 10.1.0.1:80"),
            ("10.9.0.0/24", "has no port: write 10.9.0.0/24:80"),
            ("fd00::1", "has no port: write [fd00::1]:80"),
            ("[fd00::1]", "has no port: write [fd00::1]:80"),
            ("fd00::1:2:3:4:5:6:80", "write IPv6 in brackets: [fd00::1:2:3:4:5:6]:80"),
            ("[10.1.0.1]:80", "write IPv4 without brackets: 10.1.0.1:80"),
            ("10.1.0.1:0", "port from 1 to 65535"),
            ("10.1.0.1:65536", "port from 1 to 65535"),
            ("10.1.0.1:http", "port from 1 to 65535"),
            ("10.1.0.1:+80", "port from 1 to 65535"),
            ("10.1.0.1:", "port from 1 to 65535"),
            ("10.9.0.7/24:80", "has bits set beyond its length: write 10.9.0.0/24"),
            ("[fd00:9::1/64]:80", "has bits set beyond its length: write fd00:9::/64"),
            ("10.9.0.0/33:80", "the prefix length of 10.9.0.0 must be 0 to 32"),
            ("[fd00::/129]:80", "the prefix length of fd00:: must be 0 to 128"),
            ("[::ffff:10.1.0.1]:80", "is an IPv4-mapped IPv6 address: write 10.1.0.1"),
            ("localhost:80", "names are not looked up, write the address"),
            (
                "fd00::1:80",
                "has no brackets: write [fd00::1]:80, or [fd00::1:80]:80 if",
            ),
            ("224.0.0.1:80", "is a multicast or broadcast address"),
            ("[ff02::1]:80", "is a multicast or broadcast address"),
            ("255.255.255.255:80", "is a multicast or broadcast address"),
            ("80", "is not an address with a port, such as"),
            ("", "is not an address with a port, such as"),
            ("[]:80", "is not an address with a port, such as"),
            ("[:80", "is not an address with a port, such as"),
        ] {
            assert!(shown(text).contains(part), "{text}: {}", shown(text));
        }
    }
}
