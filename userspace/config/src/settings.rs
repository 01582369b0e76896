//! Settings of signalbox as a whole: admin, datapath, timeouts, limits, and their defaults.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use signalbox_common::cut::flow::DEFAULT_FLOWS;
use signalbox_core::model::{
    Admin, AdminTls, DEFAULT_ADMIN_CONNECTIONS, Datapath, EtcdStore, HandshakeLimits, HeadLimits, HttpTimeouts, Limits,
    PeekPlace, PerSource, Tier, Timeouts,
};
use signalbox_core::wire::hostname::Hostname;
use signalbox_core::wire::http1::limits::MAX_PEER_FIELDS;

use super::address::BindOwners;
use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};
use super::scalar::or_default;

const DEFAULT_ADMIN_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8089);
const DEFAULT_ADMIN_SOCKET: &str = "/run/signalbox/admin.sock";

/// Longest path of a socket, in bytes: `sun_path` less its closing NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Most names of the admin API.
const MAX_ADMIN_NAMES: usize = 64;
/// Most connections to the admin API, because each may hold a body of 64 MiB.
const MAX_ADMIN_CONNECTIONS: u32 = 4096;

/// Most flows of tier `cut`: 1 GiB of flow table.
const MAX_CUT_FLOWS: u32 = 1 << 22;

/// Bounds of the heads of requests and answers.
const MIN_HEAD_BYTES: u32 = 4 << 10;
const MAX_HEAD_BYTES: u32 = 1 << 20;
const MIN_HEAD_FIELDS: u16 = 32;

/// Tiers where the configuration says nothing.
pub(super) const DEFAULT_DATAPATH: Datapath = Datapath {
    tier: None,
    cut: true,
    cuts_last_requests: false,
    cuts_long_answers: false,
    peek: PeekPlace::Auto,
    serves_orphaned: false,
};

const TIERS: [(&str, Option<Tier>); 4] = [
    ("auto", None),
    (Tier::Sockmap.as_str(), Some(Tier::Sockmap)),
    (Tier::Splice.as_str(), Some(Tier::Splice)),
    (Tier::Copy.as_str(), Some(Tier::Copy)),
];

const CUT: [(&str, bool); 2] = [("auto", true), ("off", false)];
const READS: [(&str, bool); 2] = [("open", false), ("token", true)];
const PEEK: [(&str, PeekPlace); 3] = [
    ("auto", PeekPlace::Auto),
    ("kernel", PeekPlace::Kernel),
    ("userspace", PeekPlace::Userspace),
];
const PEEK_ORPHAN: [(&str, bool); 2] = [("end", false), ("serve", true)];
const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

const DEFAULT_TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    queue: Duration::from_secs(5),
    peek_http: Duration::from_secs(10),
    peek_tls: Duration::from_secs(5),
    idle: Duration::from_secs(3600),
    shutdown: Duration::from_secs(30),
    drain: Duration::from_secs(120),
    first_read: Duration::from_secs(60),
    http: HttpTimeouts {
        keep_alive: Duration::from_secs(60),
        body: Duration::from_secs(30),
        answer: Duration::from_secs(30),
        tunnel: Duration::from_secs(3600),
    },
};

/// Most members of an etcd.
const MAX_ETCD_MEMBERS: usize = 16;
const DEFAULT_ETCD_PREFIX: &str = "/signalbox/";

const DEFAULT_STORE: &str = "/var/lib/signalbox/state.redb";

const DEFAULT_PER_SOURCE: PerSource = PerSource {
    concurrent: 0,
    per_second: 0,
    peeking: 1024,
};

const DEFAULT_HANDSHAKES: HandshakeLimits = HandshakeLimits {
    per_worker: 256,
    per_source: 64,
};

