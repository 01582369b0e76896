//! Routes of the API and their answers.

mod changes;
#[cfg(test)]
pub(super) mod shapes;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodFilter;
use serde::Deserialize;
use signalbox_api::flows::{FlowsAnswer, ServiceFlowsAnswer};
use signalbox_core::model::Tier;
use signalbox_core::model::shield::parse_net;

use super::body::MAX_BODY_BYTES;
use super::openapi::{DescribedRouter, Operation, read};
use super::problem::{not_shown, of_framework, problem};
use super::reply::{ApiReply, answer};
use super::{
    applications, certificates, discovery, events, explain, export, figures, ha, live, metrics, migrations, readiness,
    rotations, route_selection, shield, ui, views,
};
use crate::control::Control;
use crate::datapath::flow::FlowFilter;

pub(super) const POST: MethodFilter = MethodFilter::POST;
const PUT: MethodFilter = MethodFilter::PUT;
const DELETE: MethodFilter = MethodFilter::DELETE;

/// Builds the router with all routes of the API.
pub fn router(control: Control) -> Router {
    let api = described().finish("/api/v1/openapi.json");
    let api = ui::add_pages(api)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Arc::new(control));
    // Added outside of that router: a layer inside would not see which methods a path has.
    Router::new().fallback_service(api).layer(from_fn(of_framework))
}

/// Returns all operations.
pub(super) fn described() -> DescribedRouter {
    let api = add_reads(DescribedRouter::default());
    migrations::add_operations(changes::add_changes(api))
}

