//! Draws the panes with tables, and details of the selected row below.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::Palette;
use super::overview::chart_lines;
use crate::top::data::TopData;
use crate::top::grid::{Grid, GridCell, GridRow, Look};
use crate::top::history::{Figure, HostSeries, last};
use crate::top::keys::{Pane, TopState};
use crate::top::overview::TopChart;
use crate::top::panes::{ClusterShare, shares};
use crate::top::text::{percent, short};

/// Lines of a host's charts.
const CHARTS_HEIGHT: u16 = 5;
/// Lines of all fields of a row.
const FIELDS_HEIGHT: u16 = 3;
/// Maximum number of a route's clusters whose bars are drawn.
const MAX_BARS: usize = 6;
/// Columns of a bar.
const BAR_WIDTH: usize = 18;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &TopState, palette: Palette) {
    let Some(grid) = state.grid() else {
        return;
    };
    let selected = state.selected(&grid);
    let row = grid.rows.get(selected);
    let notes = u16::try_from(grid.notes.len()).unwrap_or(u16::MAX).min(area.height / 3);
    let detail = RowDetail::of(state, &grid, row, palette);
    let [rows, below, foot] = Layout::vertical([
        Constraint::Fill(1),
        Constraint::Length(detail.height()),
        Constraint::Length(notes),
    ])
    .areas(area);
    if grid.rows.is_empty() {
        let text = if state.filter().is_empty() {
            grid.empty
        } else {
            "No row has this text."
        };
        frame.render_widget(Paragraph::new(text), rows);
    } else {
        let mut place = TableState::new().with_selected(selected);
        frame.render_stateful_widget(table(&grid, state, rows.width, palette), rows, &mut place);
    }
    match detail {
        RowDetail::Charts(host) => host_charts(frame, below, state.data(), host, palette),
        RowDetail::Lines(lines) => frame.render_widget(Paragraph::new(lines), below),
        RowDetail::Fields(text) => frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), below),
    }
    let note = |text: &String| {
        let look = if text.starts_with('!') { Look::Bad } else { Look::Idle };
        Line::styled(text.clone(), palette.look(look))
    };
    frame.render_widget(Paragraph::new(grid.notes.iter().map(note).collect::<Vec<_>>()), foot);
}

/// Details of the selected row.
enum RowDetail<'a> {
    Charts(&'a HostSeries),
    Lines(Vec<Line<'static>>),
    /// All fields, including those whose columns did not fit.
    Fields(String),
}

impl<'a> RowDetail<'a> {
    fn of(state: &'a TopState, grid: &Grid, row: Option<&GridRow>, palette: Palette) -> Self {
        let Some(row) = row else {
            return Self::Lines(Vec::new());
        };
        match state.pane {
            Pane::Hosts => {
                let host = state.data().history.hosts.iter().find(|host| host.key() == row.id);
                host.map_or_else(|| Self::Lines(Vec::new()), Self::Charts)
            }
            Pane::Routes => Self::Lines(route_bars(state.data(), &row.id, palette)),
            _ => {
                let fields = grid.headings.iter().zip(&row.cells);
                let fields = fields.filter(|(_, cell)| !cell.text.is_empty() && cell.text != "-");
                let fields: Vec<_> = fields
                    .map(|(heading, cell)| format!("{heading} {}", cell.text))
                    .collect();
                Self::Fields(fields.join("  "))
            }
        }
    }

    fn height(&self) -> u16 {
        match self {
            Self::Charts(_) => CHARTS_HEIGHT,
            Self::Lines(lines) => u16::try_from(lines.len()).unwrap_or(0),
            Self::Fields(_) => FIELDS_HEIGHT,
        }
    }
}

fn table(grid: &Grid, state: &TopState, width: u16, palette: Palette) -> Table<'static> {
    let widths = grid.widths(width);
    let alignment = |column| {
        if grid.is_numeric(column) {
            Alignment::Right
        } else {
            Alignment::Left
        }
    };
    let sort = state.sorts.get(&state.pane);
    let heading = |(column, heading): (usize, &&str)| {
        let mark = match sort.filter(|sort| sort.column == column) {
            Some(sort) if sort.is_reversed => "↑",
            Some(_) => "↓",
            None => "",
        };
        Cell::from(Text::from(format!("{heading}{mark}")).alignment(alignment(column)))
    };
    let head = Row::new(grid.headings.iter().take(widths.len()).enumerate().map(heading)).style(palette.strong());
    let cell = |(column, cell): (usize, &GridCell)| {
        let text = Text::from(cell.text.clone()).alignment(alignment(column));
        Cell::from(text).style(cell.look.map_or_else(Default::default, |look| palette.look(look)))
    };
    let rows = grid
        .rows
        .iter()
        .map(|row| Row::new(row.cells.iter().take(widths.len()).enumerate().map(cell)));
    Table::new(rows.collect::<Vec<_>>(), widths.into_iter().map(Constraint::Length))
        .header(head)
        .column_spacing(1)
        .row_highlight_style(palette.chosen())
}

/// The charts of a host side by side: active, new and refused connections.
fn host_charts(frame: &mut Frame<'_>, area: Rect, data: &TopData, host: &HostSeries, palette: Palette) {
    let rates = |figure| data.history.rates(&host.values(figure));
    let all = [
        ("Active", host.values(Figure::Active)),
        ("New/s", rates(Figure::Total)),
        ("Refused/s", rates(Figure::Refused)),
    ];
    let places = Layout::horizontal([Constraint::Fill(1); 3]).spacing(2).areas::<3>(area);
    for ((title, values), place) in all.into_iter().zip(places) {
        let chart = TopChart {
            title,
            value: short(last(&values)),
            values,
            format: short,
        };
        chart_lines(frame, place, &chart, palette);
    }
}

/// Two bars for each cluster of a route: its share by weight, and its share of the last minute's connections.
fn route_bars(data: &TopData, id: &str, palette: Palette) -> Vec<Line<'static>> {
    let mut routes = data.answers.routes.routes.iter();
    let Some(route) = routes.find(|route| route.host == id) else {
        return Vec::new();
    };
    let shares = shares(data, route);
    let mut lines = vec![Line::styled(
        format!("{}: weight, and share of the last minute", route.host),
        palette.strong(),
    )];
    lines.extend(shares.iter().take(MAX_BARS).map(|share| share_line(share, palette)));
    if shares.len() > MAX_BARS {
        lines.push(Line::from(format!("and {} more clusters", shares.len() - MAX_BARS)));
    }
    lines
}

fn share_line(share: &ClusterShare, palette: Palette) -> Line<'static> {
    let bar = |part: f64, whole: f64| {
        let filled = if whole > 0.0 {
            (part / whole * BAR_WIDTH as f64).round() as usize
        } else {
            0
        };
        format!(
            "{}{}",
            "█".repeat(filled.min(BAR_WIDTH)),
            "·".repeat(BAR_WIDTH.saturating_sub(filled))
        )
    };
    let name: String = share.cluster.chars().take(14).collect();
    let mut spans = vec![
        Span::raw(format!("{name:<14} ")),
        Span::styled(bar(share.weight, share.all_weights), palette.coloured(Color::Cyan)),
        Span::raw(format!(" {:>7} ", percent(share.weight, share.all_weights))),
        Span::styled(
            bar(share.connections, share.all_connections),
            palette.coloured(Color::Green),
        ),
        Span::raw(format!(" {:>7}", percent(share.connections, share.all_connections))),
    ];
    if !share.has_host {
        spans.push(Span::styled(" ■ no host", palette.look(Look::Bad)));
    }
    Line::from(spans)
}
