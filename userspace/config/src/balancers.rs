//! Other balancers of a set, and the tokens and certificates by which balancers authenticate each other.

use std::path::PathBuf;

use signalbox_core::model::Balancer;

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};
use super::scalar::optional_value;
use super::unique::UniqueNames;

const MAX_BALANCERS: usize = 64;

/// Decodes all balancers.
pub(super) fn decode_all(place: Option<&NodeRef<'_>>, report: &mut Report) -> Option<Vec<Balancer>> {
    let Some(place) = place else { return Some(Vec::new()) };
    let (mut all, mut unique) = (Some(Vec::new()), UniqueNames::default());
    for item in place.items("balancers", MAX_BALANCERS, report)? {
        match (balancer(&item, &mut unique, report), &mut all) {
            (Some(balancer), Some(all)) => all.push(balancer),
            _ => all = None,
        }
    }
    all
}

fn balancer(place: &NodeRef<'_>, unique: &mut UniqueNames, report: &mut Report) -> Option<Balancer> {
    let mut map = MapDecoder::open(place, report)?;
    let url = map.require("url");
    let name = map.take("name");
    let token_file = map.take("token_file");
    let ca = map.take("ca");
    let cert = map.take("cert");
    let key = map.take("key");
    map.finish(report);
    let mut path = |place: Option<NodeRef<'_>>| place.and_then(|place| place.text(report).map(PathBuf::from));
    let (token_file, ca, cert, key) = (path(token_file), path(ca), path(cert), path(key));
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => {
            place.error(report, "`cert` and `key` go together: give both or neither");
            return None;
        }
    };
    let url = url.and_then(|place| self::url(&place, report))?;
    if token_file.is_none() && identity.is_none() {
        place.error(
            report,
            "changes on that balancer need a login: give `token_file`, or `cert` and `key`",
        );
        return None;
    }
    let name = optional_value(name.as_ref(), |place| unique.name(place, "balancer", report))?;
    Some(Balancer {
        name,
        url,
        token_file,
        ca,
        identity,
    })
}

/// Decodes a URL: `http://HOST:PORT` or `https://HOST:PORT`.
pub(super) fn url(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let is_good = text.parse::<http::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some()
            && matches!(uri.path(), "" | "/")
            && !text.contains('@')
    });
    if is_good {
        return Some(text.trim_end_matches('/').to_owned());
    }
    let text = quote(text);
    place.error(report, format!("{text} is not a URL such as https://balancer-2:8089"));
    None
}
