//! Subset: the part of a cluster's hosts that this balancer uses.

use signalbox_core::model::{Balancer, Subset};
use signalbox_core::subset::Size;

use super::map::Map;
use super::node::Place;
use super::report::{Report, quote};
use super::scalar::{maybe, optional};

/// Most hosts of a cluster.
const MOST_HOSTS: u32 = 65_535;

/// Decodes the settings that hold for all clusters.
pub(super) fn common(place: Option<&Place<'_>>, balancers: &[Balancer], report: &mut Report) -> Subset {
    let none = Subset {
        name: None,
        size: Size::All,
    };
    let Some(mut map) = place.and_then(|place| Map::open(place, report)) else {
        return none;
    };
    let name = map.take("name");
    let size = map.take("size");
    map.finish(report);
    let read = |place: &Place<'_>| {
        let name = place.name(report)?;
        if balancers.iter().any(|other| other.name.as_deref() == Some(name)) {
            let name = quote(name);
            place.fault(
                report,
                format!("one of the other `balancers` is called {name} too: each has a name of its own"),
            );
            return None;
        }
        Some(name.to_owned())
    };
    Subset {
        name: maybe(name.as_ref(), read).flatten(),
        size: optional(size.as_ref(), Size::All, |place| self::size(place, report)),
    }
}

/// Decodes a number of hosts, a percentage or `all`.
pub(super) fn size(place: &Place<'_>, report: &mut Report) -> Option<Size> {
    let text = place.text(report)?;
    let number = |digits: &str, most: u32| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| digits.parse::<u32>().ok()).flatten();
        number.filter(|number| (1..=most).contains(number))
    };
    let size = match (text, text.strip_suffix('%')) {
        ("all", _) => Some(Size::All),
        (_, Some(percent)) => number(percent, 100).map(Size::Percent),
        (hosts, None) => number(hosts, MOST_HOSTS).map(Size::Hosts),
    };
    if size.is_none() {
        let text = quote(text);
        place.fault(
            report,
            format!("{text} is not a number of hosts from 1 to {MOST_HOSTS}, a part of them such as 50%, nor `all`"),
        );
    }
    size
}
