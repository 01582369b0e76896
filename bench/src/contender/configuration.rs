//! Configurations of contenders for a scenario: templates filled in and written, and the command that uses them.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::template::Filling;
use super::{Contender, Setup, signalbox};
use crate::hosts::{CERTIFICATE, NAME, REENCRYPTED_NAME, RSA_CERTIFICATE, RSA_NAME, WEBSOCKET_PATH};
use crate::lab::{HOSTS, Lab, VIP};
use crate::load::{bulk, echo};
use crate::product;
use crate::scenario::{ALL, Scenario, ScenarioKind};
use crate::suite::Suite;

impl Setup {
    /// Writes the contender's configuration, and returns the command that runs it; `None` for plain forwarding.
    pub(super) fn command(&self, lab: &Lab, scenario: &Scenario) -> Result<Option<Command>> {
        Ok(match &self.contender {
            Contender::Direct => None,
            Contender::Rival(rival) => {
                self.write(lab, scenario)?;
                let files = rival.files(self.suite, scenario).context("there is no configuration")?;
                Some(rival.command(lab, self.threads, scenario, files)?)
            }
            Contender::Node { .. } if self.suite == Suite::Http => {
                bail!("nodes of a group are measured only where connections are passed on")
            }
            Contender::Node { is_replicated } => Some(self.node(lab, *is_replicated)?),
            Contender::Signalbox { .. } | Contender::Other => {
                self.write(lab, scenario)?;
                let mut command = product::command(&lab.lb, lab.dir(), &self.signalbox);
                command.args(["--workers", &self.threads.to_string()]);
                Some(command)
            }
        })
    }

    /// Writes the contender's files.
    fn write(&self, lab: &Lab, scenario: &Scenario) -> Result<()> {
        let files = self.files(lab, scenario, &[])?;
        files.iter().try_for_each(|(name, text)| put(lab.dir(), name, text))
    }

    /// The contender's files with further names: the name in the run's directory, and the text.
    pub(super) fn files(
        &self,
        lab: &Lab,
        scenario: &Scenario,
        routes: &[String],
    ) -> Result<Vec<(&'static str, String)>> {
        let product = |tier: &str| {
            let filling = filling(lab.dir(), self.threads, &[], scenario, routes);
            let body = signalbox::body(filling, self.suite, tier)?;
            Ok(vec![(product::CONFIG, product::configuration(lab.dir(), &body))])
        };
        match &self.contender {
            Contender::Rival(rival) => {
                let filling = filling(rival.place()?.dir(lab), self.threads, rival.flags(), scenario, routes);
                let files = rival.files(self.suite, scenario).unwrap_or_default().iter();
                files
                    .map(|(name, template)| Ok((*name, template.fill(&filling)?)))
                    .collect()
            }
            Contender::Signalbox { tier } => product(tier),
            Contender::Other => product("auto"),
            Contender::Direct | Contender::Node { .. } => Ok(Vec::new()),
        }
    }

    /// Configuration of a signalbox with default settings, where connections are routed.
    pub(super) fn default_body(&self, lab: &Lab) -> Result<String> {
        let filling = filling(lab.dir(), self.threads, &[], &ALL[0], &[]);
        signalbox::body(filling, Suite::Connections, "auto")
    }
}

/// Replaces a file of the run's directory at once, as those that watch it expect.
pub(super) fn put(dir: &Path, name: &str, text: &str) -> Result<()> {
    let (file, new) = (dir.join(name), dir.join(format!("{name}.new")));
    std::fs::write(&new, text).with_context(|| new.display().to_string())?;
    std::fs::rename(&new, &file).with_context(|| file.display().to_string())
}