/// Decodes the admin API. Its address must be the first to be taken.
pub(super) fn admin(place: Option<&NodeRef<'_>>, bind_owners: &mut BindOwners, report: &mut Report) -> Admin {
    let mut admin = Admin {
        listen: Some(DEFAULT_ADMIN_LISTEN),
        socket: PathBuf::from(DEFAULT_ADMIN_SOCKET),
        token_file: None,
        tls: None,
        reads_need_token: false,
        max_connections: DEFAULT_ADMIN_CONNECTIONS,
        names: Vec::new(),
    };
    let mut spot = None;
    if let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) {
        let listen = map.take("listen");
        let socket = map.take("socket");
        let token_file = map.take("token_file");
        let tls = map.take("tls");
        let most = map.take("max_connections");
        let names = map.take("names");
        let read = map.take("read");
        map.finish(report);
        admin.names = names.and_then(|place| admin_names(&place, report)).unwrap_or_default();
        admin.max_connections = or_default(most.as_ref(), admin.max_connections, |place| {
            place.number(1, MAX_ADMIN_CONNECTIONS, report)
        });
        admin.tls = tls.and_then(|place| admin_tls(&place, report));
        admin.token_file = token_file.and_then(|place| place.text(report).map(PathBuf::from));
        spot = listen.map(|place| place.position());
        admin.listen = or_default(listen.as_ref(), admin.listen, |place| admin_listen(place, report));
        admin.socket = or_default(socket.as_ref(), admin.socket, |place| admin_socket(place, report));
        admin.reads_need_token = reads_need_token(read.as_ref(), &admin, report);
    }
    if let Some(addr) = admin.listen {
        bind_owners.claim_admin(addr, spot);
    }
    admin
}

/// Decodes `read`. By default reads need the token if users of other machines can reach the API.
fn reads_need_token(place: Option<&NodeRef<'_>>, admin: &Admin, report: &mut Report) -> bool {
    let has_client_ca = admin.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let has_credentials = admin.token_file.is_some() || has_client_ca;
    let is_remote = admin.listen.is_some_and(|addr| !addr.ip().is_loopback());
    let wanted = or_default(place, is_remote, |place| {
        place.keyword("a setting of read", &READS, report)
    });
    if let Some(place) = place.filter(|_| wanted && !has_credentials) {
        place.error(
            report,
            "`token` needs credentials that clients can show: give `token_file`, or `tls` with `client_ca`",
        );
    }
    wanted
}

/// Decodes the names of the admin API.
fn admin_names(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for item in place.items("names", MAX_ADMIN_NAMES, report)? {
        let Some(text) = item.text(report) else { continue };
        match Hostname::parse(text.as_bytes()) {
            Ok(name) => names.push(name.to_string()),
            Err(error) => item.error(report, format!("{} is not a name without a port: {error}", quote(text))),
        }
    }
    Some(names)
}

fn admin_tls(place: &NodeRef<'_>, report: &mut Report) -> Option<AdminTls> {
    let mut map = MapDecoder::open(place, report)?;
    let cert = map.require("cert");
    let key = map.require("key");
    let client_ca = map.take("client_ca");
    map.finish(report);
    let mut path = |place: Option<NodeRef<'_>>| place.and_then(|place| place.text(report).map(PathBuf::from));
    let (cert, key, client_ca) = (path(cert), path(key), path(client_ca));
    Some(AdminTls {
        cert: cert?,
        key: key?,
        client_ca,
    })
}

fn admin_listen(place: &NodeRef<'_>, report: &mut Report) -> Option<Option<SocketAddr>> {
    if place.plain() == Some("none") {
        return Some(None);
    }
    let text = place.text(report)?;
    match text.parse::<SocketAddr>() {
        Ok(addr) if addr.port() > 0 => Some(Some(addr)),
        _ => {
            let text = quote(text);
            place.error(
                report,
                format!("{text} is neither an address with a port, such as 127.0.0.1:8089, nor `none`"),
            );
            None
        }
    }
}

fn admin_socket(place: &NodeRef<'_>, report: &mut Report) -> Option<PathBuf> {
    let text = place.text(report)?;
    if text.len() > MAX_SOCKET_PATH_BYTES || text.contains('\0') {
        let text = quote(text);
        place.error(
            report,
            format!("{text} cannot be the path of a socket: write at most {MAX_SOCKET_PATH_BYTES} bytes, without NUL"),
        );
        return None;
    }
    Some(PathBuf::from(text))
}

/// Decodes tiers where a listener says nothing else.
pub(super) fn datapath(place: Option<&NodeRef<'_>>, report: &mut Report) -> Datapath {
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return DEFAULT_DATAPATH;
    };
    let peek_orphan = map.take("peek_orphan");
    let serves_orphaned = or_default(peek_orphan.as_ref(), DEFAULT_DATAPATH.serves_orphaned, |place| {
        place.keyword("a setting of peek_orphan", &PEEK_ORPHAN, report)
    });
    Datapath {
        serves_orphaned,
        ..tiers(map, DEFAULT_DATAPATH, report)
    }
}

