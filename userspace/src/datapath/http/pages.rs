//! Answers by the balancer itself.

use std::borrow::Cow;

use crate::state::error_pages::ErrorPages;

/// An answer by the balancer itself.
pub(in crate::datapath) struct Page<'a> {
    pub(in crate::datapath) status: u16,
    /// Sentence for the reader.
    pub(in crate::datapath) text: &'static str,
    /// Whether the client's connection is kept.
    pub(in crate::datapath) keeps_client: bool,
    /// Whether the request was HEAD: the answer has no body.
    pub(in crate::datapath) is_head: bool,
    /// URL that the client is redirected to.
    pub(in crate::datapath) location: Option<&'a str>,
    /// Time after which the client may try again.
    pub(in crate::datapath) retry_after_seconds: Option<u64>,
}

impl Page<'_> {
    /// Bytes of the answer, with the operator's page if there is one.
    pub(in crate::datapath) fn to_bytes(&self, pages: &ErrorPages) -> Vec<u8> {
        let (status, text) = (format!("{} {}", self.status, phrase(self.status)), self.text);
        let of_balancer = || {
            format!(
                "<!doctype html><html><head><title>{status}</title></head><body><h1>{status}</h1><p>{text}</p></body></html>\n"
            )
        };
        let (content_type, body) = match pages.get(self.status) {
            Some(page) => (page.content_type, Cow::Borrowed(&page.body[..])),
            None => ("text/html; charset=utf-8", of_balancer().into_bytes().into()),
        };
        let connection = if self.keeps_client { "" } else { "Connection: close\r\n" };
        let location = self
            .location
            .map(|url| format!("Location: {url}\r\n"))
            .unwrap_or_default();
        let wait = self
            .retry_after_seconds
            .map(|seconds| format!("Retry-After: {seconds}\r\n"));
        let wait = wait.unwrap_or_default();
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{location}{wait}{connection}\r\n",
            body.len(),
        )
        .into_bytes();
        if !self.is_head {
            bytes.extend_from_slice(&body);
        }
        bytes
    }
}

/// Reason phrase of a status code that the balancer sends (RFC 9110, section 15).
const fn phrase(status: u16) -> &'static str {
    match status {
        302 => "Found",
        307 => "Temporary Redirect",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        408 => "Request Timeout",
        414 => "URI Too Long",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

/// Sentence for a status code without a more specific reason.
pub(super) const fn text(status: u16) -> &'static str {
    match status {
        408 => "The request took too long to arrive.",
        302 | 307 => "This application is served over TLS only.",
        414 => "The request's target is too long.",
        421 => "This connection is not for the host of the request: connect anew.",
        429 => "Too many requests have come from your address: try again later.",
        431 => "The request's head is too large.",
        501 => "The request asks for something that is not supported.",
        502 => "The application's router host gave no proper answer.",
        503 => "The application's router hosts could not be reached.",
        504 => "The application did not answer in time.",
        505 => "Only HTTP/1.0 and HTTP/1.1 are supported here.",
        _ => "The request could not be understood.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_its_length_and_what_becomes_of_the_connection() {
        let page = |keeps_client, is_head| {
            let (status, text) = (504, text(504));
            let page = Page {
                status,
                text,
                keeps_client,
                is_head,
                location: None,
                retry_after_seconds: None,
            };
            String::from_utf8(page.to_bytes(&ErrorPages::default())).unwrap()
        };
        let (head, body) = (page(false, true), page(true, false));
        assert!(head.starts_with("HTTP/1.1 504 Gateway Timeout\r\n") && head.ends_with("Connection: close\r\n\r\n"));
        let (fields, text) = body.split_once("\r\n\r\n").unwrap();
        assert!(fields.contains(&format!("Content-Length: {}", text.len())) && !fields.contains("Connection"));
    }
}
