//! Tests of the log lines about errors.

use std::io::Write;

use parking_lot::Mutex;
use signalbox_core::model::kubernetes::ApiServerAccess;

use super::*;
use crate::kube::feeds;
use crate::kube::watch_error::WatchError;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn hub() -> Hub {
    let text = "version: 1\ncluster: east\nkubernetes: { in_cluster: true }\n\
                balancers: [{ url: 'http://b.test:8089', token_file: /t }]\n";
    let source = signalbox_config::agent::parse(text).unwrap().source;
    assert_eq!(source.access, ApiServerAccess::InCluster);
    let feeds = feeds(&source);
    let standing = SourceStatus::new("kube:east", "kubernetes");
    Hub::new(&Settings::new(source), "east".into(), standing, &feeds)
}

fn failure(text: &str, of: fn(String) -> WatchError) -> FeedUpdate {
    FeedUpdate::Failed {
        text: text.to_owned(),
        remark: of(String::new()).remark(),
        denied: false,
    }
}

#[test]
fn a_server_answer_is_logged_once_and_again_when_it_changes() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let mut hub = hub();
        for feed in [0, 1, 0, 1] {
            hub.apply(feed, failure("connection refused", WatchError::Unreachable));
        }
        for feed in [0, 1, 0] {
            hub.apply(feed, failure("401, renew them", WatchError::Unauthorized));
        }
        hub.apply(1, failure("connection refused", WatchError::Unreachable));
    });
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let [refused, answered, again] = lines.as_slice() else {
        panic!("{text}");
    };
    assert!(refused.contains("The API server does not answer. Nothing is reported of the cluster yet."));
    assert!(refused.contains("connection refused") && again.contains("connection refused"));
    assert!(answered.contains("The API server answers, and refuses.") && answered.contains("401"));
}