/// Decodes tiers of a listener; `inherited` applies to keys that are left out.
pub(super) fn listener_datapath(place: Option<&NodeRef<'_>>, inherited: Datapath, report: &mut Report) -> Datapath {
    match place.and_then(|place| MapDecoder::open(place, report)) {
        Some(map) => tiers(map, inherited, report),
        None => inherited,
    }
}

fn tiers(mut map: MapDecoder<'_>, inherited: Datapath, report: &mut Report) -> Datapath {
    let tier = map.take("tier");
    let cut = map.take("cut");
    let last_requests = map.take("last_requests");
    let long_answers = map.take("long_answers");
    let peek = map.take("peek");
    map.finish(report);
    let tier = or_default(tier.as_ref(), inherited.tier, |place| {
        place.keyword("a tier", &TIERS, report)
    });
    let cut = or_default(cut.as_ref(), inherited.cut, |place| {
        place.keyword("a setting of cut", &CUT, report)
    });
    let cuts_last_requests = or_default(last_requests.as_ref(), inherited.cuts_last_requests, |place| {
        place.keyword("a setting of last_requests", &SWITCH, report)
    });
    let cuts_long_answers = or_default(long_answers.as_ref(), inherited.cuts_long_answers, |place| {
        place.keyword("a setting of long_answers", &SWITCH, report)
    });
    let peek = or_default(peek.as_ref(), inherited.peek, |place| {
        place.keyword("a setting of peek", &PEEK, report)
    });
    Datapath {
        tier,
        cut,
        cuts_last_requests,
        cuts_long_answers,
        peek,
        ..inherited
    }
}

/// Decodes time limits.
pub(super) fn timeouts(place: Option<&NodeRef<'_>>, report: &mut Report) -> Timeouts {
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return DEFAULT_TIMEOUTS;
    };
    let connect = map.take("connect");
    let queue = map.take("queue");
    let peek_http = map.take("peek_http");
    let peek_tls = map.take("peek_tls");
    let idle = map.take("idle");
    let shutdown = map.take("shutdown");
    let drain = map.take("drain");
    let first_read = map.take("first_read");
    let keep_alive = map.take("keep_alive");
    let body = map.take("body");
    let answer = map.take("answer");
    let tunnel = map.take("tunnel");
    map.finish(report);
    let mut time = |place: Option<NodeRef<'_>>, default| or_default(place.as_ref(), default, |p| p.duration(report));
    Timeouts {
        connect: time(connect, DEFAULT_TIMEOUTS.connect),
        queue: time(queue, DEFAULT_TIMEOUTS.queue),
        peek_http: time(peek_http, DEFAULT_TIMEOUTS.peek_http),
        peek_tls: time(peek_tls, DEFAULT_TIMEOUTS.peek_tls),
        idle: time(idle, DEFAULT_TIMEOUTS.idle),
        shutdown: time(shutdown, DEFAULT_TIMEOUTS.shutdown),
        drain: time(drain, DEFAULT_TIMEOUTS.drain),
        first_read: time(first_read, DEFAULT_TIMEOUTS.first_read),
        http: HttpTimeouts {
            keep_alive: time(keep_alive, DEFAULT_TIMEOUTS.http.keep_alive),
            body: time(body, DEFAULT_TIMEOUTS.http.body),
            answer: time(answer, DEFAULT_TIMEOUTS.http.answer),
            tunnel: time(tunnel, DEFAULT_TIMEOUTS.http.tunnel),
        },
    }
}

/// Decodes the store: its directory on this machine, and an etcd shared with other balancers.
pub(super) fn store(place: Option<&NodeRef<'_>>, report: &mut Report) -> (PathBuf, Option<EtcdStore>) {
    let default = || PathBuf::from(DEFAULT_STORE);
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return (default(), None);
    };
    let path = map.take("path");
    let etcd = map.take("etcd");
    map.finish(report);
    let path = path.and_then(|place| place.text(report).map(PathBuf::from));
    let etcd = etcd.and_then(|place| self::etcd(&place, report));
    (path.unwrap_or_else(default), etcd)
}

