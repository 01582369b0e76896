//! PROXY headers to hosts (`proxy_protocol` of clusters and applications).

use signalbox_core::wire::peek::proxy::ProxyTlvs;

use super::map::MapDecoder;
use super::node::{NodeKind, NodeRef};
use super::report::Report;

/// Headers by a word.
const VERSIONS: [(&str, Option<ProxyTlvs>); 2] = [("v2", Some(ProxyTlvs::DEFAULT)), ("none", None)];

/// Decodes the header that hosts are sent: a word, or a mapping with the header's TLVs.
pub(super) fn header(place: Option<&NodeRef<'_>>, report: &mut Report) -> Option<ProxyTlvs> {
    let place = place?;
    if !matches!(place.node.kind, NodeKind::Map(_)) {
        return place
            .keyword("a version of the PROXY protocol", &VERSIONS, report)
            .flatten();
    }
    let mut map = MapDecoder::open(place, report)?;
    let version = map.take("version");
    let tlvs = map.take("tlvs");
    map.finish(report);
    if let Some(other) = version.filter(|version| version.plain() != Some("2")) {
        other.error(report, "hosts get version 2 of the PROXY protocol alone: write 2");
        return None;
    }
    tlvs.map_or(Some(ProxyTlvs::DEFAULT), |tlvs| self::tlvs(&tlvs, report))
}

fn tlvs(place: &NodeRef<'_>, report: &mut Report) -> Option<ProxyTlvs> {
    let mut chosen = ProxyTlvs::NONE;
    for place in place.items("TLVs", ProxyTlvs::ALL.len(), report)? {
        chosen = chosen.with(place.keyword("a TLV of the PROXY header", &ProxyTlvs::ALL, report)?);
    }
    Some(chosen)
}
