//! Files with error pages: `pages`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::node::{NodeKind, NodeRef};
use super::report::{Report, quote};

/// Status codes of the balancer's own answers that may have a page.
const STATUSES: [u16; 13] = [400, 403, 404, 408, 414, 421, 429, 431, 501, 502, 503, 504, 505];

/// Decodes the files by status code.
pub(super) fn decode(place: &NodeRef<'_>, report: &mut Report) -> Option<BTreeMap<u16, PathBuf>> {
    if !matches!(place.node.kind, NodeKind::Map(_)) {
        place.error(
            report,
            "write status codes with files, as in { 503: /etc/signalbox/503.html }",
        );
        return None;
    }
    let mut pages = BTreeMap::new();
    for entry in place.entries(report)? {
        let place = NodeRef {
            node: &entry.value,
            path: place.path.key(&entry.key),
        };
        let Some(status) = entry.key.parse().ok().filter(|status| STATUSES.contains(status)) else {
            let (key, codes) = (quote(&entry.key), STATUSES.map(|status| status.to_string()).join(", "));
            place.error(
                report,
                format!("{key} is not a status code of the balancer's own answers ({codes})"),
            );
            return None;
        };
        let path = place.text(report)?;
        if !path.starts_with('/') {
            place.error(report, "write the absolute path of the file");
            return None;
        }
        pages.insert(status, path.into());
    }
    Some(pages)
}
