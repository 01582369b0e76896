//! Operations of the API that change state.

use signalbox_api::ha::{GroupUpdate, ReclaimBody};
use signalbox_api::rotations::RotationBody;
use signalbox_api::weights::{RouteWeights, WeightsRequest};
use signalbox_core::discovered::discovery::ClusterDiscovery;
use signalbox_core::model::shield::PrefixEdit;

use super::{DELETE, POST, PUT};
use crate::admin::openapi::{DescribedRouter, Operation, RequestKind, change, json_body};
use crate::admin::{applications, certificates, config_diff, discovery, ha, log, mutate, rotations, shield, weights};
use crate::compat::prototype::PluginBody;
use crate::control::kept_certificates::PutCertificate;

/// Adds the operations that change state.
pub(super) fn add_changes(api: DescribedRouter) -> DescribedRouter {
    api.with(
        &change("diffConfig", POST, "/api/v1/diff", "Changes that a configuration would make",
                 RequestKind::Configuration),
        config_diff::diff_config,
    )
    .with(
        &change("reloadConfig", POST, "/api/v1/reload", "Read the configuration file again", RequestKind::Nothing),
        mutate::reload,
    )
    .with(
        &change(
            "reopenLog",
            POST,
            "/api/v1/log/reopen",
            "Reopen the file of the access log after it has been renamed",
            RequestKind::Nothing,
        ),
        log::reopen,
    )
    .with(
        &change("putConfig", PUT, "/api/v1/config", "Apply a configuration", RequestKind::Configuration),
        mutate::config,
    )
    .with(
        &change(
            "putRouteWeights",
            PUT,
            "/api/v1/routes/{host}",
            "Set weights of a route, until they are removed",
            json_body::<RouteWeights>(r#"{ "clusters": { "east": 20, "west": 80 } }"#),
        ),
        weights::put_one,
    )
    .with(
        &change(
            "putWeights",
            PUT,
            "/api/v1/weights",
            "Set weights of many routes, by name, namespace or label selector, all or none; null removes them; dry_run \
             shows what would change",
            json_body::<WeightsRequest>(
                r#"{ "routes": { "app.example.com": { "east": 20, "west": 80 } },
                     "selectors": { "app=shop,tier!=batch": { "east": 50, "west": 50 } }, "dry_run": true }"#,
            ),
        ),
        weights::put_many,
    )
    .with(
        &change(
            "replaceShieldPrefixes",
            PUT,
            "/api/v1/shield/prefixes/{name}",
            "Replace the prefixes of a listener or a service, or of all (*)",
            json_body::<PrefixEdit>(r#"{ "deny": ["192.0.2.0/24"], "allow": ["192.0.2.7/32"] }"#),
        ),
        shield::replace,
    )
    .with(
        &change(
            "editShieldPrefixes",
            POST,
            "/api/v1/shield/prefixes/{name}",
            "Add or remove prefixes",
            json_body::<PrefixEdit>(r#"{ "deny": ["192.0.2.0/24"], "allow": [], "forget": ["198.51.100.7/32"] }"#),
        ),
        shield::edit,
    )
    .with(
        &change(
            "putCertificate",
            PUT,
            "/api/v1/certificates/{name}",
            "Set or replace the certificate of a name; PEM texts, of which one may hold both",
            json_body::<PutCertificate>(
                r#"{ "certificate": "-----BEGIN CERTIFICATE-----...", "key": "-----BEGIN PRIVATE KEY-----...",
                     "pass_phrase": null }"#,
            ),
        ),
        certificates::put,
    )
    .with(
        &change(
            "deleteCertificate",
            DELETE,
            "/api/v1/certificates/{name}",
            "Remove a certificate that was set by API",
            RequestKind::Nothing,
        ),
        certificates::delete,
    )
    .with(
        &change(
            "putGroupState",
            PUT,
            "/api/v1/ha/groups/{name}",
            "The state of a group of virtual addresses on this node: master, backup or fault",
            json_body::<GroupUpdate>(r#"{ "state": "master", "priority": 250 }"#),
        ),
        ha::put_group,
    )
    .with(
        &change(
            "handOverGroup",
            POST,
            "/api/v1/ha/groups/{name}/hand-over",
            "Prepare to give a group up by plan: its connections drain here for timeouts.drain, and the node that gets the \
             group sends their packets here. The group has to leave within 10 s",
            RequestKind::Nothing,
        ),
        ha::hand_over,
    )
    .with(
        &change(
            "reclaimGroups",
            POST,
            "/api/v1/ha/reclaim",
            "Have the nodes that have groups of virtual addresses hand them over: this node takes them next, within some \
             seconds",
            json_body::<ReclaimBody>(r#"{ "groups": ["g1"] }"#),
        ),
        ha::reclaim,
    )
    .with(
        &change(
            "followEligibility",
            POST,
            "/api/v1/ha/follow",
            "Whether this node is eligible for virtual addresses, as it changes; only for the supervisor",
            RequestKind::Nothing,
        ),
        ha::follow,
    )
    .with(
        &change(
            "startRotation",
            POST,
            "/api/v1/rotations",
            "Take a subject out of rotation, or back in; timeout is in seconds",
            json_body::<RotationBody>(r#"{ "action": "out", "names": ["east-1", "machine:10.2.0.2"], "timeout": 120, "force": false, "reason": "a new disk" }"#),
        ),
        rotations::start,
    )
    .with(
        &change(
            "cancelJob",
            DELETE,
            "/api/v1/jobs/{id}",
            "Cancel a job: its subjects are back in rotation",
            RequestKind::Nothing,
        ),
        rotations::cancel,
    )
    .with(
        &change(
            "putDiscovery",
            PUT,
            "/api/v1/clusters/{cluster}/learned",
            "Everything that an agent knows about a cluster",
            json_body::<ClusterDiscovery>(
                r#"{ "hosts": [{ "name": "router-1", "address": "10.2.0.2", "http": 80, "https": 443, "weight": 1 }],
                     "routes": [{ "host": "app.example.com", "weight": 1, "origin": "Route shop/web", "labels": { "app": "shop" } }] }"#,
            ),
        ),
        discovery::put_by_agent,
    )
    .with(
        &change(
            "putPluginDiscovery",
            POST,
            "/api/cluster/{cluster}",
            "All that a plugin of the prototype knows of a cluster",
            json_body::<PluginBody>(
                r#"{ "routes": { "app.example.com": { "url": "app.example.com", "weight": 1 } },
                     "routerHosts": { "router-1": { "name": "router-1", "hostIP": "10.2.0.2", "httpPort": 80, "httpsPort": 443 } } }"#,
            ),
        ),
        discovery::put_by_plugin,
    )
    .with(
        &Operation {
            query: &[("dry_run", "true: only say what would change")],
            ..change(
                "postRoutingEvents",
                POST,
                "/api/v1/routing-events",
                "OpenShift's routing events (YAML), all of them or none; done when they are on disk",
                RequestKind::Configuration,
            )
        },
        applications::post,
    )
    .with(
        &change(
            "skipRoutingEvent",
            POST,
            "/api/v1/routing-events/skip",
            "Skip the message from the broker that cannot be recorded; it becomes a dead letter",
            RequestKind::Nothing,
        ),
        applications::skip,
    )
    .with(
        &change(
            "forgetDiscovery",
            DELETE,
            "/api/v1/sources/{source}/clusters/{cluster}",
            "Remove everything that a source has reported about a cluster",
            RequestKind::Nothing,
        ),
        discovery::forget,
    )
}
