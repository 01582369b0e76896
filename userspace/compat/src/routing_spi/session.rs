//! Connection to a broker: the handshake, heart-beats in both directions, messages in, acknowledgements out.

mod handshake;
#[cfg(test)]
mod tests;

use std::future::pending;
use std::time::Duration;

use signalbox_core::model::RoutingEvents;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout};

use super::connect::Stream;
use super::stomp::{Decoder, Frame};
use handshake::{SUBSCRIPTION, connect_frame, refusal_text, subscribe_frame};

/// Time limit of the handshake, and of a write that the broker does not read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of heart-beats that is requested of the broker, and offered to it.
pub(super) const HEART_BEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Most bytes that are buffered while a message is being taken. With a prefetch of one there are none.
const MAX_WAITING: usize = 1 << 20;

/// Message from a broker that is no answer to a request.
#[derive(Debug)]
pub(super) enum BrokerEvent {
    /// The subscription is active.
    Subscribed,
    /// A message.
    Message(Message),
    /// Heart-beat, or silence within bounds.
    HeartBeat,
}

/// A message that must be acknowledged.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) body: Vec<u8>,
    /// True if the message was longer than the part that is kept.
    pub(super) cut: bool,
    /// Headers that acknowledge the message.
    ack: Vec<(&'static str, String)>,
}

/// Result of a wait for bytes.
#[derive(PartialEq, Eq)]
enum IoProgress {
    Heard,
    Sent,
}

/// Connection to a broker, with a subscription.
pub(super) struct Session {
    stream: Box<dyn Stream>,
    decoder: Decoder,
    /// True for STOMP 1.2, false for 1.1.
    is_stomp_1_2: bool,
    /// Interval at which the broker expects to hear from us.
    send_every: Option<Duration>,
    /// Longest time that the broker may be silent.
    silence: Option<Duration>,
    sent: Instant,
    heard: Instant,
}

impl Session {
    /// Shakes hands and subscribes. `heart_beat` is the requested interval; the broker may want a longer one.
    ///
    /// # Errors
    /// Text for operators.
    pub(super) async fn open(
        stream: Box<dyn Stream>,
        host: &str,
        settings: &RoutingEvents,
        heart_beat: Duration,
    ) -> Result<Self, String> {
        let now = Instant::now();
        let mut session = Self {
            stream,
            decoder: Decoder::new(signalbox_core::discovered::spi::MAX_BYTES),
            is_stomp_1_2: true,
            send_every: None,
            silence: None,
            sent: now,
            heard: now,
        };
        let hello = connect_frame(host, settings, heart_beat)?;
        let answer = timeout(ANSWER_TIMEOUT, async {
            session.send(&hello).await?;
            session.answer().await
        });
        let answer = answer
            .await
            .map_err(|_| "the broker does not answer to CONNECT".to_owned())??;
        if answer.command != "CONNECTED" {
            return Err(refusal_text(&answer));
        }
        session.is_stomp_1_2 = match answer.header("version") {
            Some("1.2") => true,
            Some("1.1") => false,
            other => {
                let other = other.unwrap_or("1.0");
                return Err(format!("the broker speaks STOMP {other}; it takes 1.1 or 1.2"));
            }
        };
        session.agree_heart_beats(&answer, heart_beat);
        session.send(&subscribe_frame(settings)).await?;
        Ok(session)
    }

    /// Derives the intervals from `heart-beat` of both sides: the interval at which a side can send, and the one that
    /// it wants of the other (ms; 0: none).
    fn agree_heart_beats(&mut self, answer: &Frame, ours: Duration) {
        let theirs = answer.header("heart-beat").unwrap_or("0,0");
        let (can, wants) = theirs.split_once(',').unwrap_or(("0", "0"));
        let time = |text: &str| text.trim().parse().ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        self.send_every = time(wants).map(|wants| wants.max(ours));
        // "The receiver SHOULD take into account an error margin": a broker that misses two beats has more than a slow
        // moment.
        self.silence = time(can).map(|can| can.max(ours) * 5 / 2);
    }

    /// Returns the broker's next message or heart-beat.
    ///
    /// # Errors
    /// The connection has become useless; the text gives the reason.
    pub(super) async fn next_event(&mut self) -> Result<BrokerEvent, String> {
        let mut heard = false;
        let frame = loop {
            if let Some(frame) = self.decoder.next().map_err(|error| error.to_string())? {
                break frame;
            }
            if heard && self.decoder.is_between_frames() {
                return Ok(BrokerEvent::HeartBeat);
            }
            heard = self.read_or_beat().await? == IoProgress::Heard;
        };
        match frame.command.as_str() {
            "RECEIPT" => Ok(BrokerEvent::Subscribed),
            "MESSAGE" => self.message(frame).map(BrokerEvent::Message),
            _ => Err(refusal_text(&frame)),
        }
    }

    fn message(&self, frame: Frame) -> Result<Message, String> {
        let header = |name: &str| {
            let value = frame.header(name).map(str::to_owned);
            value.ok_or_else(|| format!("the broker's message has no `{name}`, so it cannot be acknowledged"))
        };
        let ack = if self.is_stomp_1_2 {
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

    /// Acknowledges a message.
    ///
    /// # Errors
    /// The connection has become useless: the message will be delivered again.
    pub(super) async fn ack(&mut self, message: &Message) -> Result<(), String> {
        let headers: Vec<(&str, &str)> = message
            .ack
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        self.send(&Frame::new("ACK", &headers)).await
    }

    /// Waits for some work while heart-beats continue.
    ///
    /// # Errors
    /// The connection was lost before the work was done. Tasks that the work has started run on.
    pub(super) async fn run_with_heart_beats<T>(&mut self, work: impl Future<Output = T>) -> Result<T, String> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                beat = self.read_or_beat() => {
                    beat?;
                }
            }
        }
    }

    /// Returns the answer to CONNECT.
    async fn answer(&mut self) -> Result<Frame, String> {
        loop {
            if let Some(frame) = self.decoder.next().map_err(|error| error.to_string())? {
                return Ok(frame);
            }
            self.read_or_beat().await?;
        }
    }

    /// Waits until bytes are read, or a heart-beat was due and sent.
    async fn read_or_beat(&mut self) -> Result<IoProgress, String> {
        let send_at = self.send_every.map(|every| self.sent + every);
        let dead_at = self.silence.map(|silence| self.heard + silence);
        let full = self.decoder.waiting() > MAX_WAITING;
        // On the heap, because an array would be part of the future.
        let mut bytes = Vec::with_capacity(16 << 10);
        tokio::select! {
            read = self.stream.read_buf(&mut bytes), if !full => match read {
                Ok(0) => Err("the broker has closed the connection".to_owned()),
                Ok(_) => {
                    self.heard = Instant::now();
                    self.decoder.push(&bytes);
                    Ok(IoProgress::Heard)
                }
                Err(error) => Err(format!("reading from the broker: {error}")),
            },
            () = until(send_at) => self.write(b"\n").await.map(|()| IoProgress::Sent),
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
        match timeout(ANSWER_TIMEOUT, write).await {
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
