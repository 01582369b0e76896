//! Bodies: whole ones, and those of watches, in pieces that end anywhere.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Response;
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::Api;
use super::store::Selection;

/// Runs tasks of the server that live as long as the server.
pub(crate) type Spawn = mpsc::UnboundedSender<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Interval of bookmarks. (A real server's: a minute.)
const BOOKMARKS: Duration = Duration::from_millis(20);

/// Pieces, then the end: a proper one, or by an error.
pub(crate) struct Body(mpsc::Receiver<Result<Bytes, std::io::Error>>);

impl Body {
    pub(crate) fn whole(text: &str) -> Self {
        let (pieces, body) = mpsc::channel(1);
        pieces.try_send(Ok(Bytes::copy_from_slice(text.as_bytes()))).unwrap();
        Self(body)
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0
            .poll_recv(cx)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Fate of an event on its way.
enum Fate {
    Sent,
    /// Sent, and the watch is ended in order.
    Last,
    /// Cut in the middle, with the connection.
    Cut,
    Garbled,
    /// Lost with everything that would come after it.
    Lost,
}

/// Tells of changes after `from`.
pub(crate) fn watch(
    api: &Api,
    plural: String,
    selection: Selection,
    from: u64,
    bookmarks: bool,
    life: u64,
    spawn: &Spawn,
) -> Response<Body> {
    let (pieces, body) = mpsc::channel(4);
    let watcher = Watcher {
        api: api.clone(),
        plural,
        selection,
        bookmarks,
        pieces,
    };
    let end = Instant::now() + Duration::from_secs(life);
    let _ = spawn.send(Box::pin(async move {
        // A client that hangs up is no error here.
        let _ = watcher.run(from, end).await;
    }));
    Response::new(Body(body))
}

struct Watcher {
    api: Api,
    plural: String,
    selection: Selection,
    bookmarks: bool,
    pieces: mpsc::Sender<Result<Bytes, std::io::Error>>,
}

impl Watcher {
    /// `None`: the client no longer reads, or the watch has been broken off.
    async fn run(&self, mut seen: u64, end: Instant) -> Option<()> {
        let mut changed = self.api.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let Some((events, version)) = self.news(seen) else {
                let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
                return self.send(&json!({"type": "ERROR", "object": gone})).await;
            };
            for event in events {
                match self.fate() {
                    Fate::Sent => self.send(&event).await?,
                    Fate::Last => return self.send(&event).await,
                    Fate::Cut => {
                        let text = event.to_string();
                        self.piece(&text.as_bytes()[..text.len() / 2]).await?;
                        let broken = std::io::Error::other("cut");
                        self.pieces.send(Err(broken)).await.ok()?;
                        return None;
                    }
                    Fate::Lost => std::future::pending().await,
                    Fate::Garbled => self.piece(b"{\"type\":\"MODI\xff\n").await?,
                }
            }
            // A watch from a version that is not reached yet waits until it is.
            seen = seen.max(version);
            let mark = Instant::now() + BOOKMARKS;
            if timeout_at(mark.min(end), changed.changed()).await.is_err() {
                if Instant::now() >= end {
                    return Some(());
                }
                if self.bookmarks && !self.api.store.lock().unwrap().moods.old {
                    let metadata = json!({"resourceVersion": seen.to_string(), "creationTimestamp": null});
                    self.send(&json!({"type": "BOOKMARK", "object": {"kind": "X", "metadata": metadata}}))
                        .await?;
                }
            }
        }
    }

    /// Events after `seen`, and the version that they lead to; `None`: some are forgotten.
    fn news(&self, seen: u64) -> Option<(Vec<Value>, u64)> {
        let store = self.api.store.lock().unwrap();
        if seen < store.horizon {
            return None;
        }
        let new = store
            .history
            .iter()
            .filter(|change| change.version > seen && change.plural == self.plural);
        Some((
            new.filter_map(|change| self.selection.event(change)).collect(),
            store.version,
        ))
    }

    fn fate(&self) -> Fate {
        let mut store = self.api.store.lock().unwrap();
        let moods = &mut store.moods;
        for (left, fate) in [
            (&mut moods.cuts, Fate::Cut),
            (&mut moods.ends, Fate::Last),
            (&mut moods.garbled_events, Fate::Garbled),
            (&mut moods.lost, Fate::Lost),
        ] {
            if *left > 0 {
                *left -= 1;
                return fate;
            }
        }
        Fate::Sent
    }

    /// Sends an event in two pieces, of which the second has the end of the line and nothing else now and then.
    async fn send(&self, event: &Value) -> Option<()> {
        let line = format!("{event}\n");
        let (first, second) = line.as_bytes().split_at(line.len() * (line.len() % 8) / 7);
        self.piece(first).await?;
        // Without the pause both would come in one read.
        tokio::task::yield_now().await;
        self.piece(second).await
    }

    async fn piece(&self, piece: &[u8]) -> Option<()> {
        if piece.is_empty() {
            return Some(());
        }
        self.pieces.send(Ok(Bytes::copy_from_slice(piece))).await.ok()
    }
}
