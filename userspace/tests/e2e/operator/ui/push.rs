//! `/ws`: the prototype's page gets the messages that it expects.

use std::net::TcpStream;

use serde_json::Value;
use tungstenite::http::Request;
use tungstenite::{Error, Message, WebSocket, client};

use super::{Lab, Router, Signalbox, config, eventually, http, lab};
use crate::lab::lab_test;

const API: &str = "127.0.0.1:8089";

/// Opens the WebSocket as a page of `origin`; called in the balancer's namespace.
fn connect(query: &str, origin: &str) -> Result<WebSocket<TcpStream>, Box<Error>> {
    let request = Request::builder()
        .uri(format!("ws://{API}/ws{query}"))
        .header("Host", API)
        .header("Origin", origin)
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
        .body(())
        .unwrap();
    let stream = TcpStream::connect(API).unwrap();
    stream.set_read_timeout(Some(lab::SOON)).unwrap();
    match client(request, stream) {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::HandshakeError::Failure(error)) => Err(Box::new(error)),
        Err(other) => panic!("{other}"),
    }
}

fn next_push(socket: &mut WebSocket<TcpStream>) -> Value {
    loop {
        if let Message::Text(text) = socket.read().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

#[lab_test]
fn the_prototypes_page_gets_its_figures_by_web_socket() {
    let lab = Lab::new();
    let mut routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let body = config::web(&["{ host: app.example.com, clusters: { east: 50, west: 50 } }"]);
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "west-1"]);
    for _ in 0..6 {
        assert_eq!(http::ask(&lab, "10.1.0.1:80", "app.example.com").status, 200);
    }
    let own = format!("http://{API}");
    lab.lb.run(|| {
        // Two viewers at once, where the prototype has room for one.
        let mut first = connect("?interval=1&ticks=40", &own).unwrap();
        let mut second = connect("", &own).unwrap();
        let with_all = |push: &Value| {
            let hosts = push["hosts"].as_object().unwrap();
            let last = |host: &Value| host["stats"].as_array().unwrap().last().unwrap()["totalConnections"].as_u64();
            hosts.values().filter_map(last).sum::<u64>() == 6
        };
        let mut push = Value::Null;
        assert!(eventually(lab::SOON, || {
            push = next_push(&mut first);
            with_all(&push)
        }));
        assert_eq!(push["mutation"], "stats");
        let lengths = ["ticks", "overallConnections", "healthyHosts", "unhealthyHosts"]
            .map(|list| push[list].as_array().unwrap().len());
        assert_eq!(lengths, [40; 4]);
        let host = &push["hosts"]["east-1"];
        assert_eq!(
            (&host["clusterKey"], &host["hostIP"]),
            (&"east".into(), &"10.2.0.2".into())
        );
        assert_eq!((&host["httpPort"], &host["httpsPort"]), (&80.into(), &443.into()));
        assert_eq!(host["stats"].as_array().unwrap().len(), 40);
        assert_eq!(next_push(&mut second)["ticks"].as_array().unwrap().len(), 120);
        assert!(
            sb.metric("signalbox_admin_connections{socket=\"tcp\"}") >= 2.0,
            "viewers count"
        );

        // A stopped router host is unhealthy in the pushed messages; the lab's other three have never served.
        routers[0].kill();
        assert!(eventually(lab::SOON, || {
            push = next_push(&mut first);
            push["unhealthyHosts"].as_array().unwrap().last() == Some(&4.into())
        }));
        assert_eq!(push["hosts"]["east-1"]["stats"][39]["healthy"], false);
        assert_eq!(push["hosts"]["west-1"]["stats"][39]["healthy"], true);
        first.close(None).unwrap();

        // The page of another site may open a WebSocket to any address, and gets none here.
        match *connect("", "http://evil.example").unwrap_err() {
            Error::Http(answer) => assert_eq!(answer.status(), 403),
            other => panic!("{other}"),
        }
    });
    assert!(sb.metric("signalbox_admin_refused_total{limit=\"foreign_origin\"}") >= 1.0);
}
