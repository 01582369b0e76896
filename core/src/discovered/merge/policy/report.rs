//! Report on the settings of a claim, for a person: whether the routers or the balancer obeys each, and why some are
//! not obeyed.

use super::SharedName;
use crate::discovered::claims::annotations::keys;
use crate::discovered::discovery::{Claim, RouteSettings};
use crate::model::claimed::PathPolicy;
use crate::model::{Balance, Cluster, ClusterRole, Model, Route};

/// Lines about the settings of a cluster's claim to a discovered route, grouped by the router or balancer that obeys
/// them.
#[must_use]
pub fn settings_report(model: &Model, route: &Route, all: &[(usize, &Claim)], at: usize, claim: &Claim) -> Vec<String> {
    let Some(cluster) = model.clusters.get(at) else {
        return Vec::new();
    };
    let name = SharedName::new(route, all, &model.clusters, &model.timeouts);
    let has_list = |path: &PathPolicy| !path.allow.is_empty();
    let context = ReportContext {
        cluster,
        has_only_servers: name.has_only_servers(),
        allows_in_file: route.allow.is_some(),
        insecure_in_file: route.tls.as_ref().is_some_and(|tls| tls.insecure.is_some()),
        has_path_lists: route.claimed.iter().any(|claimed| claimed.paths.iter().any(has_list)),
    };
    // Routes that ask for nothing else are not kept one by one.
    let bare = RouteSettings {
        insecure: claim.insecure,
        ..RouteSettings::default()
    };
    let all_settings = match &claim.settings[..] {
        [] => std::slice::from_ref(&bare),
        settings => settings,
    };
    let mut lines = Vec::new();
    for settings in all_settings {
        let by = if claim.settings.len() > 1 {
            format!("{}: ", settings.origin)
        } else {
            String::new()
        };
        let asked = context.judged(settings);
        for (verdict, what) in [
            (ObeyedBy::Here, "obeyed here"),
            (ObeyedBy::Router, "left to the router"),
            (
                ObeyedBy::InformedRouter,
                "left to the router, which gets the client's address by `proxy_protocol: v2`",
            ),
            (ObeyedBy::Nobody, "not obeyed"),
        ] {
            let judged = asked.iter().filter(|setting| setting.verdict == verdict);
            let texts: Vec<String> = judged.map(JudgedSetting::text).collect();
            if !texts.is_empty() {
                lines.push(format!("{by}{what}: {}", texts.join(", ")));
            }
        }
    }
    lines
}

/// Party that obeys a setting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObeyedBy {
    Here,
    Router,
    InformedRouter,
    Nobody,
}

/// A setting with its verdict.
struct JudgedSetting {
    key: &'static str,
    verdict: ObeyedBy,
    /// Restriction or reason; empty for none.
    remark: &'static str,
}

impl JudgedSetting {
    fn text(&self) -> String {
        if self.remark.is_empty() {
            self.key.to_owned()
        } else {
            format!("{} ({})", self.key, self.remark)
        }
    }
}

/// Facts that verdicts depend on.
struct ReportContext<'a> {
    cluster: &'a Cluster,
    has_only_servers: bool,
    allows_in_file: bool,
    insecure_in_file: bool,
    /// Whether lists of clients differ from path to path.
    has_path_lists: bool,
}

