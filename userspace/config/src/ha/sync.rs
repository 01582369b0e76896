//! Replication of flows between the nodes.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use signalbox_core::model::Bind;
use signalbox_core::model::ha::{HaSync, HaSyncServices};

use crate::address::BindOwners;
use crate::map::MapDecoder;
use crate::node::NodeRef;
use crate::report::{Report, quote};
use crate::scalar::or_default;

const DEFAULT_FLOWS: u32 = 131_072;
/// Most flows of other nodes, as many as a node may have itself.
const MAX_FLOWS: u32 = 1 << 22;

const SERVICES: [(&str, HaSyncServices); 2] = [("tcp", HaSyncServices::Tcp), ("off", HaSyncServices::Off)];

/// Decodes the section.
pub(super) fn decode(place: &NodeRef<'_>, taken: &mut BindOwners, report: &mut Report) -> Option<HaSync> {
    let mut map = MapDecoder::open(place, report)?;
    let listen = map.require("listen");
    let cert = map.require("cert");
    let key = map.require("key");
    let ca = map.require("ca");
    let flows = map.take("flows");
    let services = map.take("services");
    map.finish(report);
    let mut path = |place: Option<NodeRef<'_>>| place.and_then(|place| place.text(report).map(PathBuf::from));
    let (cert, key, ca) = (path(cert), path(key), path(ca));
    let listen = listen.and_then(|place| self::listen(&place, taken, report));
    let flows = or_default(flows.as_ref(), DEFAULT_FLOWS, |place| {
        place.number(1, MAX_FLOWS, report)
    });
    let services = or_default(services.as_ref(), HaSyncServices::default(), |place| {
        place.keyword("a setting of services", &SERVICES, report)
    });
    Some(HaSync {
        listen: listen?,
        cert: cert?,
        key: key?,
        ca: ca?,
        flows,
        services,
    })
}

fn listen(place: &NodeRef<'_>, taken: &mut BindOwners, report: &mut Report) -> Option<SocketAddr> {
    let text = place.text(report)?;
    let parsed = text.parse::<SocketAddr>().ok().filter(|addr| addr.port() > 0);
    let Some(addr) = parsed else {
        let text = quote(text);
        place.error(
            report,
            format!("{text} is not an address with a port, such as 10.1.0.11:8090"),
        );
        return None;
    };
    let bind = Bind {
        prefix: IpNet::from(addr.ip()),
        port: addr.port(),
    };
    let owner = taken.claim(bind, "ha.sync.listen", Some(place.position()));
    owner.map_err(|problem| place.error(report, problem)).ok()?;
    Some(addr)
}
