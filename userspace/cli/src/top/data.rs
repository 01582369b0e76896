//! All data of the balancer, from its streams and its answers.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use jiff::Zoned;
use serde_json::Value;
use signalbox_api::flows::FlowsAnswer;
use signalbox_api::ha::HaAnswer;
use signalbox_api::hosts::{HostHealth, HostStatus, HostsAnswer};
use signalbox_api::live::{Hello, HistoryAnswer, HostName, SampleChange};
use signalbox_api::migrations::MigrationsAnswer;
use signalbox_api::routing::RoutesAnswer;
use signalbox_api::services::ServicesAnswer;
use signalbox_api::shield::{DropsAnswer, ShieldAnswer};
use signalbox_api::status::StatusAnswer;

use super::history::{History, HostSeries};
use super::shares::ShareCounter;
use super::text::safe;

/// Time without a sample after which the figures count as stale.
const STALE_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of events to keep.
const MAX_EVENTS: usize = 500;

/// Answer of the API that is requested repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Topic {
    Status,
    Hosts,
    Routes,
    Figures,
    Migrations,
    Flows,
    Services,
    Shield,
    Drops,
    Ha,
}

impl Topic {
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Status => "/api/v1/status",
            Self::Hosts => "/api/v1/hosts",
            Self::Routes => "/api/v1/routes",
            Self::Figures => "/api/v1/figures",
            Self::Migrations => "/api/v1/migrations",
            Self::Flows => "/api/v1/flows?limit=500",
            Self::Services => "/api/v1/services",
            Self::Shield => "/api/v1/shield",
            Self::Drops => "/api/v1/drops?limit=50",
            Self::Ha => "/api/v1/ha",
        }
    }
}

/// News from the balancer. All its text is safe for terminals.
#[derive(Debug)]
pub(super) enum Update {
    Past(HistoryAnswer),
    /// The first message of a stream of samples.
    Hello(Hello),
    Sample(SampleChange),
    /// The stream of samples has ended, or could not be opened.
    Lost(String),
    Answer(Topic, Value),
    /// A missing answer, and the reason.
    Failed(Topic, String),
    Event(LoggedEvent),
}

/// A change that the balancer has announced.
#[derive(Clone, Debug)]
pub(super) struct LoggedEvent {
    /// Time of day at which it arrived.
    pub(super) at: String,
    pub(super) kind: String,
    pub(super) data: String,
}

impl LoggedEvent {
    pub(super) fn now(kind: String, data: String) -> Self {
        let at = Zoned::now().strftime("%H:%M:%S").to_string();
        Self { at, kind, data }
    }
}

/// Answers on all topics.
#[derive(Clone, Debug, Default)]
pub(super) struct LastAnswers {
    pub(super) status: Option<StatusAnswer>,
    pub(super) hosts: HostsAnswer,
    pub(super) routes: RoutesAnswer,
    pub(super) migrations: MigrationsAnswer,
    pub(super) flows: FlowsAnswer,
    pub(super) services: ServicesAnswer,
    pub(super) shield: ShieldAnswer,
    pub(super) drops: DropsAnswer,
    pub(super) ha: HaAnswer,
}

/// Everything that panes show.
#[derive(Clone, Debug, Default)]
pub(super) struct TopData {
    pub(super) history: History,
    /// The last answer on each topic; its default before the first.
    pub(super) answers: LastAnswers,
    failures: HashMap<Topic, String>,
    /// Newest first.
    pub(super) events: VecDeque<LoggedEvent>,
    pub(super) shares: ShareCounter,
    /// Reason why there are currently no samples.
    pub(super) lost: Option<String>,
    /// Indexes of hosts in the answer of [`Topic::Hosts`], by [`HostSeries::key`].
    host_places: HashMap<String, usize>,
    pid: Option<u32>,
    last_sample: Option<Instant>,
}

impl TopData {
    /// Handles news that arrived at `now`.
    pub(super) fn take(&mut self, update: Update, now: Instant) {
        match update {
            Update::Past(answer) => self.history.load(answer),
            Update::Hello(hello) => self.greet(&hello),
            Update::Sample(sample) => {
                self.lost = None;
                self.last_sample = Some(now);
                self.history.add(sample);
            }
            Update::Lost(why) => self.lost = Some(why),
            Update::Answer(topic, answer) => match self.keep(topic, answer, now) {
                Ok(()) => drop(self.failures.remove(&topic)),
                Err(error) => drop(
                    self.failures
                        .insert(topic, safe(&format!("another version answers: {error}"))),
                ),
            },
            Update::Failed(topic, why) => {
                self.failures.insert(topic, why);
            }
            Update::Event(event) => {
                self.events.push_front(event);
                self.events.truncate(MAX_EVENTS);
            }
        }
    }

    /// Version of the balancer; empty before its first answer.
    pub(super) fn version(&self) -> &str {
        self.answers.status.as_ref().map_or("", |status| &status.version)
    }

