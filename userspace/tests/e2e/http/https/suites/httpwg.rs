//! httpwg, the tests of h2spec for RFC 9113, against the HTTP/2 of a plain listener.

use std::collections::BTreeSet;

use super::program;
use crate::http::request::scene::{HTTP, WebHost};
use crate::lab::{Lab, Signalbox, config, privileged};

const PROGRAM: &str = "SIGNALBOX_HTTPWG";

/// Frames that break the protocol, for which the crate h2 ends the connection as it should, but with PROTOCOL_ERROR in
/// place of STREAM_CLOSED, FRAME_SIZE_ERROR, FLOW_CONTROL_ERROR or COMPRESSION_ERROR. No client does better by another
/// code.
const OTHER_CODE: [&str; 14] = [
    "4. http frames :: invalid header block fragment",
    "5. streams and multiplexing :: closed sends headers frame",
    "5. streams and multiplexing :: closed sends headers frame after rst stream",
    "5. streams and multiplexing :: half closed remote sends data frame",
    "5. streams and multiplexing :: half closed remote sends headers frame",
    "6. frame definitions :: sends data frame on invalid stream state",
    "6. frame definitions :: sends ping frame with invalid length",
    "6. frame definitions :: sends priority frame with invalid length",
    "6. frame definitions :: sends rst stream frame with invalid length",
    "6. frame definitions :: sends settings frame with ack and payload",
    "6. frame definitions :: sends settings frame with invalid length",
    "6. frame definitions :: sends settings initial window size with exceeded max window size value",
    "6. frame definitions :: sends settings initial window size with invalid value",
    "6. frame definitions :: sends window update frame with invalid length",
];

/// Malformed requests that are answered 400 and not reset, as RFC 9113, section 8.1.1, permits: a client sees why.
const ANSWERED: [&str; 4] = [
    "8. expressing http semantics in http2 :: sends connect without authority",
    "8. expressing http semantics in http2 :: sends headers frame with leading space in field value",
    "8. expressing http semantics in http2 :: sends headers frame with mismatched host authority",
    "8. expressing http semantics in http2 :: sends headers frame with trailing tab in field value",
];

/// A client that announces by GOAWAY that it leaves, though with an unknown code, and has no stream: its connection is
/// closed.
const LET_GO: [&str; 1] = ["7. error codes :: sends goaway frame with unknown error code"];

/// A pseudo field in a trailer section, which the crate h2 drops: the host never sees it.
const DROPPED: [&str; 1] =
    ["8. expressing http semantics in http2 :: sends headers frame with pseudo header in trailer"];

/// Window updates for a stream whose answer may have ended before they come.
const ANSWERED_BEFORE: [&str; 1] =
    ["6. frame definitions :: sends multiple window update frames increasing flow control window above max on stream"];

/// A PUSH_PROMISE that the suite begins and does not end, because it has no END_HEADERS: the balancer waits for the
/// rest as long as for any head, and the suite usually does not.
const UNFINISHED: [&str; 1] = ["8. expressing http semantics in http2 :: client sends push promise frame"];

mod share_5 {
    use super::*;

    #[test]
    fn httpwg_finds_only_the_intended_deviations_from_http2() {
        const TEST: &str = "httpwg_finds_only_the_intended_deviations_from_http2";
        if !privileged(TEST) {
            return;
        }
        let Some(program) = program(TEST, PROGRAM) else { return };
        let lab = Lab::new();
        let _east = WebHost::start(&lab, "east-1");
        let clusters = config::cluster("east", &[], &["east-1"]);
        // The suite asks for its own names.
        let body = format!(
            "listeners:\n  - {{ name: http, protocol: http, routing: request, listen: [\"{HTTP}\"] }}\n\
             clusters:\n{clusters}unmatched: {{ cluster: east }}\n"
        );
        let sb = Signalbox::start(&lab, &body);
        sb.wait_healthy(&["east-1"]);
        let mut command = lab.client.command(program);
        let patience = ["--connect-timeout", "5000", "--frame-timeout", "3000"];
        command.args(["--verbose", "--address", HTTP]).args(patience);
        // One test after the other, for the suite's time limits.
        let said = command.env("SEQUENTIAL", "1").output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr);
        let named = |mark: &str| -> BTreeSet<String> {
            let lines = text.lines().filter_map(|line| line.split_once(mark));
            lines.map(|(_, name)| name.trim().to_owned()).collect()
        };
        let (begun, passed) = (named("Running test: RFC 9113 :: "), named("Test passed: RFC 9113 :: "));
        let meant = [
            &OTHER_CODE[..],
            &ANSWERED,
            &LET_GO,
            &DROPPED,
            &ANSWERED_BEFORE,
            &UNFINISHED,
        ]
        .concat();
        // Some of the tests expected to fail pass where the answer is fast.
        let failed: Vec<_> = begun
            .difference(&passed)
            .filter(|name| !meant.contains(&name.as_str()))
            .collect();
        assert!(begun.len() > 100, "{} tests: {text}", begun.len());
        assert!(failed.is_empty(), "{failed:?}: {text}");
        let refused = sb.metric("signalbox_requests_total{code=\"4xx\"}");
        assert!(refused >= ANSWERED.len() as f64, "{refused}");
    }
}
