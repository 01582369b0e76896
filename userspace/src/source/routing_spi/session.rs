//! One connection to a broker: the handshake, heart-beats both ways, messages in, acknowledgements out.

use std::future::pending;
use std::time::Duration;

use signalbox_core::model::{Login, RoutingEvents};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout};

use super::connect::Stream;
use super::stomp::{Decoder, Frame};

/// For the handshake, and for a write that nobody reads.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked of the broker, and offered to it.
pub(super) const HEART_BEAT: Duration = Duration::from_secs(5);

/// Most bytes that wait to be looked at while a message is worked on. With a prefetch of one there are none.
const MAX_WAITING: usize = 1 << 20;

/// What a broker says that it is not being asked.
#[derive(Debug)]
pub(super) enum News {
    /// The subscription is in force.
    Subscribed,
    /// A message.
    Message(Message),
}

/// A message that is to be acknowledged.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) body: Vec<u8>,
    /// Whether there was more of it than is kept.
    pub(super) cut: bool,
    /// The headers that acknowledge it.
    ack: Vec<(&'static str, String)>,
}

/// A connection with a subscription.
pub(super) struct Session {
    stream: Box<dyn Stream>,
    decoder: Decoder,
    /// STOMP 1.2, not 1.1.
    modern: bool,
    /// How often we said that we would be heard of.
    send_every: Option<Duration>,
    /// How long the broker may be silent.
    silence: Option<Duration>,
    sent: Instant,
    heard: Instant,
}

impl Session {
    /// Shakes hands and subscribes. `heart_beat` is what is asked for; the broker may want more time.
    ///
    /// # Errors
    /// In words.
    pub(super) async fn open(
        stream: Box<dyn Stream>,
        host: &str,
        settings: &RoutingEvents,
        heart_beat: Duration,
    ) -> Result<Self, String> {
        let now = Instant::now();
        let mut session = Self {
            stream,
            decoder: Decoder::new(signalbox_core::spi::MAX_BYTES),
            modern: true,
            send_every: None,
            silence: None,
            sent: now,
            heard: now,
        };
        let hello = hello(host, settings, heart_beat)?;
        let answer = timeout(PATIENCE, async {
            session.send(&hello).await?;
            session.frame().await
        });
        let answer = answer
            .await
            .map_err(|_| "the broker does not answer to CONNECT".to_owned())??;
        if answer.command != "CONNECTED" {
            return Err(complaint(&answer));
        }
        session.modern = match answer.header("version") {
            Some("1.2") => true,
            Some("1.1") => false,
            other => {
                let other = other.unwrap_or("1.0");
                return Err(format!("the broker speaks STOMP {other}; it takes 1.1 or 1.2"));
            }
        };
        session.agree(&answer, heart_beat);
        session.send(&subscribe(settings)).await?;
        Ok(session)
    }

    /// What both have promised: `heart-beat` is what a side can do, and what it wants of the other (ms; 0: nothing).
    fn agree(&mut self, answer: &Frame, ours: Duration) {
        let theirs = answer.header("heart-beat").unwrap_or("0,0");
        let (can, wants) = theirs.split_once(',').unwrap_or(("0", "0"));
        let time = |text: &str| text.trim().parse().ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        self.send_every = time(wants).map(|wants| wants.max(ours));
        // Half as much again, as the specification has it: "the receiver SHOULD take into account an error margin".
        self.silence = time(can).map(|can| can.max(ours) * 5 / 2);
    }

    /// The next thing that the broker says.
    ///
    /// # Errors
    /// The connection is of no more use; in words.
    pub(super) async fn news(&mut self) -> Result<News, String> {
        let frame = self.frame().await?;
        match frame.command.as_str() {
            "RECEIPT" => Ok(News::Subscribed),
            "MESSAGE" => self.message(frame).map(News::Message),
            _ => Err(complaint(&frame)),
        }
    }

    fn message(&self, frame: Frame) -> Result<Message, String> {
        let header = |name: &str| {
            let value = frame.header(name).map(str::to_owned);
            value.ok_or_else(|| format!("the broker's message has no `{name}`, so it cannot be acknowledged"))
        };
        let ack = if self.modern {
            vec![("id", header("ack")?)]
        } else {
            vec![
                ("message-id", header("message-id")?),
                ("subscription", SUBSCRIPTION.to_owned()),
            ]
        };
        Ok(Message {
            cut: frame.cut,
            body: frame.body,
            ack,
        })
    }

    /// Tells the broker that a message need not come again.
    ///
    /// # Errors
    /// The connection is of no more use: it will come again.
    pub(super) async fn ack(&mut self, message: &Message) -> Result<(), String> {
        let headers: Vec<(&str, &str)> = message
            .ack
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        self.send(&Frame::new("ACK", &headers)).await
    }

