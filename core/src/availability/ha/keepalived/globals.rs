//! Parts of keepalived's configuration that all instances share: global settings, mail, tracked files and scripts.

use std::time::Duration;

use super::{NodeContext, READY, Tracking, fifo, line, ready_file, release_file, scrubbed, seconds, version_number};
use crate::model::HighAvailability;
use crate::model::ha::HaEmail;

/// Interval at which an owner announces its addresses. After two nodes have both had them, the one that yields sends
/// nothing, and neighbours would continue to send to it.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(5);

/// Writes global settings.
pub(super) fn globals(out: &mut String, ha: &HighAvailability, node: &NodeContext<'_>) {
    line(out, 0, "global_defs {");
    line(out, 1, &format!("router_id {}", scrubbed(&ha.name)));
    line(out, 1, &format!("vrrp_version {}", version_number(ha.vrrp.version)));
    line(out, 1, "script_user root");
    line(out, 1, "max_auto_priority 99");
    line(
        out,
        1,
        &format!("vrrp_garp_master_refresh {}", ANNOUNCE_INTERVAL.as_secs()),
    );
    line(out, 1, "vrrp_garp_master_refresh_repeat 1");
    match node.tracking {
        Tracking::Directory(directory) => line(out, 1, &format!("vrrp_notify_fifo \"{}\"", fifo(directory))),
        Tracking::Script { .. } => line(out, 1, "enable_script_security"),
    }
    if let Some(email) = &ha.email {
        mail(out, email);
    }
    line(out, 0, "}");
}

fn mail(out: &mut String, email: &HaEmail) {
    line(out, 1, "notification_email {");
    for to in &email.to {
        line(out, 2, to);
    }
    line(out, 1, "}");
    line(out, 1, &format!("notification_email_from {}", email.from));
    line(
        out,
        1,
        &format!("smtp_server {} {}", email.smtp.ip(), email.smtp.port()),
    );
    line(out, 1, "smtp_alert true");
}

/// Writes what the node's condition is learnt from.
pub(super) fn tracked(out: &mut String, ha: &HighAvailability, node: &NodeContext<'_>) {
    match node.tracking {
        Tracking::Directory(directory) => {
            track_file(out, READY, &ready_file(directory));
            for group in &ha.groups {
                track_file(
                    out,
                    &format!("release_{}", group.name),
                    &release_file(directory, &group.name),
                );
            }
        }
        Tracking::Script { command, interval } => {
            line(out, 0, &format!("vrrp_script {READY} {{"));
            line(out, 1, &format!("script \"{command}\""));
            line(out, 1, &format!("interval {}", seconds(interval)));
            line(out, 0, "}");
        }
    }
}

fn track_file(out: &mut String, name: &str, path: &str) {
    line(out, 0, &format!("track_file {name} {{"));
    line(out, 1, &format!("file \"{path}\""));
    line(out, 1, "weight 0");
    line(out, 0, "}");
}