impl ReportContext<'_> {
    fn judged(&self, settings: &RouteSettings) -> Vec<JudgedSetting> {
        let mut all = Vec::new();
        let mut add = |is_asked: bool, key: &'static str, (verdict, remark): (ObeyedBy, &'static str)| {
            if is_asked {
                all.push(JudgedSetting { key, verdict, remark });
            }
        };
        add(settings.allow.is_some(), keys::ALLOW, self.allow(settings));
        let of_connections = self.by_client(if settings.passes_tls {
            ""
        } else {
            "requests count where they are routed one by one"
        });
        add(
            settings.concurrent_connections.is_some(),
            keys::CONCURRENT,
            of_connections,
        );
        add(
            settings.connection_rate.is_some(),
            keys::CONNECTION_RATE,
            self.by_client(""),
        );
        add(
            settings.request_rate.is_some(),
            keys::REQUEST_RATE,
            self.request_rate(settings),
        );
        let timeout = if settings.passes_tls {
            "a flow that carries nothing for so long is ended"
        } else {
            "where requests are routed one by one; the router obeys it, too"
        };
        let timeout = match self.cluster.role {
            ClusterRole::Servers if !settings.passes_tls => "where requests are routed one by one",
            _ => timeout,
        };
        add(settings.timeout_ms.is_some(), keys::TIMEOUT, (ObeyedBy::Here, timeout));
        add(
            settings.tunnel_timeout_ms.is_some(),
            keys::TUNNEL_TIMEOUT,
            (ObeyedBy::Here, ""),
        );
        let forwarded = match settings.passes_tls {
            true => (ObeyedBy::Nobody, "no request can be read in TLS that passes through"),
            false => self.by_client("where requests are routed one by one"),
        };
        add(settings.forwarded.is_some(), keys::FORWARDED, forwarded);
        self.add_servers(settings, &mut add);
        for key in &settings.router_only {
            let (key, verdict) = self.router_only(key);
            add(true, key, verdict);
        }
        all
    }

    fn add_servers(
        &self,
        settings: &RouteSettings,
        add: &mut impl FnMut(bool, &'static str, (ObeyedBy, &'static str)),
    ) {
        let verdict = self.of_servers(settings);
        let cookie = match (settings.cookie_name.is_some(), settings.disables_cookies) {
            (true, true) if verdict.0 == ObeyedBy::Here => (ObeyedBy::Nobody, "disable_cookies is true"),
            _ => verdict,
        };
        let same_site = match verdict.0 {
            ObeyedBy::Here if settings.cookie().is_none() => {
                (ObeyedBy::Nobody, "there is no cookie without cookie_name")
            }
            _ => verdict,
        };
        add(settings.cookie_name.is_some(), keys::COOKIE_NAME, cookie);
        add(settings.same_site.is_some(), keys::SAME_SITE, same_site);
        add(settings.disables_cookies, keys::DISABLE_COOKIES, verdict);
        let hsts = match verdict.0 {
            ObeyedBy::Here if settings.ends_tls => (ObeyedBy::Here, "where TLS ends here"),
            ObeyedBy::Here => (ObeyedBy::Nobody, "TLS of the Route does not end at the router"),
            _ => verdict,
        };
        add(settings.hsts.is_some(), keys::HSTS, hsts);
        add(settings.rewrite.is_some(), keys::REWRITE, verdict);
        add(!settings.insecure.is_allow(), keys::INSECURE, self.insecure());
        add(settings.balance.is_some(), keys::BALANCE, self.balance(settings));
        let of_server = match verdict {
            _ if self.cluster.role == ClusterRole::Servers && self.has_only_servers => (
                ObeyedBy::Here,
                "all connections of a server count, whichever Route they are of",
            ),
            verdict => verdict,
        };
        add(settings.server_connections.is_some(), keys::POD_CONCURRENT, of_server);
        let has_headers = !settings.request_headers.is_empty() || !settings.response_headers.is_empty();
        add(has_headers, keys::HEADERS, verdict);
    }

    /// ObeyedBy for the treatment of plain HTTP, whose requests can be read even where TLS passes through.
    fn insecure(&self) -> (ObeyedBy, &'static str) {
        match self.of_servers(&RouteSettings::default()) {
            (ObeyedBy::Here, _) if self.insecure_in_file => {
                (ObeyedBy::Nobody, "`tls.insecure` of the configuration comes first")
            }
            (ObeyedBy::Here, _) => (ObeyedBy::Here, ""),
            verdict => verdict,
        }
    }

    fn balance(&self, settings: &RouteSettings) -> (ObeyedBy, &'static str) {
        let goes_by_client = settings.balance == Some(Balance::Maglev);
        match self.cluster.role {
            ClusterRole::Routers if goes_by_client && self.cluster.proxy_protocol.is_none() => (
                ObeyedBy::Router,
                "which knows the client's address only with `proxy_protocol: v2`",
            ),
            ClusterRole::Servers if self.has_only_servers => (ObeyedBy::Here, ""),
            _ => self.of_servers(settings),
        }
    }

    /// ObeyedBy for settings that depend on the client's address.
    fn by_client(&self, remark: &'static str) -> (ObeyedBy, &'static str) {
        match self.cluster.role {
            ClusterRole::Routers if self.cluster.proxy_protocol.is_some() => (ObeyedBy::InformedRouter, ""),
            _ => (ObeyedBy::Here, remark),
        }
    }

    fn allow(&self, settings: &RouteSettings) -> (ObeyedBy, &'static str) {
        let remark = match &settings.allow {
            Some(prefixes) if prefixes.is_empty() => "it allows no client",
            _ if self.has_path_lists => {
                "for its path: plain HTTP is routed one by one and not cut for its sake; a connection in TLS that passes \
                 through is served if any path's list has the client"
            }
            _ if settings.passes_tls => "",
            _ => "a connection that is routed as a whole is judged by its first name",
        };
        match self.by_client(remark) {
            (ObeyedBy::Here, _) if self.allows_in_file => {
                (ObeyedBy::Nobody, "`allow` of the configuration comes first")
            }
            verdict => verdict,
        }
    }

    fn request_rate(&self, settings: &RouteSettings) -> (ObeyedBy, &'static str) {
        if settings.passes_tls {
            return (ObeyedBy::Nobody, "no request can be counted in TLS that passes through");
        }
        self.by_client("its plain HTTP is routed one by one and not cut for its sake; in TLS only where that ends here")
    }

    fn of_servers(&self, settings: &RouteSettings) -> (ObeyedBy, &'static str) {
        match self.cluster.role {
            ClusterRole::Routers => (ObeyedBy::Router, ""),
            ClusterRole::Servers if settings.passes_tls => {
                (ObeyedBy::Nobody, "no request can be read in TLS that passes through")
            }
            ClusterRole::Servers if !self.has_only_servers => (
                ObeyedBy::Nobody,
                "another cluster of the name has routers, which would apply it again",
            ),
            ClusterRole::Servers => (ObeyedBy::Here, "its requests are routed one by one for its sake"),
        }
    }

    /// ObeyedBy for an annotation that signalbox obeys in no role.
    fn router_only(&self, key: &str) -> (&'static str, (ObeyedBy, &'static str)) {
        let (key, why) = match key {
            keys::HEALTH_INTERVAL => (
                keys::HEALTH_INTERVAL,
                "`health.interval` of the cluster holds for its hosts",
            ),
            keys::ADJUST_CASE => (keys::ADJUST_CASE, "names of fields always keep their case"),
            _ => (keys::POOL_SIZE, "signalbox has no such pool"),
        };
        match self.cluster.role {
            ClusterRole::Routers => (key, (ObeyedBy::Router, "")),
            ClusterRole::Servers => (key, (ObeyedBy::Nobody, why)),
        }
    }
}