/// Adds the operations that show state.
fn add_reads(api: DescribedRouter) -> DescribedRouter {
    let readyz_query = Operation {
        query: &[("verbose", "also list the checks that succeed")],
        ..read(
            "getReadiness",
            "/readyz",
            "Whether traffic should be sent here, or why not",
        )
    };
    let flows_query = Operation {
        query: &[
            ("limit", "at most this many; default 1000"),
            ("host", "only those to this host"),
            ("cluster", "only those to this cluster"),
            ("listener", "only those of this listener"),
            ("route", "only those of this route"),
            ("tier", "only those of this tier"),
            ("client", "only those of this client: an address or a prefix"),
        ],
        ..read("listFlows", "/api/v1/flows", "Flows")
    };
    let explain_query = Operation {
        query: &[
            (
                "host!",
                "the name that a client asks for, or the address and port of a layer-4 service",
            ),
            ("client", "the client's address, or address and port"),
            ("listener", "at this listener only"),
            ("path", "the path of a request, such as /api"),
        ],
        ..read("explainName", "/api/v1/explain", "How a name is routed, and why")
    };
    let events = read("followEvents", "/api/v1/events", "Changes, as they happen");
    let live = read(
        "followFigures",
        "/api/v1/live",
        "Figures of the balancer and of each host, each second",
    );
    let pushes = Operation {
        query: &[
            (
                "interval",
                "seconds between two pushes; default 1, the prototype's is 2",
            ),
            ("ticks", "points of each push; default 120, the prototype's are 40"),
        ],
        ..read(
            "connectWebSocket",
            "/ws",
            "Figures by WebSocket, in the prototype's JSON",
        )
    };
    api.with(
        &read("getLiveness", "/livez", "Whether the process answers"),
        async || "ok\n",
    )
    .with(&readyz_query, readiness::readyz)
    .with(
        &read(
            "getMetrics",
            "/metrics",
            "Metrics: OpenMetrics, or for `Accept: text/plain` alone Prometheus' text format",
        ),
        prometheus,
    )
    .with(
        &read(
            "getStatus",
            "/api/v1/status",
            "The process, and the features that work on this machine",
        ),
        async |State(c): State<Arc<Control>>| answer(views::status(&c)),
    )
    .with(
        &read(
            "getConfig",
            "/api/v1/config",
            "The current configuration, without secrets",
        ),
        async |State(c): State<Arc<Control>>| views::config(&c).map_or_else(|error| not_shown(&error), answer),
    )
    .with(
        &read("listListeners", "/api/v1/listeners", "Listeners"),
        async |State(c): State<Arc<Control>>| answer(views::listeners(&c)),
    )
    .with(
        &Operation {
            query: &[(
                "selector",
                "only routes with a claim whose labels match this Kubernetes label selector",
            )],
            ..read("listRoutes", "/api/v1/routes", "Active routes")
        },
        route_selection::routes,
    )
    .with(
        &read(
            "getRoute",
            "/api/v1/routes/{host}",
            "An active route, with its statistics",
        ),
        figures::route,
    )
    .with(
        &Operation {
            query: &[
                ("cluster", "only routes that have had a connection in this cluster"),
                ("limit", "at most this many; default 1000"),
            ],
            ..read(
                "listFigures",
                "/api/v1/figures",
                "Connections, bytes and refusals of each route that has had any",
            )
        },
        figures::list,
    )
    .with(
        &read("listClusters", "/api/v1/clusters", "Clusters"),
        async |State(c): State<Arc<Control>>| answer(views::clusters(&c)),
    )
    .with(
        &read("listHosts", "/api/v1/hosts", "Hosts, including those that still drain"),
        async |State(c): State<Arc<Control>>| answer(views::hosts(&c)),
    )
    .with(
        &read(
            "listServices",
            "/api/v1/services",
            "Layer-4 services, their hosts, and where their programs are attached",
        ),
        async |State(c): State<Arc<Control>>| answer(views::services(&c)),
    )
    .with(
        &Operation {
            query: &[("limit", "at most this many; default 1000")],
            ..read(
                "listServiceFlows",
                "/api/v1/services/{name}/flows",
                "Established connections and sessions of a layer-4 service",
            )
        },
        service_flows,
    )
    .with(
        &read(
            "getShield",
            "/api/v1/shield",
            "Listeners and services that the shield protects, its rules and its decisions",
        ),
        shield::list,
    )
    .with(
        &read(
            "listShieldPrefixes",
            "/api/v1/shield/prefixes",
            "Prefixes that have been set by this API",
        ),
        shield::prefixes,
    )
    .with(
        &Operation {
            query: &[("client!", "its address")],
            ..read(
                "explainShield",
                "/api/v1/shield/explain",
                "How each listener and service would treat a client",
            )
        },
        shield::explain,
    )
    .with(
        &Operation {
            query: &[("limit", "at most this many; default 100")],
            ..read(
                "listDrops",
                "/api/v1/drops",
                "Samples of packets that the shield has dropped",
            )
        },
        shield::drops,
    )
    .with(
        &read(
            "followDrops",
            "/api/v1/drops/follow",
            "Samples of packets that the shield drops, as it drops them",
        ),
        shield::follow,
    )
    .with(&flows_query, flows)
    .with(&explain_query, explain::explain)
    .with(&events, events::stream)
    .with(&live, live::stream)
    .with(&pushes, live::websocket::connect)
    .with(
        &Operation {
            query: &[
                ("seconds", "of this many seconds; default 120"),
                (
                    "hosts",
                    "also statistics of these hosts: all, or names separated by commas",
                ),
            ],
            ..read(
                "getHistory",
                "/api/v1/history",
                "Statistics of the last two minutes, one sample a second",
            )
        },
        live::history,
    )
    .with(
        &read(
            "listSources",
            "/api/v1/sources",
            "Sources of routes, their status, and rejected objects",
        ),
        discovery::sources,
    )
    .with(
        &Operation {
            query: &[
                ("namespace", "only those of this namespace"),
                (
                    "type",
                    "only those with an endpoint of this type, such as load_balancer",
                ),
                ("protocol", "only those with an endpoint of this protocol"),
                ("limit", "at most this many; default 1000"),
            ],
            ..read(
                "listApplications",
                "/api/v1/applications",
                "OpenShift's applications, as its routing events report them",
            )
        },
        applications::list,
    )
    .with(
        &read(
            "getApplication",
            "/api/v1/applications/{namespace}/{name}",
            "The routing table of an application",
        ),
        applications::show,
    )
    .with(
        &read(
            "getRoutingEvents",
            "/api/v1/routing-events",
            "Routing events: the connection to the broker, the message that waits, and dead letters",
        ),
        applications::state,
    )
    .with(
        &Operation {
            query: &[
                (
                    "format!",
                    "json, haproxy-map, haproxy-wildcards, haproxy-backends or nginx-map",
                ),
                ("protocol", "which of the hosts' ports: http (default) or tls"),
            ],
            ..read(
                "exportTable",
                "/api/v1/export",
                "The current routing table, for other programs",
            )
        },
        export::export,
    )
    .with(
        &read(
            "getApplicationFigures",
            "/api/v1/applications/{namespace}/{name}/figures",
            "Connections, bytes and refusals of an application's names",
        ),
        figures::application,
    )
    .with(
        &read(
            "listCertificates",
            "/api/v1/certificates",
            "Active certificates, and certificate files that cannot be used",
        ),
        certificates::list,
    )
    .with(
        &read(
            "getHighAvailability",
            "/api/v1/ha",
            "Groups of virtual addresses, and whether this node is eligible for them",
        ),
        ha::show,
    )
    .with(
        &read(
            "listRotations",
            "/api/v1/rotations",
            "Subjects that are out of rotation, and all jobs",
        ),
        rotations::list,
    )
    .with(
        &read("getJob", "/api/v1/jobs/{id}", "Progress of a job"),
        rotations::job,
    )
    .with(
        &Operation {
            query: &[("url!", "one of the configuration's balancers")],
            ..read(
                "getPeerJob",
                "/api/v1/jobs/{id}/elsewhere",
                "Progress of a job of another balancer",
            )
        },
        rotations::peer_job,
    )
}

