//! States of a migration.

use serde::{Deserialize, Serialize};

/// Where a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MigrationState {
    /// A step is held.
    Running,
    /// The step stays until an operator resumes or aborts; guards still watch it.
    Paused,
    /// A guard has failed: the earlier weights are being restored.
    RollingBack,
    /// An operator has aborted: the earlier weights are being restored.
    Aborting,
    /// The last step was held.
    Completed,
    /// A guard had failed; the earlier weights are active again.
    RolledBack,
    /// An operator had aborted; the earlier weights are active again.
    Aborted,
}

impl MigrationState {
    /// Returns the state's name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::RollingBack => "rolling_back",
            Self::Aborting => "aborting",
            Self::Completed => "completed",
            Self::RolledBack => "rolled_back",
            Self::Aborted => "aborted",
        }
    }

    /// Whether nothing more will happen.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::RolledBack | Self::Aborted)
    }

    /// Whether the earlier weights must be active again.
    #[must_use]
    pub const fn is_going_back(self) -> bool {
        matches!(self, Self::RollingBack | Self::Aborting)
    }
}
