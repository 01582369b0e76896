//! A head that is sent on is the one that came, but for the fields of the hop.

use proptest::prelude::*;
use signalbox_core::wire::http1::edit::{self, RequestRewrite, ResponseRewrite};
use signalbox_core::wire::http1::framing::{self, AnswerKind};
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::parse::{self, ParsedRequest};

use crate::hyper_server::{self, SeenRequest};
use crate::streams::{answers, requests};
use crate::{hyper_client, ours};

const HOP: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "te", "upgrade"];

fn end_to_end(fields: &mut Vec<(String, Vec<u8>)>) {
    fields.retain(|(name, _)| !HOP.contains(&name.as_str()));
}

fn without_hop(mut request: SeenRequest) -> SeenRequest {
    end_to_end(&mut request.fields);
    request
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_request(stream in requests()) {
        let limits = MessageLimits::default();
        let (seen, _) = ours::requests(&stream);
        let Some(first) = seen.into_iter().next() else {
            return Ok(());
        };
        let Ok(ParsedRequest::Head(head)) = parse::request(&stream, &limits) else {
            unreachable!("the first request was accepted");
        };
        let rewritten = edit::request(&head, &stream, &RequestRewrite::default());
        let sent = [&rewritten.to_vec(&stream)[..], &stream[head.range.end()..]].concat();
        let (again, _) = ours::requests(&sent);
        prop_assert_eq!(without_hop(again[0].clone()), without_hop(first), "{:?}", String::from_utf8_lossy(&sent));
        prop_assert_eq!(&again[0], &hyper_server::requests(&sent, 1000).0[0]);
        let wishes: Vec<_> = again[0].fields.iter().filter(|(name, _)| name == "te").collect();
        prop_assert!(wishes.iter().all(|(_, value)| value == b"trailers") && wishes.len() <= 1);
        // A head that needs no change is the range that came, and nothing is copied but its last line end.
        let Ok(ParsedRequest::Head(head)) = parse::request(&sent, &limits) else {
            unreachable!("the request that is sent on was accepted");
        };
        let twice = edit::request(&head, &sent, &RequestRewrite::default());
        prop_assert_eq!(twice.to_vec(&sent), &sent[..head.range.end()]);
    }

    #[test]
    fn an_answer(stream in answers(), method in prop::sample::select(vec!["GET", "HEAD"])) {
        let asked = Method::parse(method.as_bytes());
        let limits = MessageLimits::default();
        let (Some(mut seen), Ok(Some(head))) = (ours::answer(&stream, asked), parse::response(&stream, &limits)) else {
            return Ok(());
        };
        if framing::answer(&head, &stream, asked) == Ok(AnswerKind::Interim) {
            return Ok(());
        }
        let rewritten = edit::response(&head, &stream, &ResponseRewrite::default());
        let sent = [&rewritten.to_vec(&stream)[..], &stream[head.range.end()..]].concat();
        let mut again = ours::answer(&sent, asked).unwrap();
        let theirs = hyper_client::answer(&sent, method, 1000);
        prop_assert_eq!(Some(&again), theirs.as_ref());
        end_to_end(&mut seen.fields);
        end_to_end(&mut again.fields);
        if seen.status == 204 {
            seen.fields.retain(|(name, _)| name != "content-length" && name != "transfer-encoding");
        }
        prop_assert_eq!(again, seen);
    }
}
