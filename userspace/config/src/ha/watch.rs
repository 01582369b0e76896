//! Conditions for having addresses, the programs of the operator's, and mail.

use std::path::{Path, PathBuf};

use signalbox_core::model::ha::{HaEmail, HaWatch};

use crate::map::MapDecoder;
use crate::node::NodeRef;
use crate::report::{Report, quote};
use crate::scalar::or_default;

const MAX_RECIPIENTS: usize = 16;

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
            "the script is run in place of the check of `port`, which has no effect",
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

/// Decodes who gets mail.
pub(super) fn email(place: &NodeRef<'_>, report: &mut Report) -> Option<HaEmail> {
    let mut map = MapDecoder::open(place, report)?;
    let to = map.require("to");
    let from = map.require("from");
    let smtp = map.take("smtp");
    map.finish(report);
    let from = from.and_then(|place| address(&place, report));
    let smtp = match &smtp {
        Some(place) => server(place, report),
        None => Some("127.0.0.1".to_owned()),
    };
    let at = to?;
    let mut recipients = Vec::new();
    for item in at.items("recipients", MAX_RECIPIENTS, report)? {
        recipients.push(address(&item, report)?);
    }
    if recipients.is_empty() {
        at.error(report, "mail has at least one recipient, such as root@localhost");
        return None;
    }
    Some(HaEmail {
        to: recipients,
        from: from?,
        smtp: smtp?,
    })
}

fn address(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    plain(
        place,
        "a mail address, such as root@localhost",
        |text| text.contains('@'),
        report,
    )
}

fn server(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let is_server = |text: &str| {
        let port = text
            .rsplit_once(' ')
            .or_else(|| text.rsplit_once(':').filter(|_| text.matches(':').count() == 1));
        port.is_none_or(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    plain(
        place,
        "a mail server, such as 127.0.0.1, fd00::25 or mail.example.com:25",
        is_server,
        report,
    )
}

/// Decodes a word that keepalived's configuration can hold as it is.
fn plain(place: &NodeRef<'_>, what: &str, is_right: impl Fn(&str) -> bool, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'+' | b'@' | b':');
    if text.bytes().all(allowed) && is_right(text) {
        return Some(text.to_owned());
    }
    let text = quote(text);
    place.error(report, format!("{text} is not {what}"));
    None
}
