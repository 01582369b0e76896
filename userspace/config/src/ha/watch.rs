//! Conditions for having addresses, the operator's programs, and mail.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use signalbox_core::model::ha::{HaEmail, HaWatch};

use crate::map::MapDecoder;
use crate::node::NodeRef;
use crate::report::{Report, quote};
use crate::scalar::or_default;

const MAX_RECIPIENTS: usize = 16;
const SMTP_PORT: u16 = 25;

/// Decodes the conditions.
pub(super) fn decode(place: Option<&NodeRef<'_>>, report: &mut Report) -> HaWatch {
    let defaults = HaWatch::default();
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return defaults;
    };
    let port = map.take("port");
    let interval = map.take("interval");
    let script = map.take("script");
    let ready = map.take("ready");
    map.finish(report);
    let watch = HaWatch {
        port: or_default(port.as_ref(), defaults.port, |place| place.number(0, u16::MAX, report)),
        interval: or_default(interval.as_ref(), defaults.interval, |place| place.duration(report)),
        script: script.and_then(|place| program(&place, report)),
        ready: or_default(ready.as_ref(), defaults.ready, |place| place.flag(report)),
    };
    if let (Some(place), Some(_)) = (&port, &watch.script)
        && watch.port != 0
    {
        place.warn(
            report,
            "`script` runs in place of the check of `port`, which has no effect: leave `port` out",
        );
    }
    watch
}

/// Decodes the absolute path of a program.
pub(super) fn program(place: &NodeRef<'_>, report: &mut Report) -> Option<PathBuf> {
    let text = place.text(report)?;
    if Path::new(text).is_absolute() && !text.ends_with('/') {
        return Some(PathBuf::from(text));
    }
    let text = quote(text);
    place.error(
        report,
        format!("{text} is not the absolute path of a program, such as /etc/signalbox/check"),
    );
    None
}

/// Decodes the recipients of mail.
pub(super) fn email(place: &NodeRef<'_>, report: &mut Report) -> Option<HaEmail> {
    let mut map = MapDecoder::open(place, report)?;
    let to = map.require("to");
    let from = map.require("from");
    let smtp = map.take("smtp");
    map.finish(report);
    let from = from.and_then(|place| address(&place, report));
    let smtp = match &smtp {
        Some(place) => server(place, report),
        None => Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), SMTP_PORT)),
    };
    let at = to?;
    let mut recipients = Vec::new();
    for item in at.items("recipients", MAX_RECIPIENTS, report)? {
        recipients.push(address(&item, report)?);
    }
    if recipients.is_empty() {
        at.error(report, "mail needs at least one recipient, such as root@localhost");
        return None;
    }
    Some(HaEmail {
        to: recipients,
        from: from?,
        smtp: smtp?,
    })
}

/// Decodes a mail address, of characters that keepalived's configuration can hold as they are.
fn address(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'+' | b'@');
    if text.bytes().all(allowed) && text.contains('@') {
        return Some(text.to_owned());
    }
    let text = quote(text);
    place.error(report, format!("{text} is not a mail address, such as root@localhost"));
    None
}

fn server(place: &NodeRef<'_>, report: &mut Report) -> Option<SocketAddr> {
    let text = place.text(report)?;
    let with_port = || text.parse().ok().filter(|server: &SocketAddr| server.port() > 0);
    let alone = text.parse().map(|address: IpAddr| SocketAddr::new(address, SMTP_PORT));
    if let Some(server) = alone.ok().or_else(with_port) {
        return Some(server);
    }
    let text = quote(text);
    let remedy = "a name would keep keepalived from starting while it cannot be resolved";
    place.error(
        report,
        format!("{text} is not the IP address of a mail server, such as 127.0.0.1 or 10.0.0.25:2525; {remedy}"),
    );
    None
}