async fn prometheus(State(control): State<Arc<Control>>, headers: HeaderMap) -> Response {
    match metrics::encode(&control, &headers) {
        Ok((kind, text)) => ([(header::CONTENT_TYPE, kind), (header::VARY, "accept")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Maximum number of names that an error lists.
const MAX_NAMED: usize = 10;

#[derive(Deserialize)]
struct FlowQuery {
    limit: Option<usize>,
    host: Option<String>,
    cluster: Option<String>,
    listener: Option<String>,
    tier: Option<String>,
    route: Option<String>,
    /// Address or prefix.
    client: Option<String>,
}

/// Error for a filter with an unknown name: otherwise a mistyped name would look like one without flows.
fn unknown_name(control: &Control, filter: &FlowFilter) -> Option<String> {
    let snapshot = control.shared.snapshot.load();
    let model = &snapshot.model;
    let hosts = snapshot.hosts.iter().flatten().map(|host| host.name.clone()).collect();
    let clusters = model.clusters.iter().map(|cluster| cluster.name.clone()).collect();
    let listeners = model.listeners.iter().map(|listener| listener.name.clone()).collect();
    let routes = model.routes.iter().map(|route| route.hostname.to_string()).collect();
    let tiers = Tier::ALL.map(|tier| tier.as_str().to_owned()).to_vec();
    let asked: [(_, _, Vec<String>); 5] = [
        ("host", &filter.host, hosts),
        ("cluster", &filter.cluster, clusters),
        ("listener", &filter.listener, listeners),
        ("tier", &filter.tier, tiers),
        ("route", &filter.route, routes),
    ];
    asked.into_iter().find_map(|(what, wanted, all)| {
        let wanted = wanted.as_ref().filter(|wanted| !all.contains(wanted))?;
        Some(none_of(what, wanted, &all))
    })
}

/// Error for a name that is none of these.
fn none_of(what: &str, wanted: &str, all: &[String]) -> String {
    if all.is_empty() {
        return format!("there is no {what} {wanted:?}, and no other");
    }
    let some: Vec<_> = all.iter().take(MAX_NAMED).map(String::as_str).collect();
    let more = if all.len() > MAX_NAMED { ", ..." } else { "" };
    format!("there is no {what} {wanted:?}, but {}{more}", some.join(", "))
}

#[derive(Deserialize)]
struct ServiceFlowsQuery {
    limit: Option<usize>,
}

async fn service_flows(
    State(control): State<Arc<Control>>,
    axum::extract::Path(name): axum::extract::Path<String>,
    Query(most): Query<ServiceFlowsQuery>,
) -> ApiReply<ServiceFlowsAnswer> {
    let services = Arc::clone(&control.kernel.services);
    let wanted = name.clone();
    let some = move || services.flows(Some(&wanted), most.limit.unwrap_or(1000));
    let service_flows = tokio::task::spawn_blocking(some).await.unwrap_or_default();
    let model = Arc::clone(&control.shared.snapshot.load().model);
    let mut all: Vec<_> = model
        .services
        .iter()
        .map(|one| one.configured_name().to_owned())
        .collect();
    // An entry with two protocols has one name. A service removed from the configuration may still have flows.
    all.dedup();
    if service_flows.is_empty() && !all.contains(&name) {
        let error = none_of("service", &name, &all);
        return problem(StatusCode::NOT_FOUND, "There is no such service", &error);
    }
    answer(ServiceFlowsAnswer { service_flows })
}

async fn flows(State(control): State<Arc<Control>>, Query(query): Query<FlowQuery>) -> ApiReply<FlowsAnswer> {
    let client = query.client.as_deref().map(|text| {
        let net = parse_net(text);
        net.ok_or_else(|| format!("client: {text:?} is neither an address nor a prefix, such as 192.0.2.7"))
    });
    let client = match client.transpose() {
        Ok(client) => client,
        Err(error) => {
            return problem(StatusCode::BAD_REQUEST, "The filter is not valid", &error);
        }
    };
    let filter = FlowFilter {
        limit: query.limit.unwrap_or(1000),
        host: query.host,
        cluster: query.cluster,
        listener: query.listener,
        tier: query.tier,
        route: query.route,
        client,
    };
    let (total, flows) = control.flows(&filter).await;
    // A host removed from the configuration may still have flows.
    if total == 0
        && let Some(error) = unknown_name(&control, &filter)
    {
        return problem(StatusCode::NOT_FOUND, "No flow can match this filter", &error);
    }
    answer(FlowsAnswer { total, flows })
}
