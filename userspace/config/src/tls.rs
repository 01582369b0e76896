//! TLS termination: settings of all listeners, of one listener, of a route, and of a cluster's hosts.

use std::path::PathBuf;

use signalbox_core::model::tls::Http2;
use signalbox_core::model::tls::{
    BackendTls, CertificateFields, CertificatePlace, ClientCertificates, HttpVersion, InsecurePolicy, ListenerTls,
    RouteTls, SessionTickets, Termination, TlsSettings,
};
use signalbox_core::model::tls_profile::KeyExchangeGroup;
use signalbox_core::wire::hostname::Hostname;

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};
use super::scalar::{optional_value, or_default};

/// Most entries of `certificates`; directories hold as many as they like.
const MAX_CERTIFICATES: usize = 10_000;

/// Longest value of `hsts`, in bytes.
const MAX_HSTS_BYTES: usize = 256;

const TERMINATIONS: [(&str, Termination); 3] = [
    (Termination::Passthrough.as_str(), Termination::Passthrough),
    (Termination::Edge.as_str(), Termination::Edge),
    (Termination::Reencrypt.as_str(), Termination::Reencrypt),
];

const GROUPS: [(&str, KeyExchangeGroup); 4] = [
    ("X25519MLKEM768", KeyExchangeGroup::X25519MlKem768),
    ("X25519", KeyExchangeGroup::X25519),
    ("P-256", KeyExchangeGroup::P256),
    ("P-384", KeyExchangeGroup::P384),
];

/// Decodes the settings that all listeners share: `tls` and `certificates`.
pub(super) fn settings(
    tls: Option<&NodeRef<'_>>,
    certificates: Option<&NodeRef<'_>>,
    report: &mut Report,
) -> Option<TlsSettings> {
    let mut settings = TlsSettings::default();
    if let Some(mut map) = tls.and_then(|place| MapDecoder::open(place, report)) {
        let profile = map.take("profile");
        let groups = map.take("groups");
        let tickets = map.take("tickets");
        let http2 = map.take("http2");
        map.finish(report);
        settings.profile = or_default(profile.as_ref(), settings.profile, |place| {
            let parsed = place.text(report)?.parse();
            parsed.map_err(|error| place.error(report, format!("{error}"))).ok()
        });
        if let Some(place) = groups {
            settings.groups = self::groups(&place, report)?;
        }
        settings.tickets = or_default(tickets.as_ref(), settings.tickets, |place| {
            place.keyword("a rule for session tickets", &SessionTickets::ALL, report)
        });
        settings.http2 = or_default(http2.as_ref(), settings.http2, |place| {
            place.keyword("a rule for HTTP/2", &Http2::ALL, report)
        });
    }
    if let Some(place) = certificates {
        settings.certificates = certificate_places(place, report)?;
    }
    Some(settings)
}

