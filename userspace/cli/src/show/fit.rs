//! Fits a table into the width of a terminal: long texts are shortened, and less important columns are left out.

use std::collections::BTreeSet;

/// Characters between two columns.
pub(super) const GAP: usize = 2;
/// Minimum widths of texts: before a column is left out, and at all.
const ROOMY: usize = 24;
const NARROW: usize = 8;

/// Columns that are left out if there is no room, in this order. Others are shown at any width.
const LEFT_OUT_FIRST: &[&str] = &[
    "CHECKED BY",
    "SUBSET",
    "REFUSED",
    "MEAN LAG",
    "TOLD ALL",
    "RECEIVING",
    "CLOSED",
    "COOKIES",
    "CONCURRENT",
    "MALFORMED",
    "PREFIXES",
    "KEY",
    "DEFAULT",
    "PREFERS",
    "SOURCES",
    "FAILURES",
    "TTL",
    "BALANCE",
    "PROTOCOL",
    "ALIASES",
    "WHY",
    "TOTAL",
    "PACKETS",
    "OUT",
    "IN",
    "BYTES",
    "JOB",
    "BY",
    "LAST CHECK",
    "AGE",
    "LISTENER",
    "MODE",
];

/// Width that a column needs.
#[derive(Clone, Debug)]
pub(super) struct ColumnNeed {
    /// Width of its widest line.
    pub(super) width: usize,
    /// Whether its texts may be shortened; numbers may not.
    pub(super) is_text: bool,
    /// Whether the column is empty in all rows.
    pub(super) is_empty: bool,
    pub(super) title: &'static str,
}

impl ColumnNeed {
    /// Position in the order in which columns are left out.
    fn rank(&self) -> Option<usize> {
        let place = LEFT_OUT_FIRST.iter().position(|title| *title == self.title);
        place.map(|place| if self.is_empty { 0 } else { place + 1 })
    }
}

/// Returns the width of each column within `room`; `None` for columns that are left out. The first one always stays.
pub(super) fn fit(needs: &[ColumnNeed], room: usize) -> Vec<Option<usize>> {
    let mut widths: Vec<_> = needs.iter().map(|need| Some(need.width)).collect();
    let ranked = needs.iter().enumerate().skip(1);
    let mut droppable: BTreeSet<_> = ranked.filter_map(|(at, need)| Some((need.rank()?, at))).collect();
    while let Some(excess) = total(&widths).checked_sub(room).filter(|excess| *excess > 0) {
        if shorten(&mut widths, needs, excess, ROOMY) {
            continue;
        }
        if let Some((_, at)) = droppable.pop_first() {
            widths[at] = None;
        } else if !shorten(&mut widths, needs, excess, NARROW) {
            break;
        }
    }
    widen(&mut widths, needs, room);
    widths
}

/// Takes up to `excess` from the widest text that is wider than `least`.
fn shorten(widths: &mut [Option<usize>], needs: &[ColumnNeed], excess: usize, least: usize) -> bool {
    let texts = widths.iter_mut().zip(needs).filter(|(_, need)| need.is_text);
    let widest = texts.filter_map(|(width, _)| width.as_mut()).max();
    let Some(widest) = widest.filter(|widest| **widest > least) else {
        return false;
    };
    *widest = least.max(widest.saturating_sub(excess));
    true
}

/// Gives remaining room to texts that were shortened before other columns were left out.
fn widen(widths: &mut [Option<usize>], needs: &[ColumnNeed], room: usize) {
    let mut slack = room.saturating_sub(total(widths));
    for (width, need) in widths.iter_mut().zip(needs) {
        if let Some(width) = width {
            let more = slack.min(need.width - *width);
            *width += more;
            slack -= more;
        }
    }
}

fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + GAP * shown.count()
}

/// Shortens a text to a width.
pub(super) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let short: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", short.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(title: &'static str, width: usize, is_text: bool) -> ColumnNeed {
        ColumnNeed {
            width,
            is_text,
            is_empty: false,
            title,
        }
    }

    #[test]
    fn a_table_with_room_is_left_alone() {
        let needs = [need("NAME", 30, true), need("WEIGHT", 6, false)];
        assert_eq!(fit(&needs, 40), [Some(30), Some(6)]);
    }

    #[test]
    fn texts_are_shortened_before_columns_are_left_out() {
        let needs = [
            need("NAME", 10, true),
            need("WEIGHT", 6, false),
            need("CHECKED BY", 90, true),
        ];
        assert_eq!(fit(&needs, 80), [Some(10), Some(6), Some(58)]);
        assert_eq!(fit(&needs, 40), [Some(10), Some(6), None]);
    }

    #[test]
    fn columns_go_by_their_rank_and_empty_ones_first() {
        let mut needs = [
            need("NAME", 10, true),
            need("CHECKED BY", 20, true),
            need("IN", 9, false),
            need("LAST CHECK", 20, true),
        ];
        assert_eq!(fit(&needs, 60), [Some(10), None, Some(9), Some(20)]);
        needs[2].is_empty = true;
        assert_eq!(fit(&needs, 60), [Some(10), Some(20), None, Some(20)]);
    }

    #[test]
    fn room_that_is_left_goes_to_what_was_shortened() {
        let needs = [
            need("NAME", 40, true),
            need("WEIGHT", 6, false),
            need("CHECKED BY", 60, true),
        ];
        assert_eq!(fit(&needs, 50), [Some(40), Some(6), None]);
    }

    #[test]
    fn numbers_and_the_first_column_stay_in_any_width() {
        let needs = [need("CHECKED BY", 30, true), need("WEIGHT", 12, false)];
        assert_eq!(fit(&needs, 10), [Some(NARROW), Some(12)]);
        assert_eq!(
            (shortened("east-1.example", 8), shortened("east-1", 8)),
            ("east-1.…".into(), "east-1".into())
        );
    }
}
