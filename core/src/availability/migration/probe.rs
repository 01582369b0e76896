//! Probes of a migration: each name is asked for through hosts of both clusters, and the new cluster's answer is compared
//! with the old one's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most names that are listed with an answer.
const MAX_LISTED: usize = 20;

/// Shortest and longest time between rounds, in milliseconds, and longest time for an answer.
const MIN_INTERVAL_MS: u64 = 1000;
const MAX_INTERVAL_MS: u64 = 86_400_000;
const MAX_TIMEOUT_MS: u64 = 30_000;

/// How names are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbePlan {
    /// Path of the request.
    pub path: String,
    /// Time from the begin of a round to that of the next one, in milliseconds.
    pub every_ms: u64,
    /// Time for an answer, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for ProbePlan {
    fn default() -> Self {
        Self {
            path: "/".to_owned(),
            every_ms: 30_000,
            timeout_ms: 3000,
        }
    }
}

impl ProbePlan {
    /// Returns the mistakes of a plan as an error.
    pub fn check(&self) -> Result<(), String> {
        let is_path = self.path.starts_with('/') && self.path.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_path {
            return Err(format!("{:?} is no path of a probe, such as /healthz", self.path));
        }
        if !(MIN_INTERVAL_MS..=MAX_INTERVAL_MS).contains(&self.every_ms) {
            return Err("the time from one round of probes to the next is from 1 second to 1 day".into());
        }
        if !(1..=MAX_TIMEOUT_MS).contains(&self.timeout_ms) {
            return Err("the time for an answer to a probe is from 1 millisecond to 30 seconds".into());
        }
        Ok(())
    }

    /// Time from one round to the next, so that a step of this hold has at least one whole round.
    #[must_use]
    pub fn interval_ms(&self, hold_ms: u64) -> u64 {
        self.every_ms.min(hold_ms / 2).max(MIN_INTERVAL_MS)
    }
}

/// Certificate that a host has shown for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownCertificate {
    /// Why it is none for the name now; `None`: it is one.
    pub fault: Option<String>,
    /// Whether an authority that this machine trusts has signed it.
    pub is_trusted: bool,
    /// Authority that has signed it.
    pub issuer: String,
}

/// Answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameAnswer {
    /// Status code, or why there is none.
    pub status: Result<u16, String>,
    /// Certificate shown; `None` without TLS, or where none was seen.
    pub certificate: Option<ShownCertificate>,
}

impl NameAnswer {
    fn status_text(&self) -> String {
        match &self.status {
            Ok(code) => format!("HTTP {code}"),
            Err(why) => why.clone(),
        }
    }
}

/// Use of an answer to a client, from the best to the worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Served,
    /// The application wants something else of the request, such as a login.
    Declined,
    /// The host does not know the name or the path.
    Unknown,
    Failed,
}

impl Use {
    const fn of(status: &Result<u16, String>) -> Self {
        match status {
            Ok(200..=399) => Self::Served,
            Ok(404 | 410 | 421) => Self::Unknown,
            Ok(400..=499) => Self::Declined,
            _ => Self::Failed,
        }
    }
}

/// Verdict on a name at the new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameVerdict {
    /// The answers are alike.
    Alike,
    /// The answers differ, in a way that clients may not mind.
    Different(String),
    /// Clients would get a worse answer.
    Worse(String),
    /// The old cluster does not answer either: nothing can be said.
    Unknown(String),
    /// This machine could not ask.
    Unasked(String),
}

/// Compares the answers of the old and the new cluster.
#[must_use]
pub fn compare(old: &NameAnswer, new: &NameAnswer) -> NameVerdict {
    let of_certificate = match (&old.certificate, &new.certificate) {
        (Some(old), Some(new)) => compare_certificates(old, new),
        _ => NameVerdict::Alike,
    };
    if matches!(of_certificate, NameVerdict::Worse(_)) {
        return of_certificate;
    }
    let (was, is) = (Use::of(&old.status), Use::of(&new.status));
    let both = || format!("{}, and the old cluster {}", new.status_text(), old.status_text());
    if was == Use::Failed {
        return if is == Use::Failed {
            NameVerdict::Unknown(both())
        } else {
            NameVerdict::Different(both())
        };
    }
    if is >= Use::Unknown && is > was {
        return NameVerdict::Worse(both());
    }
    if old.status == new.status {
        of_certificate
    } else {
        NameVerdict::Different(both())
    }
}