    /// Waits for some work while hearts beat.
    ///
    /// # Errors
    /// The connection was lost before the work was done. What the work has begun goes on as far as it does by itself.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, String> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                beat = self.beat() => beat?,
            }
        }
    }

    /// Says goodbye, as far as anybody listens. What was not acknowledged comes again.
    pub(super) async fn close(mut self) {
        let _ = self.send(&Frame::new("DISCONNECT", &[])).await;
        let _ = timeout(PATIENCE, self.stream.shutdown()).await;
    }

    async fn frame(&mut self) -> Result<Frame, String> {
        loop {
            if let Some(frame) = self.decoder.next().map_err(|error| error.to_string())? {
                return Ok(frame);
            }
            self.beat().await?;
        }
    }

    /// Waits until something is read, or a heart-beat was due and sent.
    async fn beat(&mut self) -> Result<(), String> {
        let send_at = self.send_every.map(|every| self.sent + every);
        let dead_at = self.silence.map(|silence| self.heard + silence);
        let full = self.decoder.waiting() > MAX_WAITING;
        // Not in an array kept here: every connection's future would carry it.
        let mut bytes = Vec::with_capacity(16 << 10);
        tokio::select! {
            read = self.stream.read_buf(&mut bytes), if !full => match read {
                Ok(0) => Err("the broker has closed the connection".to_owned()),
                Ok(_) => {
                    self.heard = Instant::now();
                    self.decoder.push(&bytes);
                    Ok(())
                }
                Err(error) => Err(format!("reading from the broker: {error}")),
            },
            () = until(send_at) => self.write(b"\n").await,
            () = until(dead_at), if !full => Err("the broker has been silent for longer than it promised".to_owned()),
        }
    }

    async fn send(&mut self, frame: &Frame) -> Result<(), String> {
        self.write(&frame.encode()).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let write = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        match timeout(PATIENCE, write).await {
            Ok(Ok(())) => {
                self.sent = Instant::now();
                Ok(())
            }
            Ok(Err(error)) => Err(format!("writing to the broker: {error}")),
            Err(_) => Err("the broker does not read what it is sent".to_owned()),
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

const SUBSCRIPTION: &str = "0";

fn hello(host: &str, settings: &RoutingEvents, heart_beat: Duration) -> Result<Frame, String> {
    let beat = format!("{0},{0}", heart_beat.as_millis());
    let mut headers = vec![
        ("accept-version", "1.1,1.2"),
        ("host", host),
        ("heart-beat", beat.as_str()),
    ];
    let password = settings.login.as_ref().map(password).transpose()?;
    if let (Some(login), Some(password)) = (&settings.login, &password) {
        headers.extend([("login", login.user.as_str()), ("passcode", password.as_str())]);
    }
    headers.extend(settings.client_id.as_deref().map(|id| ("client-id", id)));
    Ok(Frame::new("CONNECT", &headers))
}

fn password(login: &Login) -> Result<String, String> {
    let path = login.password_file.display();
    let text = std::fs::read_to_string(&login.password_file).map_err(|error| format!("reading {path}: {error}"))?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() || line.contains(char::is_control) {
        return Err(format!("the first line of {path} is not a password"));
    }
    Ok(line.to_owned())
}

fn subscribe(settings: &RoutingEvents) -> Frame {
    let mut headers = vec![
        ("id", SUBSCRIPTION),
        ("destination", settings.destination.as_str()),
        ("ack", "client-individual"),
        // One at a time, so that they are taken in order, and come again in order.
        ("activemq.prefetchSize", "1"),
        ("receipt", "subscribed"),
    ];
    headers.extend(
        settings
            .subscription
            .as_deref()
            .map(|name| ("activemq.subscriptionName", name)),
    );
    Frame::new("SUBSCRIBE", &headers)
}

/// What a broker said instead, short and on one line.
fn complaint(frame: &Frame) -> String {
    let said = frame.header("message").unwrap_or(&frame.command);
    let said: String = said.chars().filter(|c| !c.is_control()).take(200).collect();
    format!("the broker answers {said:?}")
}

#[cfg(test)]
mod tests {
    use signalbox_core::spi::{Filter, Naming};
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// So long that it only passes if something is broken.
    const NEVER: Duration = Duration::from_secs(600);

    fn settings() -> RoutingEvents {
        RoutingEvents {
            brokers: Vec::new(),
            tls: None,
            login: None,
            destination: "/topic/t".into(),
            client_id: Some("me".into()),
            subscription: Some("s:1".into()),
            filter: Filter { types: [].into() },
            naming: Naming {
                prefix: "ha-".into(),
                domain: None,
            },
            certificates: None,
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

    /// A session with a broker that answered like this, and the broker.
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
            let (session, mut peer) = with(&format!("CONNECTED\nversion:{version}\n\n\0"), NEVER).await;
            let mut session = session.unwrap();
            let subscribe = peer.read().await;
            assert_eq!(subscribe.header("ack"), Some("client-individual"));
            assert_eq!(subscribe.header("activemq.prefetchSize"), Some("1"));
            assert_eq!(subscribe.header("activemq.subscriptionName"), Some("s:1"));
            peer.say(b"RECEIPT\nreceipt-id:subscribed\n\n\0MESSAGE\nmessage-id:m\\c1\nack:a\\c1\n\nhi\0")
                .await;
            assert!(matches!(session.news().await.unwrap(), News::Subscribed));
            let News::Message(message) = session.news().await.unwrap() else {
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
    async fn whoever_does_not_speak_it_is_left() {
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
            let (session, _peer) = with(answer, NEVER).await;
            let found = session.err().unwrap();
            assert!(found.contains(error), "{found}");
        }
    }

    #[tokio::test]
    async fn a_broker_that_falls_silent_is_noticed_also_during_work() {
        let beat = Duration::from_millis(20);
        let (session, _peer) = with("CONNECTED\nversion:1.2\nheart-beat:20,0\n\n\0", beat).await;
        let error = timeout(NEVER, session.unwrap().during(pending::<()>()))
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
        timeout(NEVER, session.unwrap().during(beats)).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_broker_that_goes_is_noticed() {
        let (session, peer) = with("CONNECTED\nversion:1.2\n\n\0", NEVER).await;
        drop(peer);
        let error = session.unwrap().news().await.unwrap_err();
        assert!(error.contains("closed the connection"), "{error}");
    }
}
