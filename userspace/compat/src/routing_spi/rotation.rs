//! Rotations that routing events ask for. The store keeps the subjects that are out of rotation; each event asks it
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use signalbox_core::discovered::spi::{AppChange, AppKey, Application, Applications, RoutingEvent};
use signalbox_core::routing::rotation::Subject;
use tokio::sync::oneshot;

/// Owner of subjects that routing events have taken out of rotation. Events never take in a subject with another owner.
pub const OWNER: &str = "routing events";

/// Rotation that an event asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointRotation {
    /// No new flow goes to the subject.
    Out {
        /// A gear, or the cluster of an application.
        subject: Subject,
        /// Time that the subject may keep its flows; `None`: as configured.
        timeout: Option<Duration>,
        /// Reason, for operators to see.
        reason: String,
    },
    /// Flows go to the subject again, if events took it out.
    In(Subject),
}

/// Rotation, with the channel for its outcome.
pub struct PendingRotation {
    /// Requested rotation.
    pub request: EndpointRotation,
    /// Channel for the outcome: on disk and applied, or the reason why not.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// Function that asks the store for a rotation. Called under a lock: it must not block.
pub type RotationSink = Box<dyn Fn(PendingRotation) + Send + Sync>;

/// Gears by application.
pub(super) type Gears = BTreeMap<AppKey, BTreeSet<String>>;

/// Returns the gears of applications that events delete, before they do.
pub(super) fn deleted_gears(events: &[RoutingEvent], applications: &Applications) -> Gears {
    let deleted = events.iter().filter(|event| event.change == AppChange::Delete);
    let known = deleted.filter_map(|event| applications.get(&event.app));
    known
        .map(|application| (application.key.clone(), application.gears().cloned().collect()))
        .collect()
}

/// Returns the rotations that events ask for, in their order; `now` is the state of applications after the events. A
/// gear or an application that is gone is taken in.
pub(super) fn requested_rotations(
    events: &[RoutingEvent],
    leaving: &Gears,
    now: &Applications,
) -> Vec<EndpointRotation> {
    let is_gone = |gear: &str| {
        let mut gears = now.iter().flat_map(Application::gears);
        !gears.any(|known| known == gear)
    };
    let mut all = Vec::new();
    for event in events {
        let subject = |gear: &Option<String>| match gear {
            Some(gear) => Subject::Gear(gear.clone()),
            None => Subject::Cluster(event.app.to_string()),
        };
        match &event.change {
            AppChange::RotateOut { gear, timeout, reason } => all.push(EndpointRotation::Out {
                subject: subject(gear),
                timeout: *timeout,
                reason: if reason.is_empty() {
                    format!("a routing event of {}", event.app)
                } else {
                    reason.clone()
                },
            }),
            AppChange::RotateIn(gear) => all.push(EndpointRotation::In(subject(gear))),
            AppChange::Delete => {
                all.push(EndpointRotation::In(subject(&None)));
                let gone = leaving
                    .get(&event.app)
                    .into_iter()
                    .flatten()
                    .filter(|gear| is_gone(gear));
                all.extend(gone.map(|gear| EndpointRotation::In(Subject::Gear(gear.clone()))));
            }
            AppChange::RemoveEndpoint { gear: Some(gear), .. } if is_gone(gear) => {
                all.push(EndpointRotation::In(Subject::Gear(gear.clone())));
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use signalbox_core::discovered::spi::parse;

    use super::*;

    fn event(action: &str, more: &str) -> String {
        format!("---\naction: {action}\napp_name: a\nnamespace: n\n{more}")
    }

    fn endpoint(action: &str, gear: &str, last: u8) -> String {
        event(
            action,
            &format!("gear_id: {gear}\npublic_address: 10.0.0.{last}\npublic_port: 80\n"),
        )
    }

    /// Returns the rotations for `text` after the events in `before`.
    fn asked(before: &str, text: &str) -> Vec<EndpointRotation> {
        let mut applications = Applications::default();
        applications.apply(&parse(before).unwrap());
        let events = parse(text).unwrap();
        let leaving = deleted_gears(&events, &applications);
        applications.apply(&events);
        requested_rotations(&events, &leaving, &applications)
    }

    #[test]
    fn a_removed_gear_is_rotated_in_and_a_moved_gear_is_not() {
        let is_in = |gear: &str| EndpointRotation::In(Subject::Gear(gear.into()));
        let two = endpoint("add_public_endpoint", "g1", 1) + &endpoint("add_public_endpoint", "g2", 2);
        assert_eq!(asked(&two, &endpoint("remove_public_endpoint", "g1", 1)), [is_in("g1")]);
        let moved = endpoint("add_public_endpoint", "g1", 3) + &endpoint("remove_public_endpoint", "g1", 1);
        assert_eq!(asked(&two, &moved), []);
        let all = EndpointRotation::In(Subject::Cluster("n/a".into()));
        assert_eq!(
            asked(&two, &event("delete_application", "")),
            [all.clone(), is_in("g1"), is_in("g2")]
        );
        let anew = event("delete_application", "") + &endpoint("add_public_endpoint", "g1", 1);
        assert_eq!(asked(&two, &anew), [all, is_in("g2")]);
    }

    #[test]
    fn rotations_come_in_their_order_with_a_reason() {
        let text = event("rotate_out_gear", "gear_id: g1\ntimeout: 9\n") + &event("rotate_in_application", "");
        let out = EndpointRotation::Out {
            subject: Subject::Gear("g1".into()),
            timeout: Some(Duration::from_secs(9)),
            reason: "a routing event of n/a".into(),
        };
        assert_eq!(
            asked(&event("create_application", ""), &text),
            [out, EndpointRotation::In(Subject::Cluster("n/a".into()))]
        );
    }
}
