//! Message brokers: their addresses, and the authentication of both sides.

use std::collections::HashMap;
use std::net::Ipv6Addr;

use signalbox_core::model::{Broker, BrokerTls, Login};
use signalbox_core::wire::hostname::Hostname;

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};
use super::routing_events::{line, path};
use super::scalar::optional_value;

const MAX_BROKERS: usize = 16;

/// Decodes all brokers: at least one, each once.
pub(super) fn decode_all(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<Broker>> {
    let mut seen = HashMap::new();
    let mut brokers = Some(Vec::new());
    let mut any = false;
    for item in place.items("brokers", MAX_BROKERS, report)? {
        any = true;
        let broker = item.text(report).and_then(|text| match broker(text) {
            Ok(broker) => match seen.insert(broker.clone(), item.position()) {
                None => Some(broker),
                Some(first) => {
                    item.error(
                        report,
                        format!("{} is given twice, first on line {}", quote(text), first.line),
                    );
                    None
                }
            },
            Err(problem) => {
                item.error(report, problem);
                None
            }
        });
        match (broker, &mut brokers) {
            (Some(broker), Some(brokers)) => brokers.push(broker),
            _ => brokers = None,
        }
    }
    if !any {
        place.error(
            report,
            "there must be at least one broker, such as mq1.example.com:61613; leave `brokers` out if events arrive only \
             by the admin API",
        );
        return None;
    }
    brokers
}

fn broker(text: &str) -> Result<Broker, String> {
    let shown = quote(text);
    let form = || format!("{shown} is not a broker, such as mq1.example.com:61613 or \"[fd00::1]:61613\"");
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(format!("{shown} has no port: write \"[{text}]:61613\""));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(match Hostname::parse(text.as_bytes()) {
            Ok(_) => format!("{shown} has no port: write {text}:61613"),
            Err(_) => form(),
        });
    };
    let port = match port.parse::<u16>() {
        Ok(number) if number > 0 && port.bytes().all(|b| b.is_ascii_digit()) => number,
        _ => return Err(format!("{shown} needs a port from 1 to 65535 after the last colon")),
    };
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host = match inner.map(str::parse::<Ipv6Addr>) {
        Some(Ok(ip)) => ip.to_string(),
        Some(Err(_)) => return Err(form()),
        None => Hostname::parse(host.as_bytes())
            .map_err(|_| form())?
            .as_str()
            .to_owned(),
    };
    Ok(Broker { host, port })
}

/// Decodes the TLS settings for brokers.
pub(super) fn tls(place: &NodeRef<'_>, report: &mut Report) -> Option<BrokerTls> {
    let mut map = MapDecoder::open(place, report)?;
    let ca = map.require("ca");
    let cert_at = map.take("cert");
    let key_at = map.take("key");
    map.finish(report);
    let ca = ca.and_then(|place| path(&place, report));
    let cert = optional_value(cert_at.as_ref(), |place| path(place, report));
    let key = optional_value(key_at.as_ref(), |place| path(place, report));
    match (&cert_at, &key_at) {
        (Some(at), None) => at.error(report, "a certificate is of no use without its key: give `key`"),
        (None, Some(at)) => at.error(report, "a key is of no use without its certificate: give `cert`"),
        _ => {}
    }
    Some(BrokerTls {
        ca: ca?,
        identity: cert?.zip(key?),
    })
}

/// Decodes the login at brokers; `Some(None)`: there is none.
pub(super) fn login(
    user: Option<&NodeRef<'_>>,
    password_file: Option<&NodeRef<'_>>,
    report: &mut Report,
) -> Option<Option<Login>> {
    let known = optional_value(user, |place| line(place, report));
    let file = optional_value(password_file, |place| path(place, report));
    match (user, password_file) {
        (Some(at), None) => at.error(report, "a user needs a password: give `password_file`"),
        (None, Some(at)) => at.error(report, "a password needs a user: give `user`"),
        _ => {}
    }
    let login = known?.zip(file?);
    Some(login.map(|(user, password_file)| Login { user, password_file }))
}
