//! What routing events say of rotation: asked of the store each time that they come, for what they say is kept there.

use std::time::Duration;

use signalbox_core::rotation::Subject;
use signalbox_core::spi::{Applications, Change, Event};
use tokio::sync::oneshot;

/// Who has taken out what routing events took out. What others took out is not theirs to take in.
pub const OWNER: &str = "routing events";

/// A rotation that an event asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turning {
    /// No new flow goes there.
    Out {
        /// A gear, or the cluster of an application.
        subject: Subject,
        /// How long it may keep its flows; `None`: what the configuration says.
        timeout: Option<Duration>,
        /// Why.
        reason: String,
    },
    /// Flows go there again, if events took it out.
    In(Subject),
}

/// A rotation, and whom to tell when it is on disk and in force.
pub struct Turn {
    /// What is asked for.
    pub what: Turning,
    /// What came of it.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// Whom to ask: the store, in the end. Called under a lock: it must not block.
pub type AskTurn = Box<dyn Fn(Turn) + Send + Sync>;

/// Whether events may concern what is out of rotation.
pub(super) fn is_of_rotation(events: &[Event]) -> bool {
    events.iter().any(|event| {
        matches!(
            event.change,
            Change::RotateOut { .. } | Change::RotateIn(_) | Change::Delete | Change::RemoveEndpoint { .. }
        )
    })
}

/// What events ask for, in their order; `before` and `after` them. What is gone is not out of rotation any more.
pub(super) fn of(events: &[Event], before: &Applications, after: &Applications) -> Vec<Turning> {
    let mut all = Vec::new();
    for event in events {
        let subject = |gear: &Option<String>| match gear {
            Some(gear) => Subject::Gear(gear.clone()),
            None => Subject::Cluster(event.app.to_string()),
        };
        let is_gone = |gear: &str| {
            let mut gears = after.iter().flat_map(|application| application.gears());
            !gears.any(|known| known == gear)
        };
        match &event.change {
            Change::RotateOut { gear, timeout, reason } => all.push(Turning::Out {
                subject: subject(gear),
                timeout: *timeout,
                reason: if reason.is_empty() {
                    format!("a routing event of {}", event.app)
                } else {
                    reason.clone()
                },
            }),
            Change::RotateIn(gear) => all.push(Turning::In(subject(gear))),
            Change::Delete => {
                all.push(Turning::In(subject(&None)));
                let gears = before
                    .get(&event.app)
                    .into_iter()
                    .flat_map(|application| application.gears());
                let gone = gears.filter(|gear| is_gone(gear));
                all.extend(gone.map(|gear| Turning::In(Subject::Gear(gear.clone()))));
            }
            Change::RemoveEndpoint { gear: Some(gear), .. } if is_gone(gear) => {
                all.push(Turning::In(Subject::Gear(gear.clone())));
            }
            _ => {}
        }
    }
    all
}