/// Whether an answer is worse by what a host in trouble does, so that another host, or a later try, may say otherwise.
#[must_use]
pub fn is_of_host_in_trouble(old: &NameAnswer, new: &NameAnswer) -> bool {
    let certificates = old.certificate.as_ref().zip(new.certificate.as_ref());
    let is_shown =
        certificates.is_some_and(|(old, new)| matches!(compare_certificates(old, new), NameVerdict::Worse(_)));
    Use::of(&new.status) == Use::Failed && !is_shown
}

fn compare_certificates(old: &ShownCertificate, new: &ShownCertificate) -> NameVerdict {
    match (&old.fault, &new.fault) {
        (None, Some(fault)) => return NameVerdict::Worse(format!("{fault}, unlike that of the old cluster")),
        (Some(fault), None) => return NameVerdict::Different(format!("of the old cluster {fault}")),
        _ => {}
    }
    let by = || {
        format!(
            "its certificate is by {}, and that of the old cluster by {}",
            new.issuer, old.issuer
        )
    };
    if old.is_trusted && !new.is_trusted {
        NameVerdict::Worse(format!("{}, which this machine trusts", by()))
    } else if old.issuer == new.issuer {
        NameVerdict::Alike
    } else {
        NameVerdict::Different(by())
    }
}

/// Results of a round of probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeRound {
    /// Number of the round, from 1 in each process.
    pub number: u64,
    /// Names with a worse answer, and the answer.
    pub worse: BTreeMap<String, String>,
    /// Names with another answer.
    pub different: BTreeMap<String, String>,
    /// Names of which nothing can be said.
    pub unknown: BTreeMap<String, String>,
    /// Names that this machine could not ask for.
    pub unasked: BTreeMap<String, String>,
}

impl ProbeRound {
    /// Adds a verdict on a name, from the answer of a host. The worst verdict on a name counts.
    pub fn add(&mut self, name: &str, host: &str, verdict: NameVerdict) {
        let into = match &verdict {
            NameVerdict::Alike => return,
            NameVerdict::Different(_) => &mut self.different,
            NameVerdict::Worse(_) => &mut self.worse,
            NameVerdict::Unknown(_) => &mut self.unknown,
            NameVerdict::Unasked(_) => &mut self.unasked,
        };
        let (NameVerdict::Different(why)
        | NameVerdict::Worse(why)
        | NameVerdict::Unknown(why)
        | NameVerdict::Unasked(why)) = verdict
        else {
            return;
        };
        into.entry(name.to_owned()).or_insert_with(|| format!("{host}: {why}"));
        if self.worse.contains_key(name) {
            self.different.remove(name);
            self.unknown.remove(name);
        }
    }

    /// Why names could not be asked for; `None`: all were.
    #[must_use]
    pub fn lack(&self) -> Option<String> {
        let (name, why) = self.unasked.first_key_value()?;
        Some(format!(
            "{} names could not be asked for: {name}: {why}",
            self.unasked.len()
        ))
    }

    /// The names with a worse answer, in words; `None` if there are none.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let (name, why) = self.worse.first_key_value()?;
        let more = self.worse.len() - 1;
        let more = if more > 0 {
            format!("; and {more} more names")
        } else {
            String::new()
        };
        Some(format!("{name} through {why}{more}"))
    }
}

/// Results of the last round of probes, for reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeFigures {
    /// Rounds that were made.
    pub rounds: u64,
    /// Number of names that were to be asked for in the last one.
    pub names: u64,
    /// Number of names with a worse answer than the old cluster's, with another one, and without an answer of either.
    pub worse: u64,
    /// See `worse`.
    pub different: u64,
    /// See `worse`.
    pub unknown: u64,
    /// Such names, at most twenty of each kind, with the answers.
    pub listed: BTreeMap<String, String>,
}

