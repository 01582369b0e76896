//! Notices: keepalived's reports on instances and groups, a line each, such as `INSTANCE "g1" MASTER 250`.

use serde::{Deserialize, Serialize};

/// State of a group on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum GroupState {
    /// The node has the group's addresses.
    Master,
    /// Another node has them, and this one would take over.
    Backup,
    /// This node must not have them.
    Fault,
}

impl GroupState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Master, Self::Backup, Self::Fault];

    /// Name of the state in the API and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Backup => "backup",
            Self::Fault => "fault",
        }
    }
}

/// Notice about an instance or a group of instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice<'a> {
    /// `INSTANCE`, or `GROUP` for several that change together.
    pub kind: &'a str,
    /// Name of the instance or group.
    pub name: &'a str,
    /// New state as keepalived writes it: `MASTER`, `BACKUP`, `FAULT`, `STOP`, `DELETED` and others.
    pub state: &'a str,
    /// Priority of the node.
    pub priority: u8,
}

impl<'a> Notice<'a> {
    /// Parses a line; `None`: it is none.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let (kind, rest) = line.trim().split_once(' ')?;
        let (name, rest) = rest.strip_prefix('"')?.split_once("\" ")?;
        let (state, priority) = rest.split_once(' ')?;
        Some(Self {
            kind,
            name,
            state,
            priority: priority.parse().ok()?,
        })
    }

    /// State that the group is in from now on; `None`: the notice is not about that.
    #[must_use]
    pub fn group_state(&self) -> Option<GroupState> {
        match self.state {
            "MASTER" => Some(GroupState::Master),
            "BACKUP" => Some(GroupState::Backup),
            "FAULT" | "STOP" | "DELETED" => Some(GroupState::Fault),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_keepalived_are_understood() {
        let notice = Notice::parse("INSTANCE \"g1\" MASTER 250\n").unwrap();
        assert_eq!(
            (notice.kind, notice.name, notice.state, notice.priority),
            ("INSTANCE", "g1", "MASTER", 250)
        );
        assert_eq!(notice.group_state(), Some(GroupState::Master));
        let states = ["BACKUP", "FAULT", "STOP", "DELETED", "MASTER_RX_LOWER_PRI"].map(|state| {
            let line = format!("GROUP \"g 2\" {state} 0");
            Notice::parse(&line).unwrap().group_state()
        });
        let fault = Some(GroupState::Fault);
        assert_eq!(states, [Some(GroupState::Backup), fault, fault, fault, None]);
        for line in [
            "",
            "INSTANCE",
            "INSTANCE g1 MASTER 1",
            "INSTANCE \"g1\" MASTER",
            "INSTANCE \"g1\" MASTER x",
        ] {
            assert_eq!(Notice::parse(line), None, "{line}");
        }
    }
}
