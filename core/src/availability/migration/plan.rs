//! Order of a migration.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::guard::GuardLimits;
use super::probe::ProbePlan;

/// Longest hold of a step in milliseconds: a week.
const MAX_HOLD_MS: u64 = 7 * 86_400_000;

/// Most steps.
const MAX_STEPS: usize = 100;

/// Most prefixes of testers: each connection of a name that moves looks through them.
const MAX_TESTERS: usize = 16;

/// Order to move names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MigrationPlan {
    /// Cluster that serves the names.
    pub from: String,
    /// Cluster that will serve them.
    pub to: String,
    /// Shares of the new cluster in percent, one after the other.
    pub steps: Vec<u32>,
    /// Time that each step is held, in milliseconds.
    pub hold_ms: u64,
    /// Limits of the guards.
    pub limits: GuardLimits,
    /// Addresses of clients that get the new cluster from the begin, at a step of 0 % in front of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub testers: Vec<IpNet>,
    /// True to leave other balancers of the set unchanged.
    #[serde(default)]
    pub only_here: bool,
    /// How each name is asked for at both clusters; `None`: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbePlan>,
    /// True to leave out names whose first probe fails; otherwise none moves.
    #[serde(default)]
    pub leaves_out: bool,
}

impl MigrationPlan {
    /// Returns the mistakes of a plan as an error.
    pub fn check(&self) -> Result<(), String> {
        let is_rising = self.steps.windows(2).all(|pair| pair[0] < pair[1]);
        if self.from == self.to {
            return Err(format!(
                "{} is both the old and the new cluster: name two clusters",
                self.from
            ));
        }
        if self.steps.is_empty() || self.steps.len() > MAX_STEPS {
            return Err(format!("a migration has 1 to {MAX_STEPS} steps, such as 5,25,50,100"));
        }
        if self.testers.len() > MAX_TESTERS {
            return Err(format!(
                "there are more than {MAX_TESTERS} prefixes of testers: give fewer"
            ));
        }
        // Testers have a separate first step, in which no other client gets the new cluster.
        let others = match self.steps.split_first() {
            Some((0, others)) if !self.testers.is_empty() && !others.is_empty() => others,
            _ => &self.steps,
        };
        if !is_rising || others.iter().any(|step| !(1..=100).contains(step)) {
            return Err(
                "steps are shares of the new cluster from 1 to 100 percent that rise, such as 5,25,50,100".into(),
            );
        }
        if self.hold_ms > MAX_HOLD_MS {
            return Err("a step can be held for a week at most".into());
        }
        self.probe.as_ref().map_or(Ok(()), ProbePlan::check)
    }
}
