//! Fields that describe a client's certificate to hosts: such fields from a client itself are never believed.

use crate::wire::http1::edit::{FieldEdit, FieldName};
use crate::wire::http1::fields::FieldSection;
use crate::wire::http1::grammar::is_same_to_hosts;

/// Fields of RFC 9440.
const STANDARD: [&[u8]; 2] = [b"client-cert", b"client-cert-chain"];

/// Field of OpenShift's router, and prefix of its other fields.
const ROUTER: &[u8] = b"x-ssl";

/// Removals of the fields that a client has sent.
#[must_use]
pub fn removals(fields: &FieldSection, buffer: &[u8]) -> Vec<FieldEdit> {
    let names = fields.iter().map(|field| field.name.of(buffer));
    let names = names.filter(|name| tells_of_certificate(name));
    let parsed = names.filter_map(|name| FieldName::parse(std::str::from_utf8(name).ok()?));
    parsed.map(FieldEdit::Remove).collect()
}

/// Whether a field describes a certificate.
fn tells_of_certificate(name: &[u8]) -> bool {
    let is_routers = name.split_at_checked(ROUTER.len()).is_some_and(|(first, rest)| {
        is_same_to_hosts(first, ROUTER) && matches!(rest.first(), None | Some(b'-' | b'_'))
    });
    is_routers || STANDARD.into_iter().any(|known| is_same_to_hosts(name, known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::http1::limits::MessageLimits;
    use crate::wire::http1::parse::{self, ParsedRequest};

    #[test]
    fn client_certificate_headers_from_clients_are_removed() {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\nX-SSL: 1\r\nx-ssl-client-cn: \"x\"\r\nX_SSL_Client_DN: y\r\n\
                     Client-Cert: :AA==:\r\nclient-CERT-chain: :AA==:\r\nClient_Cert: z\r\nX-SSLx: kept\r\n\
                     X-Ssh: kept\r\nClient-Certs: kept\r\n\r\n";
        let Ok(ParsedRequest::Head(head)) = parse::request(text, &MessageLimits::default()) else {
            panic!("no head")
        };
        let removed = removals(&head.fields, text);
        let names = [
            "X-SSL",
            "X-SSL-Client-CN",
            "X_SSL_Client_DN",
            "Client-Cert",
            "Client-Cert-Chain",
            "Client_Cert",
        ];
        let expected = names.map(|name| FieldEdit::Remove(FieldName::constant(name)));
        assert_eq!(removed, expected);
    }
}