fn etcd(place: &NodeRef<'_>, report: &mut Report) -> Option<EtcdStore> {
    let mut map = MapDecoder::open(place, report)?;
    let endpoints = map.require("endpoints");
    let prefix = map.take("prefix");
    let ca = map.take("ca");
    let cert = map.take("cert");
    let key = map.take("key");
    map.finish(report);
    let mut path = |place: Option<NodeRef<'_>>| place.and_then(|place| place.text(report).map(PathBuf::from));
    let (ca, cert, key) = (path(ca), path(cert), path(key));
    if cert.is_some() != key.is_some() {
        place.error(report, "`cert` and `key` go together: give both or neither");
    }
    let mut urls = Vec::new();
    let at = endpoints?;
    for item in at.items("endpoints", MAX_ETCD_MEMBERS, report)? {
        urls.push(super::balancers::url(&item, report)?);
    }
    if urls.is_empty() {
        at.error(
            report,
            "name at least one member of etcd, such as http://127.0.0.1:2379",
        );
    }
    let mut prefix = prefix
        .and_then(|place| place.text(report))
        .unwrap_or(DEFAULT_ETCD_PREFIX)
        .to_owned();
    if !prefix.ends_with('/') {
        prefix.push('/');
    }
    Some(EtcdStore {
        endpoints: urls,
        prefix,
        ca,
        identity: cert.zip(key),
    })
}

/// Decodes limits against greedy clients.
pub(super) fn limits(place: Option<&NodeRef<'_>>, report: &mut Report) -> Limits {
    let defaults = Limits {
        max_connections: None,
        cut_flows: DEFAULT_FLOWS,
        per_source: DEFAULT_PER_SOURCE,
        handshakes: DEFAULT_HANDSHAKES,
        heads: HeadLimits::default(),
    };
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return defaults;
    };
    let max_connections = map.take("max_connections");
    let cut_flows = map.take("cut_flows");
    let per_source = map.take("per_source");
    let handshakes = map.take("handshakes");
    let heads = map.take("heads");
    map.finish(report);
    let max_connections = or_default(max_connections.as_ref(), None, |place| match place.plain() {
        Some("auto") => Some(None),
        _ => place.number(1, u32::MAX, report).map(Some),
    });
    let cut_flows = or_default(cut_flows.as_ref(), defaults.cut_flows, |place| {
        place.number(1, MAX_CUT_FLOWS, report)
    });
    Limits {
        max_connections,
        cut_flows,
        per_source: self::per_source(per_source.as_ref(), report),
        handshakes: self::handshakes(handshakes.as_ref(), report),
        heads: self::heads(heads.as_ref(), report),
    }
}

fn heads(place: Option<&NodeRef<'_>>, report: &mut Report) -> HeadLimits {
    let default = HeadLimits::default();
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return default;
    };
    let bytes = map.take("bytes");
    let fields = map.take("fields");
    map.finish(report);
    HeadLimits {
        bytes: or_default(bytes.as_ref(), default.bytes, |place| {
            place.number(MIN_HEAD_BYTES, MAX_HEAD_BYTES, report)
        }),
        fields: or_default(fields.as_ref(), default.fields, |place| {
            place.number(MIN_HEAD_FIELDS, MAX_PEER_FIELDS as u16, report)
        }),
    }
}

fn per_source(place: Option<&NodeRef<'_>>, report: &mut Report) -> PerSource {
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return DEFAULT_PER_SOURCE;
    };
    let concurrent = map.take("concurrent");
    let per_second = map.take("per_second");
    let peeking = map.take("peeking");
    map.finish(report);
    let mut count =
        |place: Option<NodeRef<'_>>, default| or_default(place.as_ref(), default, |p| p.number(0, u32::MAX, report));
    PerSource {
        concurrent: count(concurrent, DEFAULT_PER_SOURCE.concurrent),
        per_second: count(per_second, DEFAULT_PER_SOURCE.per_second),
        peeking: count(peeking, DEFAULT_PER_SOURCE.peeking),
    }
}

fn handshakes(place: Option<&NodeRef<'_>>, report: &mut Report) -> HandshakeLimits {
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return DEFAULT_HANDSHAKES;
    };
    let per_worker = map.take("per_worker");
    let per_source = map.take("per_source");
    map.finish(report);
    let mut count =
        |place: Option<NodeRef<'_>>, default| or_default(place.as_ref(), default, |p| p.number(0, u32::MAX, report));
    HandshakeLimits {
        per_worker: count(per_worker, DEFAULT_HANDSHAKES.per_worker),
        per_source: count(per_source, DEFAULT_HANDSHAKES.per_source),
    }
}
