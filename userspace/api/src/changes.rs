//! Events of `GET /api/v1/events`.

use serde::Serialize;
use signalbox_core::availability::ha::notice::GroupState;
use signalbox_core::availability::migration::MigrationState;
use signalbox_core::discovered::merge::ClusterWeights;

use crate::rotations::{Action, Progress};

/// A change, as an event with this name and these data.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", content = "data", rename_all = "lowercase")]
pub enum ChangeEvent {
    Configuration {
        source: String,
        ok: bool,
        error: Option<String>,
    },
    /// Weights that an operator has set; null: removed.
    Weights {
        route: String,
        weights: Option<ClusterWeights>,
    },
    /// A source's report about a cluster.
    Learnt { source: String, cluster: String },
    /// Numbers of prefixes of a listener or service; without a name, of all.
    Prefixes {
        name: String,
        denied: usize,
        allowed: usize,
    },
    /// Endpoints of an application: the addresses of their service, or the reason why they have none.
    Exposed {
        service: String,
        listen: Vec<String>,
        reason: Option<String>,
    },
    Health {
        cluster: String,
        host: String,
        healthy: bool,
        detail: String,
    },
    Ejection {
        cluster: String,
        host: String,
        ejected: bool,
        /// Reason, only of a host that is ejected.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    Rotation {
        job: u64,
        action: Action,
        subjects: Vec<String>,
        progress: Progress,
    },
    Job {
        id: u64,
        progress: Progress,
        closed_connections: u64,
    },
    Migration {
        id: u64,
        state: MigrationState,
        percent: u32,
        reason: String,
    },
    /// State of a group of virtual addresses on this node.
    Ha {
        group: String,
        state: GroupState,
        priority: u8,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn an_event_has_its_name_beside_its_data() {
        let ejection = |detail: Option<&str>| ChangeEvent::Ejection {
            cluster: "east".into(),
            host: "east-1".into(),
            ejected: detail.is_some(),
            detail: detail.map(str::to_owned),
        };
        assert_eq!(
            to_value(ejection(None)).unwrap(),
            json!({ "event": "ejection", "data": { "cluster": "east", "host": "east-1", "ejected": false } })
        );
        assert_eq!(
            to_value(ejection(Some("refused"))).unwrap()["data"]["detail"],
            "refused"
        );
        let weights = ChangeEvent::Weights {
            route: "app.test".into(),
            weights: Some(vec![("east".into(), 20)]),
        };
        assert_eq!(
            to_value(weights).unwrap(),
            json!({ "event": "weights", "data": { "route": "app.test", "weights": [["east", 20]] } })
        );
    }
}
