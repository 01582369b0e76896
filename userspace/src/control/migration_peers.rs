//! Migrations on all balancers of a set. The balancer that runs the migration sends each step's weights to the others,
//! and they answer with their traffic's figures. They store only the weights.

use std::time::Duration;

use signalbox_core::availability::migration::Migration;
use signalbox_core::discovered::merge::TesterOverrides;
use signalbox_core::model::Balancer;

use super::Control;
use super::migrate::{differing_weights, quality};
use super::migration_names::is_usable;
use super::migration_step::{FOLLOW_PATH, PeerReports, StepOrder, StepReport};
use crate::source::client::ApiClient;

/// Time limit for another balancer's answer, because guards wait for it.
const PEER_TIMEOUT: Duration = Duration::from_secs(1);

impl Control {
    /// Returns the order for all other balancers that the state of a migration requires.
    pub(super) fn step_order(migration: &Migration, set: bool) -> StepOrder {
        StepOrder {
            migration: migration.id,
            from: migration.plan.from.clone(),
            to: migration.plan.to.clone(),
            weights: migration.weights(),
            testers: migration.testers(),
            set,
        }
    }

    /// Sends an order to all other balancers at the same time.
    pub(super) async fn order_peers(&self, order: &StepOrder) -> PeerReports {
        let balancers: Vec<Balancer> = self.shared.snapshot.load().model.balancers.clone();
        let asked: Vec<_> = balancers
            .into_iter()
            .map(|balancer| {
                let url = balancer.url.clone();
                let body = serde_json::to_string(order).unwrap_or_default();
                let asking = async move {
                    let client = ApiClient::Balancer(balancer);
                    let answer = client.ask_with_timeout(PEER_TIMEOUT, hyper::Method::POST, FOLLOW_PATH, Some(body));
                    let mut answer = answer.await.map_err(|error| crate::sys::error_chain(&error))?;
                    serde_json::from_value::<StepReport>(answer["report"].take())
                        .map_err(|_| "it answers, but not as a signalbox of this version does".to_owned())
                };
                (url, tokio::spawn(asking))
            })
            .collect();
        let mut all = PeerReports::default();
        for (url, asking) in asked {
            match asking.await.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(report) => all.reports.push((url, report)),
                Err(why) if why.contains(&url) => all.silent.push(why),
                Err(why) => all.silent.push(format!("{url}: {why}")),
            }
        }
        all
    }

    /// Asks all other balancers whether they could follow a migration. The error lists those that could not.
    pub(super) async fn check_peers(&self, migration: &Migration) -> Result<(), String> {
        let order = StepOrder {
            testers: TesterOverrides::new(),
            ..Self::step_order(migration, false)
        };
        let asked = self.order_peers(&order).await;
        let mut problems = asked.silent.clone();
        for (url, report) in &asked.reports {
            if let Some(name) = report.unknown.first() {
                problems.push(format!("{url} has no route {name}"));
            } else if !report.is_usable {
                problems.push(format!(
                    "{} has no host that takes connections at {url}",
                    migration.plan.to
                ));
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(format!(
            "other balancers cannot follow: {}; --only-here moves the names here alone",
            problems.join("; ")
        ))
    }

    /// Follows the migration of another balancer: applies its weights, and reports.
    pub async fn follow_step(&self, order: StepOrder) -> Result<StepReport, String> {
        let missing = differing_weights(&order.weights, &self.shared.snapshot.load());
        if order.set && !missing.is_empty() {
            let names = missing.len();
            self.set_weights(missing).await.map_err(|refused| refused.error)?;
            tracing::info!(
                migration = order.migration,
                from = order.from,
                to = order.to,
                names,
                "Weights set for another balancer's migration."
            );
        }
        self.migrations.follow_testers(order.migration, order.testers.clone());
        self.update_testers().await?;
        let snapshot = self.shared.snapshot.load_full();
        let names = || order.weights.keys().map(String::as_str);
        let is_known = |name: &str| snapshot.routes.iter().any(|route| route.hostname == name);
        Ok(StepReport {
            process: self.migrations.process(),
            old: quality(&snapshot, names(), &order.from),
            new: quality(&snapshot, names(), &order.to),
            is_usable: is_usable(&snapshot, &order.to),
            differing: differing_weights(&order.weights, &snapshot).into_keys().collect(),
            unknown: names().filter(|name| !is_known(name)).map(str::to_owned).collect(),
        })
    }

    /// Applies the testers of all migrations, if they have changed.
    pub(super) async fn update_testers(&self) -> Result<(), String> {
        let wanted = self.migrations.testers();
        if *self.shared.snapshot.load().testers == wanted {
            return Ok(());
        }
        self.set_testers(wanted).await
    }
}
