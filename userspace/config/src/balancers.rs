//! Other balancers of a set, and the tokens and certificates by which balancers authenticate each other.

use std::path::PathBuf;

use signalbox_core::model::Balancer;

use super::map::Map;
use super::node::Place;
use super::report::{Report, quote};
use super::scalar::maybe;
use super::unique::Unique;

const MOST_BALANCERS: usize = 64;

/// Decodes all balancers.
pub(super) fn all(place: Option<&Place<'_>>, report: &mut Report) -> Option<Vec<Balancer>> {
    let Some(place) = place else { return Some(Vec::new()) };
    let (mut all, mut unique) = (Some(Vec::new()), Unique::default());
    for item in place.items("balancers", MOST_BALANCERS, report)? {
        match (balancer(&item, &mut unique, report), &mut all) {
            (Some(balancer), Some(all)) => all.push(balancer),
            _ => all = None,
        }
    }
    all
}

fn balancer(place: &Place<'_>, unique: &mut Unique, report: &mut Report) -> Option<Balancer> {
    let mut map = Map::open(place, report)?;
    let url = map.require("url");
    let name = map.take("name");
    let token_file = map.take("token_file");
    let ca = map.take("ca");
    let cert = map.take("cert");
    let key = map.take("key");
    map.finish(report);
    let mut path = |place: Option<Place<'_>>| place.and_then(|place| place.text(report).map(PathBuf::from));
    let (token_file, ca, cert, key) = (path(token_file), path(ca), path(cert), path(key));
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => {
            place.fault(report, "`cert` and `key` go together");
            return None;
        }
    };
    let url = url.and_then(|place| self::url(&place, report))?;
    if token_file.is_none() && identity.is_none() {
        place.fault(
            report,
            "changes on that balancer need a login: give `token_file`, or `cert` and `key`",
        );
        return None;
    }
    let name = maybe(name.as_ref(), |place| unique.name(place, "balancer", report))?;
    Some(Balancer {
        name,
        url,
        token_file,
        ca,
        identity,
    })
}

/// Decodes a URL: `http://HOST:PORT` or `https://HOST:PORT`.
pub(super) fn url(place: &Place<'_>, report: &mut Report) -> Option<String> {
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
    place.fault(report, format!("{text} is not a URL such as https://balancer-2:8089"));
    None
}
