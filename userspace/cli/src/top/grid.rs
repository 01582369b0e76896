//! A table that can be filtered and sorted, and that fits the terminal's width.

use std::cmp::Ordering;

/// State of an item: shown as a symbol and a colour beside its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Good,
    Warn,
    Bad,
    Idle,
}

impl Look {
    pub(super) const fn shape(self) -> &'static str {
        match self {
            Self::Good => "●",
            Self::Warn => "▲",
            Self::Bad => "■",
            Self::Idle => "○",
        }
    }
}

/// Cell of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct GridCell {
    pub(super) text: String,
    /// The value by which rows are sorted. Rows without it are sorted by their text.
    pub(super) number: Option<f64>,
    pub(super) look: Option<Look>,
}

impl GridCell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    pub(super) fn number(value: f64, text: String) -> Self {
        Self {
            text,
            number: Some(value),
            look: None,
        }
    }

    pub(super) fn state(look: Look, text: &str) -> Self {
        Self {
            text: format!("{} {text}", look.shape()),
            number: None,
            look: Some(look),
        }
    }
}

/// A line of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct GridRow {
    /// Identifies the row, so that it stays selected when rows appear, disappear or move.
    pub(super) id: String,
    pub(super) cells: Vec<GridCell>,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub(super) struct Grid {
    pub(super) headings: Vec<&'static str>,
    pub(super) rows: Vec<GridRow>,
    /// Text to show if there are no rows.
    pub(super) empty: &'static str,
    /// Lines below the table.
    pub(super) notes: Vec<String>,
}

/// Column by which rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SortBy {
    pub(super) column: usize,
    pub(super) is_reversed: bool,
}

impl Grid {
    /// Keeps the rows that contain `filter`, in upper or lower case, and sorts them: numbers from the largest, text
    /// from A. Without a column, the order of the API stays.
    pub(super) fn arrange(&mut self, filter: &str, sort: Option<SortBy>) {
        let wanted = filter.to_lowercase();
        let has = |row: &GridRow| row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&wanted));
        self.rows.retain(|row| wanted.is_empty() || has(row));
        if let Some(SortBy { column, is_reversed }) = sort {
            self.rows.sort_by(|a, b| {
                let order = compare(a.cells.get(column), b.cells.get(column));
                if is_reversed { order.reverse() } else { order }
            });
        }
    }

    /// Widths of the columns that fit in `width`, from the first on. The last of them gets the remaining width. A
    /// column that is too wide for the rest of the line is cut, if a part of it can be shown.
    pub(super) fn widths(&self, width: u16) -> Vec<u16> {
        let mut left = width;
        let mut widths = Vec::new();
        for (at, heading) in self.headings.iter().enumerate() {
            let gap = u16::from(at > 0);
            let texts = self
                .rows
                .iter()
                .filter_map(|row| row.cells.get(at))
                .map(|cell| columns_of(&cell.text));
            let wanted = texts
                .chain([columns_of(heading) + 1])
                .max()
                .unwrap_or(1)
                .min(MAX_COLUMN_WIDTH);
            if left < gap + wanted.min(MIN_COLUMN_WIDTH.max(columns_of(heading) + 1)) {
                break;
            }
            let given = wanted.min(left - gap);
            widths.push(given);
            left -= gap + given;
        }
        if let Some(last) = widths.last_mut() {
            *last += left;
        }
        widths
    }

    pub(super) fn is_numeric(&self, column: usize) -> bool {
        let cells = || self.rows.iter().filter_map(|row| row.cells.get(column));
        cells().next().is_some() && cells().all(|cell| cell.number.is_some() || cell.text == "-")
    }
}

/// Maximum width of a table's column, and the minimum to which one is cut.
const MAX_COLUMN_WIDTH: u16 = 48;
const MIN_COLUMN_WIDTH: u16 = 10;

/// Number of terminal columns of a text.
pub(super) fn columns_of(text: &str) -> u16 {
    u16::try_from(ratatui::text::Span::raw(text).width()).unwrap_or(u16::MAX)
}

fn compare(a: Option<&GridCell>, b: Option<&GridCell>) -> Ordering {
    let (Some(a), Some(b)) = (a, b) else {
        return a.is_some().cmp(&b.is_some()).reverse();
    };
    match (a.number, b.number) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (None, None) => a.text.cmp(&b.text),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let row = |name: &str, n: f64| GridRow {
            id: name.into(),
            cells: vec![GridCell::text(name), GridCell::number(n, n.to_string())],
        };
        Grid {
            headings: vec!["NAME", "ACTIVE"],
            rows: vec![row("west-1", 3.0), row("east-1", 20.0), row("East-2", 100.0)],
            ..Grid::default()
        }
    }

    fn names(filter: &str, sort: Option<(usize, bool)>) -> Vec<String> {
        let mut grid = grid();
        let sort = sort.map(|(column, is_reversed)| SortBy { column, is_reversed });
        grid.arrange(filter, sort);
        grid.rows.into_iter().map(|row| row.id).collect()
    }

    #[test]
    fn rows_are_filtered_by_any_text_and_sorted_by_a_column() {
        assert_eq!(names("", None), ["west-1", "east-1", "East-2"]);
        assert_eq!(names("EAST", None), ["east-1", "East-2"]);
        assert_eq!(names("nothing", None), Vec::<String>::new());
        assert_eq!(names("", Some((1, false))), ["East-2", "east-1", "west-1"]);
        assert_eq!(names("", Some((1, true))), ["west-1", "east-1", "East-2"]);
        assert_eq!(names("", Some((0, false))), ["East-2", "east-1", "west-1"]);
        assert_eq!(
            names("", Some((9, false))),
            ["west-1", "east-1", "East-2"],
            "no such column"
        );
    }

    #[test]
    fn columns_that_do_not_fit_are_dropped_and_the_last_one_expands() {
        assert_eq!(grid().widths(80), [6, 73]);
        assert_eq!(grid().widths(14), [6, 7]);
        assert_eq!(grid().widths(12), [12], "ACTIVE has no room");
        assert_eq!(grid().widths(0), Vec::<u16>::new());
        let mut wide = grid();
        wide.rows[0].cells[0].text = "x".repeat(100);
        assert_eq!(wide.widths(40), [40], "a long name is cut");
        assert!(grid().is_numeric(1) && !grid().is_numeric(0));
    }
}
