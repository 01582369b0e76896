//! What a cluster gets of an application.

use std::collections::HashSet;
use std::net::SocketAddr;

use proptest::prelude::*;
use signalbox_core::discovered::discovery::ClusterDiscovery;
use signalbox_core::discovered::spi::{
    AppKey, Application, Applications, Endpoint, discover as learned_by, endpoint_host_names, parse,
};
use signalbox_core::model::{EndpointFilter, HealthPageTemplate, Naming};

fn naming(domain: Option<&str>) -> Naming {
    Naming {
        prefix: "ha-".into(),
        domain: domain.map(str::to_owned),
    }
}

fn filter(types: &[&str]) -> EndpointFilter {
    EndpointFilter {
        types: types.iter().map(|&kind| kind.to_owned()).collect(),
    }
}

fn learned(application: &Application, naming: &Naming, filter: &EndpointFilter) -> ClusterDiscovery {
    learned_by(application, naming, filter, &HealthPageTemplate::default())
}

fn application(text: &str) -> Application {
    let mut applications = Applications::default();
    applications.apply(&parse(text).unwrap());
    applications.iter().next().unwrap().clone()
}

#[test]
fn the_samples_become_a_host_and_two_names() {
    let application = application(super::events::SAMPLES);
    let learned = learned(
        &application,
        &naming(Some("apps.example.com")),
        &filter(&["load_balancer"]),
    );
    assert_eq!(learned.hosts.len(), 1);
    let host = &learned.hosts[0];
    assert_eq!(host.name, "542b72abafec2de3aa000009.haproxy-1.4");
    assert_eq!(
        (host.address.to_string().as_str(), host.http, host.https, host.tcp),
        ("172.16.4.200", Some(50847), None, None)
    );
    let names: Vec<_> = learned.routes.iter().map(|claim| claim.hostname.to_string()).collect();
    assert_eq!(names, ["ha-phpha-demo.apps.example.com", "foo.example.com"]);
    assert!(
        learned
            .routes
            .iter()
            .all(|claim| claim.weight.is_none() && claim.origin == "application demo/phpha")
    );
    assert_eq!(learned.rejected, []);
}

#[test]
fn the_filter_chooses_and_the_domain_may_be_missing() {
    let application = application(super::events::SAMPLES);
    let seen = learned(&application, &naming(None), &filter(&["web_framework"]));
    assert_eq!(seen.hosts, []);
    assert_eq!(seen.routes.len(), 1);
    let both = learned(
        &application,
        &naming(None),
        &filter(&["web_framework", "load_balancer"]),
    );
    assert_eq!(both.hosts.len(), 1);
}

#[test]
fn protocols_say_which_listeners_reach_a_host() {
    for (protocols, ports) in [
        ("[]", (None, None, Some(7))),
        ("[ws]", (Some(7), None, None)),
        ("[https]", (None, Some(7), None)),
        ("[http, tls]", (Some(7), Some(7), None)),
        ("[mysql, http]", (Some(7), None, Some(7))),
    ] {
        let text = format!(
            "{{action: add_public_endpoint, app_name: a, namespace: n, public_address: 10.0.0.1, public_port: 7, \
             types: [web], protocols: {protocols}}}"
        );
        let hosts = learned(&application(&text), &naming(None), &filter(&["web"])).hosts;
        assert_eq!((hosts[0].http, hosts[0].https, hosts[0].tcp), ports, "{protocols}");
    }
}

#[test]
fn unservable_names_are_shown_and_none_is_claimed_twice() {
    let alias = |name: &str| format!("---\naction: add_alias\napp_name: a\nnamespace: n\nalias: {name:?}\n");
    let text = [
        alias("not a name"),
        alias("ha-a-n.example"),
        alias("HA-A-N.example."),
        alias("*.example"),
    ]
    .concat();
    let seen = learned(
        &application(&text),
        &naming(Some("example")),
        &filter(&["load_balancer"]),
    );
    let names: Vec<_> = seen.routes.iter().map(|claim| claim.hostname.to_string()).collect();
    assert_eq!(names, ["ha-a-n.example", "*.example"]);
    assert_eq!(seen.rejected.len(), 1);
    assert_eq!(
        (seen.rejected[0].hostname.as_str(), seen.rejected[0].origin.as_str()),
        ("not a name", "application n/a")
    );
    assert!(
        seen.rejected[0].reason.contains("a character other than"),
        "{}",
        seen.rejected[0].reason
    );
    let long = format!(
        "{{action: create_application, app_name: {}, namespace: n}}",
        "a".repeat(63)
    );
    let seen = learned(&application(&long), &naming(Some("example")), &filter(&[]));
    assert!(
        seen.routes.is_empty() && seen.rejected[0].reason.contains("63"),
        "{:?}",
        seen.rejected
    );
}

