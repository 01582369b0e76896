//! Tests of a session, in which the test plays the broker.

use signalbox_core::model::{EndpointFilter, Naming};
use tokio::io::{DuplexStream, duplex};

use super::*;

/// Longer than any test: it only passes if something is broken.
const NEVER_TIMEOUT: Duration = Duration::from_secs(600);

fn settings() -> RoutingEvents {
    RoutingEvents {
        brokers: Vec::new(),
        tls: None,
        login: None,
        destination: "/topic/t".into(),
        client_id: Some("me".into()),
        subscription: Some("s:1".into()),
        filter: EndpointFilter { types: [].into() },
        naming: Naming {
            prefix: "ha-".into(),
            domain: None,
        },
        certificates: None,
        applications: Vec::new(),
        expose: Vec::new(),
    }
}

struct Peer(DuplexStream, Decoder);

impl Peer {
    async fn read(&mut self) -> Frame {
        loop {
            if let Some(frame) = self.1.next().unwrap() {
                return frame;
            }
            let mut bytes = Vec::new();
            assert_ne!(self.0.read_buf(&mut bytes).await.unwrap(), 0);
            self.1.push(&bytes);
        }
    }

    async fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }
}

/// Returns a session with a broker that answered CONNECT like this, and the broker.
async fn with(connected: &str, beat: Duration) -> (Result<Session, String>, Peer) {
    let (ours, theirs) = duplex(1 << 16);
    let mut peer = Peer(theirs, Decoder::new(1 << 10));
    let settings = settings();
    let session = Session::open(Box::new(ours), "mq", &settings, beat);
    let broker = async {
        let hello = peer.read().await;
        assert_eq!(hello.command, "CONNECT");
        assert_eq!(hello.header("client-id"), Some("me"));
        peer.say(connected.as_bytes()).await;
    };
    let (session, ()) = tokio::join!(session, broker);
    (session, peer)
}

#[tokio::test]
async fn the_versions_differ_in_what_an_acknowledgement_names() {
    for (version, wanted) in [
        ("1.2", [("id", "a:1")].as_slice()),
        ("1.1", &[("message-id", "m:1"), ("subscription", "0")]),
    ] {
        let (session, mut peer) = with(&format!("CONNECTED\nversion:{version}\n\n\0"), NEVER_TIMEOUT).await;
        let mut session = session.unwrap();
        let subscribe = peer.read().await;
        assert_eq!(subscribe.header("ack"), Some("client-individual"));
        assert_eq!(subscribe.header("activemq.prefetchSize"), Some("1"));
        assert_eq!(subscribe.header("activemq.subscriptionName"), Some("s:1"));
        peer.say(b"RECEIPT\nreceipt-id:subscribed\n\n\0MESSAGE\nmessage-id:m\\c1\nack:a\\c1\n\nhi\0")
            .await;
        assert!(matches!(session.next_event().await.unwrap(), BrokerEvent::Subscribed));
        let BrokerEvent::Message(message) = session.next_event().await.unwrap() else {
            panic!()
        };
        assert_eq!((&message.body[..], message.cut), (&b"hi"[..], false));
        session.ack(&message).await.unwrap();
        let ack = peer.read().await;
        assert_eq!(ack.command, "ACK");
        for (name, value) in wanted {
            assert_eq!(ack.header(name), Some(*value), "{version}");
        }
        assert_eq!(ack.headers.len(), wanted.len());
    }
}

#[tokio::test]
async fn a_broker_without_a_valid_stomp_greeting_is_refused() {
    for (answer, error) in [
        (
            "CONNECTED\nversion:1.0\n\n\0",
            "the broker speaks STOMP 1.0; it takes 1.1 or 1.2",
        ),
        (
            "ERROR\nmessage:User name [x]\\nis bad\n\nsecret\0",
            "the broker answers \"User name [x]is bad\"",
        ),
        (
            "HTTP/1.1 400 Bad Request\nx\n\n",
            "the broker's frame has a header without a colon",
        ),
    ] {
        let (session, _peer) = with(answer, NEVER_TIMEOUT).await;
        let found = session.err().unwrap();
        assert!(found.contains(error), "{found}");
    }
}

#[tokio::test]
async fn a_broker_that_falls_silent_is_noticed_also_during_work() {
    let beat = Duration::from_millis(20);
    let (session, _peer) = with("CONNECTED\nversion:1.2\nheart-beat:20,0\n\n\0", beat).await;
    let error = timeout(NEVER_TIMEOUT, session.unwrap().run_with_heart_beats(pending::<()>()))
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.contains("silent for longer than it promised"), "{error}");
}

#[tokio::test]
async fn hearts_beat_during_work_where_the_broker_wants_it() {
    let beat = Duration::from_millis(20);
    let (session, mut peer) = with("CONNECTED\nversion:1.2\nheart-beat:0,20\n\n\0", beat).await;
    peer.read().await;
    let beats = async {
        for _ in 0..3 {
            let mut byte = [0];
            peer.0.read_exact(&mut byte).await.unwrap();
            assert_eq!(byte, *b"\n");
        }
    };
    timeout(NEVER_TIMEOUT, session.unwrap().run_with_heart_beats(beats))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_broker_that_goes_is_noticed() {
    let (session, peer) = with("CONNECTED\nversion:1.2\n\n\0", NEVER_TIMEOUT).await;
    drop(peer);
    let error = session.unwrap().next_event().await.unwrap_err();
    assert!(error.contains("closed the connection"), "{error}");
}

#[tokio::test]
async fn a_heart_beat_is_heard_and_half_a_message_is_not_one() {
    let (session, mut peer) = with("CONNECTED\nversion:1.2\n\n\0", NEVER_TIMEOUT).await;
    let mut session = session.unwrap();
    peer.say(b"\n").await;
    assert!(matches!(session.next_event().await.unwrap(), BrokerEvent::HeartBeat));
    peer.say(b"MESSAGE\nack:1\n\nhalf").await;
    let (news, ()) = tokio::join!(session.next_event(), async {
        tokio::task::yield_now().await;
        peer.say(b" and half\0").await;
    });
    let BrokerEvent::Message(message) = news.unwrap() else {
        panic!()
    };
    assert_eq!(message.body, b"half and half");
}
