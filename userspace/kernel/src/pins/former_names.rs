//! Names that maps and fields had in earlier versions of signalbox. Flows of such a version are carried over by name,
//! so a name that is changed is kept here, for as long as that version may be upgraded from.

use std::borrow::Cow;

/// Pinned maps: the present name, and a former one. Layer 4 had its names as `L4_NAMES` up to `v5`; the others changed
/// after `v4`.
const MAPS: [(&str, &str); 6] = [
    ("CUT_FLOWS", "FLOWS"),
    ("ID_NAMES", "NAMES"),
    ("ID_NAMES", "L4_NAMES"),
    ("L4_CT_ESTABLISHED", "L4_ESTABLISHED"),
    ("L4_CT_HALF_OPEN", "L4_OPENING"),
    ("L4_NAT_SOURCES", "L4_SOURCES"),
];

/// Fields of pinned structures: the present name, and the name up to `v4`.
const FIELDS: [(&str, &str); 20] = [
    ("dirs", "ways"),
    ("first_reply_ack", "first"),
    ("handoff_end", "owed_end"),
    ("handoff_state", "drained"),
    ("hop_expires", "hop_until"),
    ("host_addr", "backend"),
    ("idle_ticks", "idle"),
    ("ineligible", "why"),
    ("isn_b", "first_b"),
    ("isn_host", "first_host"),
    ("last_seen", "seen"),
    ("seq_delta_in", "d1"),
    ("seq_delta_out", "d2"),
    ("snd_max", "high"),
    ("snd_nxt_b", "sent_b"),
    ("source_count", "sources"),
    ("ts_delta_in", "t1"),
    ("ts_delta_out", "t2"),
    ("ts_val", "stamp"),
    ("xdp_ifindex", "port"),
];

/// Returns a map's names, the present one first.
pub(super) fn of_map(name: &str) -> impl Iterator<Item = &str> {
    let former = MAPS
        .iter()
        .filter(move |(now, _)| *now == name)
        .map(|(_, former)| *former);
    std::iter::once(name).chain(former)
}

/// Returns the former name of a field, such as `ways.1.ack` for `dirs.1.ack`; the present one if no part of it has
/// changed.
pub(super) fn of_field(name: &str) -> Cow<'_, str> {
    let former = |part: &str| FIELDS.iter().find(|(now, _)| *now == part).map(|(_, former)| *former);
    if !name.split('.').any(|part| former(part).is_some()) {
        return Cow::Borrowed(name);
    }
    let parts: Vec<&str> = name.split('.').map(|part| former(part).unwrap_or(part)).collect();
    Cow::Owned(parts.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_fields_name_is_translated() {
        assert_eq!(of_field("dirs.1.snd_max"), "ways.1.high");
        assert_eq!(of_field("state"), "state");
        assert!(of_map("ID_NAMES").eq(["ID_NAMES", "NAMES", "L4_NAMES"]));
        assert!(of_map("L4_HOSTS").eq(["L4_HOSTS"]));
    }
}