/// Words, flags and names that templates are filled with.
pub(super) fn filling(
    dir: &Path,
    threads: usize,
    flags: &[&'static str],
    scenario: &Scenario,
    routes: &[String],
) -> Filling {
    let condition = scenario.condition.flags().iter().copied();
    let change = matches!(scenario.kind, ScenarioKind::Change(_)).then_some("routes");
    let [host1, host2] = HOSTS;
    // The clients of the load are in the last prefix.
    let others = (0..999).map(|n| format!("10.{}.{}.0/24", 128 + n / 250, n % 250));
    let clients: Vec<String> = others.chain(["10.71.1.0/24".to_owned()]).collect();
    Filling {
        words: vec![
            ("dir", dir.display().to_string()),
            ("threads", threads.to_string()),
            ("vip", VIP.to_string()),
            ("host1", host1.to_string()),
            ("host2", host2.to_string()),
            ("name", NAME.into()),
            ("rsa_name", RSA_NAME.into()),
            ("reencrypted_name", REENCRYPTED_NAME.into()),
            ("certificate", CERTIFICATE.into()),
            ("rsa_certificate", RSA_CERTIFICATE.into()),
            ("websocket_path", WEBSOCKET_PATH.into()),
            ("echo_port", echo::PORT.to_string()),
            ("bulk_port", bulk::PORT.to_string()),
            ("clients", clients.join(", ")),
            ("client_lines", clients.join("\n")),
            ("nginx_clients", clients.join(" 1; ") + " 1;"),
        ],
        flags: flags.iter().copied().chain(condition).chain(change).collect(),
        routes: routes.to_vec(),
        hosts: scenario.hosts().iter().map(Ipv4Addr::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Rival;
    use crate::scenario::{CONDITIONS, HTTP};

    #[test]
    fn every_configuration_is_filled_in_for_every_scenario() {
        let suites = [Suite::Connections, Suite::Conditions, Suite::Http, Suite::Failures];
        let routes = ["new.example".to_owned()];
        for (suite, scenario) in suites
            .iter()
            .flat_map(|suite| suite.scenarios().iter().map(move |s| (*suite, s)))
        {
            for rival in Rival::ALL
                .iter()
                .filter(|rival| rival.refusal(suite, scenario).is_none())
            {
                let filling = filling(Path::new("/lab"), 2, rival.flags(), scenario, &routes);
                let mut texts = String::new();
                for (name, template) in rival.files(suite, scenario).unwrap() {
                    let text = template.fill(&filling).unwrap();
                    assert!(!text.contains("{vip}"), "{name}: {text}");
                    texts += &text;
                }
                for host in scenario.hosts() {
                    assert!(
                        texts.contains(&format!("{host}")),
                        "{rival:?} has no host {host}: {texts}"
                    );
                }
            }
            let filling = filling(Path::new("/lab"), 2, &[], scenario, &routes);
            assert!(
                signalbox::body(filling, suite, "splice")
                    .unwrap()
                    .contains("tier: splice")
            );
        }
    }

    #[test]
    fn each_condition_changes_what_a_contender_is_told() {
        let text = |scenario: &Scenario| {
            let files = Rival::Haproxy.files(Suite::Conditions, scenario).unwrap();
            files[0]
                .1
                .fill(&filling(Path::new("/lab"), 2, &[], scenario, &[]))
                .unwrap()
        };
        let texts: Vec<_> = CONDITIONS.iter().map(text).collect();
        // The packet filter's rules are in no contender's configuration.
        assert_eq!(texts[0], texts[1]);
        for (at, word) in ["log stdout", "5s send-proxy-v2", "sc0_conn", "clients.lst"]
            .into_iter()
            .enumerate()
        {
            let is_in = |text: &String| text.contains(word);
            assert!(is_in(&texts[2 + at]) && is_in(&texts[6]) && !is_in(&texts[0]), "{word}");
        }
    }

    #[test]
    fn further_names_are_in_all_that_can_change() {
        let change = HTTP.iter().find(|s| matches!(s.kind, ScenarioKind::Change(_))).unwrap();
        let routes = ["new.example".to_owned()];
        for rival in Rival::ALL
            .iter()
            .filter(|rival| rival.refusal(Suite::Http, change).is_none())
        {
            let filling = filling(Path::new("/lab"), 2, rival.flags(), change, &routes);
            let files = rival.files(Suite::Http, change).unwrap();
            let has =
                |template: &super::super::template::Template| template.fill(&filling).unwrap().contains("new.example");
            assert!(files.iter().any(|(_, template)| has(template)), "{}", rival.name());
        }
    }
}
