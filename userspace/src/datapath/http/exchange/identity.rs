//! Identity of a request: the client behind trusted proxies, the request's id, and fields that tell hosts of both.

use std::net::SocketAddr;

use signalbox_common::hash;
use signalbox_core::model::http::HttpPolicy;
use signalbox_core::wire::http::client_certificate;
use signalbox_core::wire::http::forwarded::{self, ForwardedPolicy, Hop};
use signalbox_core::wire::http1::edit::{FieldEdit, FieldName};

use super::attempt::Request;
use super::connection::HttpConnection;

/// Maximum length of a request id that is accepted from a client.
const MAX_ID_BYTES: usize = 128;

impl HttpConnection<'_> {
    /// Finds the client of a request: if the peer is a trusted proxy, the client that it names.
    pub(super) fn client_of(&self, request: &Request, policy: &HttpPolicy) -> SocketAddr {
        let Some(trusted) = &policy.trusted else {
            return self.peer;
        };
        let address = forwarded::client_address(self.peer.ip(), trusted, &request.head.fields, &request.bytes);
        if address == self.peer.ip().to_canonical() {
            self.peer
        } else {
            // The port of a client behind a proxy is unknown.
            SocketAddr::new(address, 0)
        }
    }

    /// Id of a request: the id from a trusted client, otherwise a new one. `None`: requests get no id.
    pub(super) fn id_of(&self, request: &Request, policy: &HttpPolicy) -> Option<Box<str>> {
        let name = policy.request_id.as_deref()?;
        let mut given = request.head.fields.values(&request.bytes, name);
        let is_good = |id: &&[u8]| {
            !id.is_empty() && id.len() <= MAX_ID_BYTES && id.iter().all(|b| b.is_ascii_graphic() && *b != b',')
        };
        let given = match (given.next().filter(is_good), given.next()) {
            (Some(id), None) if self.is_believed(policy) => std::str::from_utf8(id).ok(),
            _ => None,
        };
        Some(given.map_or_else(|| self.new_id(), Into::into))
    }

    /// Changes of a request's fields. `forwarded` controls the forwarded fields.
    pub(super) fn request_fields(
        &self,
        request: &Request,
        policy: &HttpPolicy,
        forwarded: ForwardedPolicy,
    ) -> Vec<FieldEdit> {
        let (fields, bytes) = (&request.head.fields, &request.bytes[..]);
        let hop = Hop {
            peer: self.peer.ip(),
            port: self.destination.port(),
            is_https: self.is_tls,
            is_http2: self.is_http2,
            host: fields.values(bytes, "host").next(),
        };
        let mut edits = forwarded::edits(forwarded, policy.trusted.as_deref(), &hop, fields, bytes);
        if policy.hides_certificate_fields {
            edits.extend(client_certificate::removals(fields, bytes));
        }
        edits.extend(self.certificate_fields.iter().flat_map(|fields| fields.iter().cloned()));
        let name = policy.request_id.as_deref().and_then(FieldName::parse);
        if let Some((name, id)) = name.zip(request.id.as_deref()) {
            edits.push(FieldEdit::Set(name, id.as_bytes().to_vec()));
        }
        edits
    }

    fn is_believed(&self, policy: &HttpPolicy) -> bool {
        let address = self.peer.ip().to_canonical();
        let trusted = policy.trusted.as_ref();
        trusted.is_none_or(|trusted| trusted.iter().any(|prefix| prefix.contains(&address)))
    }

    /// A unique request id: 128 bits from a counter and the process' secret.
    fn new_id(&self) -> Box<str> {
        let shared = &self.worker.shared;
        let number = shared.request_ids.ticket();
        let high = hash::mix(shared.seed ^ number);
        let low = hash::mix(high ^ shared.seed.rotate_left(32));
        format!("{high:016x}{low:016x}").into()
    }
}