    /// Keeps an answer that arrived at `now`.
    fn keep(&mut self, topic: Topic, answer: Value, now: Instant) -> serde_json::Result<()> {
        use serde_json::from_value as parsed;
        let all = &mut self.answers;
        match topic {
            Topic::Status => all.status = Some(parsed(answer)?),
            Topic::Hosts => {
                all.hosts = parsed(answer)?;
                self.host_places = host_places(&all.hosts.hosts);
            }
            Topic::Routes => all.routes = parsed(answer)?,
            Topic::Figures => self.shares.add(&parsed(answer)?, now),
            Topic::Migrations => all.migrations = parsed(answer)?,
            Topic::Flows => all.flows = parsed(answer)?,
            Topic::Services => all.services = parsed(answer)?,
            Topic::Shield => all.shield = parsed(answer)?,
            Topic::Drops => all.drops = parsed(answer)?,
            Topic::Ha => all.ha = parsed(answer)?,
        }
        Ok(())
    }

    fn greet(&mut self, hello: &Hello) {
        // Counters of another process begin at zero.
        if self.pid.is_some() && self.pid != hello.pid {
            self.shares = ShareCounter::default();
        }
        self.pid = hello.pid;
    }

    /// Reason why the last answer on one of these topics is missing.
    pub(super) fn failure(&self, topics: &[Topic]) -> Option<&str> {
        topics
            .iter()
            .find_map(|topic| self.failures.get(topic).map(String::as_str))
    }

    /// Seconds since the last sample, if it is stale.
    pub(super) fn stale_seconds(&self, now: Instant) -> Option<u64> {
        let silent = now.saturating_duration_since(self.last_sample?);
        (silent > STALE_TIMEOUT).then_some(silent.as_secs())
    }

    /// Hostnames that have had no address yet. They have no samples.
    pub(super) fn unresolved(&self) -> impl Iterator<Item = HostSeries> {
        let hosts = self.answers.hosts.hosts.iter();
        hosts
            .filter(|host| host.health == HostHealth::Unresolved)
            .map(series_of)
    }

    /// A host in the API's form, by [`HostSeries::key`].
    pub(super) fn host_view(&self, key: &str) -> Option<&HostStatus> {
        self.answers.hosts.hosts.get(*self.host_places.get(key)?)
    }
}

fn series_of(host: &HostStatus) -> HostSeries {
    HostSeries::named(HostName {
        cluster: host.cluster.clone(),
        name: host.name.clone(),
        address: host.address.clone(),
    })
}

fn host_places(hosts: &[HostStatus]) -> HashMap<String, usize> {
    let hosts = hosts.iter().enumerate();
    hosts.map(|(at, host)| (series_of(host).key(), at)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn silence_is_stale_and_a_sample_ends_it() {
        let (mut data, start) = (TopData::default(), Instant::now());
        assert_eq!(data.stale_seconds(start), None, "nothing received yet");
        let sample = || {
            Update::Sample(SampleChange {
                at: 1000,
                hosts: Some(Vec::new()),
                ..SampleChange::default()
            })
        };
        data.take(sample(), start);
        data.take(Update::Lost("gone".into()), start);
        assert_eq!(data.stale_seconds(start + STALE_TIMEOUT), None);
        assert_eq!(data.stale_seconds(start + Duration::from_secs(12)), Some(12));
        data.take(sample(), start + Duration::from_secs(13));
        assert_eq!(data.stale_seconds(start + Duration::from_secs(14)), None);
        assert_eq!(data.lost, None);
    }

    #[test]
    fn a_failure_keeps_the_last_answer_and_the_next_answer_ends_it() {
        let (mut data, now) = (TopData::default(), Instant::now());
        data.take(Update::Answer(Topic::Ha, json!({ "configured": false })), now);
        data.take(Update::Failed(Topic::Ha, "no answer".into()), now);
        assert_eq!(data.failure(&[Topic::Status, Topic::Ha]), Some("no answer"));
        assert!(!data.answers.ha.configured);
        data.take(Update::Answer(Topic::Ha, json!([])), now);
        assert!(
            data.failure(&[Topic::Ha])
                .is_some_and(|why| why.contains("another version"))
        );
        data.take(Update::Answer(Topic::Ha, json!({})), now);
        assert_eq!(data.failure(&[Topic::Ha]), None);
    }

    #[test]
    fn the_newest_events_are_kept() {
        let (mut data, now) = (TopData::default(), Instant::now());
        for n in 0..MAX_EVENTS + 3 {
            data.take(Update::Event(LoggedEvent::now("health".into(), n.to_string())), now);
        }
        assert_eq!(data.events.len(), MAX_EVENTS);
        assert_eq!(data.events[0].data, (MAX_EVENTS + 2).to_string());
    }
}