fn groups(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<KeyExchangeGroup>> {
    let mut groups = Vec::new();
    for item in place.items("groups", GROUPS.len(), report)? {
        let group = item.keyword("a group", &GROUPS, report)?;
        if groups.contains(&group) {
            item.error(report, "the group is in the list already");
            return None;
        }
        groups.push(group);
    }
    if groups.is_empty() {
        place.error(report, "the list of groups is empty: name at least one, such as X25519");
        return None;
    }
    Some(groups)
}

fn certificate_places(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<CertificatePlace>> {
    let mut all = Some(Vec::new());
    for item in place.items("certificates", MAX_CERTIFICATES, report)? {
        match (certificate_place(&item, report), &mut all) {
            (Some(one), Some(all)) => all.push(one),
            _ => all = None,
        }
    }
    all
}

fn certificate_place(place: &NodeRef<'_>, report: &mut Report) -> Option<CertificatePlace> {
    let mut map = MapDecoder::open(place, report)?;
    let directory = map.take("directory");
    let cert = map.take("cert");
    let key = map.take("key");
    let pass = map.take("pass");
    let default = map.take("default");
    let known = map.finish(report);
    if let Some(directory) = directory {
        if cert.or(key).or(pass).or(default).is_some() {
            place.error(
                report,
                "`directory` allows no other key beside it: write a single certificate as another entry, \
                 { cert: FILE, key: FILE }",
            );
            return None;
        }
        return directory
            .text(report)
            .map(PathBuf::from)
            .map(CertificatePlace::Directory);
    }
    let Some(cert) = cert else {
        if known {
            place.error(
                report,
                "a certificate is { cert: FILE, key: FILE }, or { directory: PATH } for many",
            );
        }
        return None;
    };
    let mut path = |place: &NodeRef<'_>| place.text(report).map(PathBuf::from);
    let cert = path(&cert)?;
    Some(CertificatePlace::Files {
        key: match key {
            Some(key) => path(&key)?,
            // Certificate and key in one file, as HAProxy has them.
            None => cert.clone(),
        },
        pass: match pass {
            Some(pass) => Some(path(&pass)?),
            None => None,
        },
        cert,
        is_default: or_default(default.as_ref(), false, |place| place.flag(report)),
    })
}

/// Keys of a listener that only `protocol: https` has.
pub(super) struct ListenerKeys<'a> {
    pub(super) termination: Option<NodeRef<'a>>,
    pub(super) strict_sni: Option<NodeRef<'a>>,
    pub(super) client_certificates: Option<NodeRef<'a>>,
}

impl<'a> ListenerKeys<'a> {
    pub(super) fn take(map: &mut MapDecoder<'a>) -> Self {
        Self {
            termination: map.take("termination"),
            strict_sni: map.take("strict_sni"),
            client_certificates: map.take("client_certificates"),
        }
    }

    /// Decodes the keys of a listener with `protocol: https`.
    pub(super) fn decode(&self, report: &mut Report) -> Option<ListenerTls> {
        let clients = optional_value(self.client_certificates.as_ref(), |place| {
            client_certificates(place, report)
        });
        Some(ListenerTls {
            termination: or_default(self.termination.as_ref(), Termination::default(), |place| {
                termination(place, report)
            }),
            has_strict_sni: or_default(self.strict_sni.as_ref(), false, |place| place.flag(report)),
            clients: clients?,
        })
    }

    /// Reports keys that a listener of another protocol has.
    pub(super) fn reject(&self, protocol: &str, report: &mut Report) {
        let keys = [
            ("termination", &self.termination),
            ("strict_sni", &self.strict_sni),
            ("client_certificates", &self.client_certificates),
        ];
        for (key, place) in keys {
            if let Some(place) = place {
                place.error(
                    report,
                    format!("`{key}` needs `protocol: https`: {protocol} is not decrypted"),
                );
            }
        }
    }
}

fn termination(place: &NodeRef<'_>, report: &mut Report) -> Option<Termination> {
    place.keyword("a place where TLS ends", &TERMINATIONS, report)
}

fn client_certificates(place: &NodeRef<'_>, report: &mut Report) -> Option<ClientCertificates> {
    let mut map = MapDecoder::open(place, report)?;
    let ca = map.require("ca");
    let required = map.take("required");
    let fields = map.take("fields");
    map.finish(report);
    let fields = or_default(fields.as_ref(), CertificateFields::default(), |place| {
        place.keyword("a choice of fields", &CertificateFields::ALL, report)
    });
    let is_required = or_default(required.as_ref(), true, |place| place.flag(report));
    Some(ClientCertificates {
        ca: PathBuf::from(ca?.text(report)?),
        is_required,
        fields,
    })
}

/// Decodes the TLS of a route.
pub(super) fn route(place: &NodeRef<'_>, report: &mut Report) -> Option<RouteTls> {
    let mut map = MapDecoder::open(place, report)?;
    let termination = map.take("termination");
    let insecure = map.take("insecure");
    let hsts = map.take("hsts");
    map.finish(report);
    let termination = optional_value(termination.as_ref(), |place| self::termination(place, report));
    let insecure = optional_value(insecure.as_ref(), |place| {
        place.keyword("a treatment of plain HTTP", &InsecurePolicy::ALL, report)
    });
    let hsts_value = optional_value(hsts.as_ref(), |place| self::hsts(place, report));
    let tls = RouteTls {
        termination: termination?,
        insecure: insecure?,
        hsts: hsts_value?,
    };
    if let (Some(Termination::Passthrough), Some(place)) = (tls.termination, &hsts) {
        place.error(
            report,
            "`hsts` needs TLS to end here: with `termination: passthrough` no answer can be read",
        );
        return None;
    }
    Some(tls)
}

/// Decodes a value of Strict-Transport-Security (RFC 6797, section 6.1).
fn hsts(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let is_directive = |directive: &str| {
        let directive = directive.trim().to_ascii_lowercase();
        match directive.strip_prefix("max-age=") {
            Some(seconds) => !seconds.is_empty() && seconds.bytes().all(|b| b.is_ascii_digit()),
            None => matches!(directive.as_str(), "includesubdomains" | "preload"),
        }
    };
    let has_age = text.to_ascii_lowercase().contains("max-age=");
    if has_age && text.len() <= MAX_HSTS_BYTES && text.split(';').all(is_directive) {
        return Some(text.to_owned());
    }
    let text = quote(text);
    place.error(
        report,
        format!("{text} is not a value of Strict-Transport-Security, such as \"max-age=31536000; includeSubDomains\""),
    );
    None
}

/// Decodes TLS to the hosts of a cluster.
pub(super) fn backend(place: &NodeRef<'_>, report: &mut Report) -> Option<BackendTls> {
    let mut map = MapDecoder::open(place, report)?;
    let ca = map.take("ca");
    let name = map.take("name");
    let verify = map.take("verify");
    let cert = map.take("cert");
    let key = map.take("key");
    let alpn = map.take("alpn");
    map.finish(report);
    if cert.is_some() != key.is_some() {
        place.error(report, "`cert` and `key` go together: give both or neither");
        return None;
    }
    let alpn = match alpn {
        Some(place) => self::alpn(&place, report)?,
        None => BackendTls::default().alpn,
    };
    let is_verified = or_default(verify.as_ref(), true, |place| place.flag(report));
    if let (false, Some(ca)) = (is_verified, &ca) {
        ca.error(report, "`ca` has no effect with `verify: false`: leave one of them out");
        return None;
    }
    let name = optional_value(name.as_ref(), |place| backend_name(place, report));
    let mut path = |place: Option<NodeRef<'_>>| place.and_then(|place| place.text(report).map(PathBuf::from));
    let (ca, cert, key) = (path(ca), path(cert), path(key));
    Some(BackendTls {
        ca,
        name: name?,
        is_verified,
        identity: cert.zip(key),
        alpn,
    })
}

/// Decodes the versions of HTTP that hosts are offered.
fn alpn(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<HttpVersion>> {
    let mut versions = Vec::new();
    for item in place.items("versions", HttpVersion::ALL.len(), report)? {
        let version = item.keyword("a version of HTTP", &HttpVersion::ALL, report)?;
        if versions.contains(&version) {
            item.error(report, "the version is in the list already");
            return None;
        }
        versions.push(version);
    }
    if versions.is_empty() {
        place.error(
            report,
            "the list of versions is empty: name at least one, such as http/1.1",
        );
        return None;
    }
    Some(versions)
}

fn backend_name(place: &NodeRef<'_>, report: &mut Report) -> Option<Hostname> {
    let text = place.text(report)?;
    let parsed = Hostname::parse(text.as_bytes());
    parsed
        .map_err(|error| place.error(report, format!("{}: {error}", quote(text))))
        .ok()
}