impl ProbeFigures {
    /// Whether no round was made.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rounds == 0
    }

    /// Takes the results of a round.
    pub fn take(&mut self, round: &ProbeRound, names: usize) {
        let first = |of: &BTreeMap<String, String>| of.clone().into_iter().take(MAX_LISTED);
        *self = Self {
            rounds: self.rounds + 1,
            names: names as u64,
            worse: round.worse.len() as u64,
            different: round.different.len() as u64,
            unknown: (round.unknown.len() + round.unasked.len()) as u64,
            listed: first(&round.worse)
                .chain(first(&round.different))
                .chain(first(&round.unknown))
                .chain(first(&round.unasked))
                .collect(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Result<u16, &str>, certificate: Option<ShownCertificate>) -> NameAnswer {
        NameAnswer {
            status: status.map_err(str::to_owned),
            certificate,
        }
    }

    fn certificate(fault: Option<&str>, is_trusted: bool, issuer: &str) -> ShownCertificate {
        ShownCertificate {
            fault: fault.map(str::to_owned),
            is_trusted,
            issuer: issuer.to_owned(),
        }
    }

    fn verdict(old: Result<u16, &str>, new: Result<u16, &str>) -> char {
        sign(&compare(&answer(old, None), &answer(new, None)))
    }

    const fn sign(verdict: &NameVerdict) -> char {
        match verdict {
            NameVerdict::Alike => '=',
            NameVerdict::Different(_) => '~',
            NameVerdict::Worse(_) => '!',
            NameVerdict::Unknown(_) => '?',
            NameVerdict::Unasked(_) => '-',
        }
    }

    #[test]
    fn an_answer_is_worse_if_clients_lose_by_it() {
        let refused = Err("refused");
        let cases = [
            (Ok(200), "=~~~!!~!!"),
            (Ok(302), "~=~~!!~!!"),
            (Ok(401), "~~=~!!~!!"),
            (Ok(403), "~~~=!!~!!"),
            (Ok(404), "~~~~=~~!!"),
            (Ok(421), "~~~~~=~!!"),
            (Ok(429), "~~~~!!=!!"),
            (Ok(503), "~~~~~~~??"),
            (refused, "~~~~~~~??"),
        ];
        for (old, expected) in cases {
            let found: String = cases.iter().map(|(new, _)| verdict(old, *new)).collect();
            assert_eq!(found, expected, "{old:?}");
        }
    }

    #[test]
    fn a_certificate_that_was_right_must_stay_right() {
        let own = certificate(None, false, "CN=own");
        let public = certificate(None, true, "CN=public");
        let wrong = certificate(Some("the certificate is for b.test"), false, "CN=own");
        let all = [&own, &public, &wrong];
        let of = |status: u16, old: &ShownCertificate, new: &ShownCertificate| {
            compare(
                &answer(Ok(status), Some(old.clone())),
                &answer(Ok(status), Some(new.clone())),
            )
        };
        for (old, expected) in [(&own, "=~!"), (&public, "!=!"), (&wrong, "~~=")] {
            let found: String = all.iter().map(|new| sign(&of(200, old, new))).collect();
            assert_eq!(found, expected, "{old:?}");
        }
        // Also where the application itself answers no probe. Another host would show it too.
        assert_eq!(sign(&of(503, &own, &wrong)), '!');
        assert_eq!(sign(&of(503, &own, &own)), '?');
        let in_trouble = |new: &ShownCertificate| {
            let shown = |certificate: &ShownCertificate| answer(Ok(503), Some(certificate.clone()));
            is_of_host_in_trouble(&shown(&own), &shown(new))
        };
        assert!(in_trouble(&own) && !in_trouble(&wrong));
    }

    #[test]
    fn a_round_lists_each_name_once_by_its_worst_verdict() {
        let mut round = ProbeRound::default();
        for (name, verdict) in [
            ("a.test", NameVerdict::Different("d".into())),
            ("a.test", NameVerdict::Worse("HTTP 503".into())),
            ("a.test", NameVerdict::Unknown("u".into())),
            ("b.test", NameVerdict::Worse("refused".into())),
            ("c.test", NameVerdict::Unknown("u".into())),
            ("d.test", NameVerdict::Alike),
        ] {
            round.add(name, "w1", verdict);
        }
        assert_eq!(round.fault().unwrap(), "a.test through w1: HTTP 503; and 1 more names");
        assert!(round.different.is_empty());
        assert_eq!(round.unknown.len(), 1);
        let mut figures = ProbeFigures::default();
        figures.take(&round, 4);
        assert_eq!(
            (figures.rounds, figures.names, figures.unknown, figures.listed.len()),
            (1, 4, 1, 3)
        );
    }

    #[test]
    fn plans_that_cannot_be_carried_out_are_refused() {
        let plan = ProbePlan::default();
        assert_eq!(plan.check(), Ok(()));
        let with = |path: &str, every_ms, timeout_ms| ProbePlan {
            path: path.to_owned(),
            every_ms,
            timeout_ms,
        };
        for wrong in [
            with("healthz", 30_000, 3000),
            with("/a b", 30_000, 3000),
            with("/a\r\nX: y", 30_000, 3000),
            with("/", 999, 3000),
            with("/", 30_000, 0),
            with("/", 30_000, 30_001),
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        assert_eq!(plan.interval_ms(60_000), 30_000);
        assert_eq!(plan.interval_ms(4000), 2000);
        assert_eq!(plan.interval_ms(0), 1000);
    }
}