#[test]
fn a_check_uses_the_nodes_health_page_and_the_applications_name() {
    let asked = |application: &Application, domain: Option<&str>, asking: &HealthPageTemplate| {
        let learned = learned_by(application, &naming(domain), &filter(&["load_balancer"]), asking);
        let pages = learned.hosts.iter().map(|host| {
            let page = host.health_page.as_ref()?;
            Some(format!("{} {}", page.host_header.as_deref().unwrap_or("-"), page.path))
        });
        pages.map(Option::unwrap_or_default).collect::<Vec<_>>()
    };
    let samples = application(super::events::SAMPLES);
    let unsaid = HealthPageTemplate::default();
    assert_eq!(
        asked(&samples, Some("cloud.test"), &unsaid),
        ["phpha-demo.cloud.test /configuration/health"]
    );
    assert_eq!(
        asked(&samples, None, &unsaid),
        ["foo.example.com /configuration/health"]
    );

    // At the nodes' front end, by the name that it knows each gear by: the first by the application's.
    let second = ":action: :add_public_endpoint\n:app_name: phpha\n:namespace: demo\n:gear_id: 542d\n\
                  :public_address: 172.16.4.1\n:public_port: 1\n:types: [load_balancer]\n:protocols: [http]\n";
    let both = application(&format!("{}---\n{second}", super::events::SAMPLES));
    let front_end = HealthPageTemplate {
        path: Some("/health".into()),
        host_header: Some("{gear}-{namespace}.cloud.test".into()),
        include_non_http: true,
    };
    assert_eq!(
        asked(&both, None, &front_end),
        ["542d-demo.cloud.test /health", "phpha-demo.cloud.test /health"]
    );
    assert_eq!(
        asked(&both, None, &unsaid),
        ["foo.example.com /", "foo.example.com /configuration/health"]
    );
}

/// What events say goes into requests: nothing of it may end a line.
#[test]
fn a_page_is_nothing_that_could_be_more_than_a_page() {
    let text = |backend: &str, gear: &str, protocol: &str| {
        format!(
            "{{action: add_public_endpoint, app_name: a, namespace: n, public_address: 10.0.0.1, public_port: 7, \
             types: [web], protocols: [{protocol}], gear_id: {gear:?}, mappings: [{{frontend: /health, backend: {backend:?}}}]}}"
        )
    };
    let asking = HealthPageTemplate {
        host_header: Some("{gear}.test".into()),
        ..HealthPageTemplate::default()
    };
    let page = |text: &str| {
        let mut other = application(text);
        other.head = None;
        learned_by(&other, &naming(None), &filter(&["web"]), &asking).hosts[0]
            .health_page
            .clone()
    };
    let good = page(&text("/ok", "g1", "http")).unwrap();
    assert_eq!(
        (good.path.as_str(), good.host_header.as_deref()),
        ("/ok", Some("g1.test"))
    );
    for (backend, gear) in [
        ("/a b", "g1"),
        ("/a\r\nX: y", "g 1"),
        ("http://x/", "g\r\nX: y"),
        ("", "g:x"),
    ] {
        let page = page(&text(backend, gear, "http")).unwrap();
        assert_eq!(page.path, "/", "{backend:?}");
        assert_eq!(page.host_header.is_some(), gear == "g1", "{gear:?}");
    }
    assert_eq!(page(&text("/ok", "g1", "mysql")), None, "it speaks no HTTP");
}

proptest! {
    /// Every host has a name, no two the same one, and it does not depend on which others there are.
    #[test]
    fn hosts_have_names_of_their_own(ports in proptest::collection::btree_map(1u16..200, ("[ab.]{1,3}|\\PC{0,80}", "[ab.]{1,3}|\\PC{0,80}"), 0..20)) {
        let mut application = Application::new(AppKey { namespace: "n".into(), app: "a".into() });
        let mut pairs = HashSet::new();
        for (port, (gear, name)) in ports {
            if pairs.insert((gear.clone(), name.clone())) {
                let endpoint = Endpoint { gear: Some(gear), name: Some(name), ..Endpoint::default() };
                application.endpoints.insert(SocketAddr::from(([10, 0, 0, 1], port)), endpoint);
            }
        }
        let names = endpoint_host_names(&application);
        prop_assert_eq!(names.iter().collect::<HashSet<_>>().len(), application.endpoints.len());
        for name in &names {
            prop_assert!((1..=63).contains(&name.len()), "{name}");
            prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')), "{name}");
        }
    }
}
