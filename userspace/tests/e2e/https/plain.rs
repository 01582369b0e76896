//! Plain HTTP for names that are served over TLS: `insecure`.

use super::scene::{body, certificate, certificates};
use crate::http_request::scene::{Client, WebHost, field};
use crate::lab::{Lab, Signalbox, privileged};

#[test]
fn plain_requests_are_sent_to_https_or_nowhere() {
    if !privileged("plain_requests_are_sent_to_https_or_nowhere") {
        return;
    }
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let route = |name: &str, insecure: &str| {
        format!("{{ host: {name}, clusters: {{ east-1: 1 }}, tls: {{ termination: edge, insecure: {insecure} }} }}")
    };
    let routes = [
        route("r.test", "redirect"),
        route("n.test", "none"),
        route("a.test", "allow"),
    ];
    let routes: Vec<_> = routes.iter().map(String::as_str).collect();
    let sb = Signalbox::start(&lab, &body("", &certificates(&pem), &[("east-1", "")], &routes));
    sb.wait_healthy(&["east-1"]);
    let mut client = Client::connect(&lab);
    let answer = client.get("r.test", "/a/b?c=%20d");
    assert_eq!(
        (answer.status, field(&answer.head, "location")),
        (302, Some("https://r.test/a/b?c=%20d"))
    );
    // The method stays, and so does the connection; a body that is not read ends it.
    client.send("DELETE http://r.test:80/x HTTP/1.1\r\nHost: r.test:80\r\n\r\n");
    let answer = client.answer("DELETE");
    assert_eq!(
        (answer.status, field(&answer.head, "location")),
        (307, Some("https://r.test/x"))
    );
    assert_eq!(client.get("n.test", "/").status, 404);
    let answer = client.get("a.test", "/");
    assert_eq!(answer.status, 200);
    assert_eq!(field(&answer.head, "strict-transport-security"), None);
    assert_eq!(east.take().len(), 1, "the others have reached no host");
    client.send("POST /x HTTP/1.1\r\nHost: r.test\r\nContent-Length: 3\r\n\r\nabc");
    let answer = client.answer("POST");
    assert_eq!((answer.status, field(&answer.head, "connection")), (307, Some("close")));
    assert!(client.is_at_end());
}
