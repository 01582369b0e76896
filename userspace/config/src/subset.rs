//! Subset: the part of a cluster's hosts that this balancer uses.

use signalbox_core::model::SubsetSize;
use signalbox_core::model::{Balancer, Subset};

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};
use super::scalar::{optional_value, or_default};

/// Most hosts of a cluster.
const MAX_HOSTS: u32 = 65_535;

/// Decodes the settings that hold for all clusters.
pub(super) fn common(place: Option<&NodeRef<'_>>, balancers: &[Balancer], report: &mut Report) -> Subset {
    let none = Subset {
        name: None,
        size: SubsetSize::All,
    };
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return none;
    };
    let name = map.take("name");
    let size = map.take("size");
    map.finish(report);
    let read = |place: &NodeRef<'_>| {
        let name = place.name(report)?;
        if balancers.iter().any(|other| other.name.as_deref() == Some(name)) {
            let name = quote(name);
            place.error(
                report,
                format!("another of the `balancers` is already called {name}: give each its own name"),
            );
            return None;
        }
        Some(name.to_owned())
    };
    Subset {
        name: optional_value(name.as_ref(), read).flatten(),
        size: or_default(size.as_ref(), SubsetSize::All, |place| self::size(place, report)),
    }
}

/// Decodes a number of hosts, a percentage or `all`.
pub(super) fn size(place: &NodeRef<'_>, report: &mut Report) -> Option<SubsetSize> {
    let text = place.text(report)?;
    let number = |digits: &str, most: u32| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| digits.parse::<u32>().ok()).flatten();
        number.filter(|number| (1..=most).contains(number))
    };
    let size = match (text, text.strip_suffix('%')) {
        ("all", _) => Some(SubsetSize::All),
        (_, Some(percent)) => number(percent, 100).map(SubsetSize::Percent),
        (hosts, None) => number(hosts, MAX_HOSTS).map(SubsetSize::Hosts),
    };
    if size.is_none() {
        let text = quote(text);
        place.error(
            report,
            format!("{text} is neither a number of hosts from 1 to {MAX_HOSTS}, a share such as 50%, nor `all`"),
        );
    }
    size
}
