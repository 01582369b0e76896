//! Draws the overview.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, SparklineBar, Wrap};

use super::Palette;
use crate::top::data::TopData;
use crate::top::history::Points;
use crate::top::overview::{TopChart, charts, counts, resampled, troubles};

/// Maximum value of a bar: sparklines take whole numbers.
const BAR_RANGE: f64 = 1_000_000.0;
/// Lines of a chart: its title and at least two lines of bars.
const MIN_CHART_HEIGHT: u16 = 3;
const MAX_CHART_HEIGHT: u16 = 7;
/// Lines that counts and troubles need.
const MIN_TEXT_HEIGHT: u16 = 8;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, data: &TopData, palette: Palette) {
    let charts = charts(data);
    let room = area.height.saturating_sub(MIN_TEXT_HEIGHT) / 4;
    let height = room.clamp(MIN_CHART_HEIGHT, MAX_CHART_HEIGHT);
    let lines = [height; 4].map(Constraint::Length);
    let [first, second, third, fourth, rest] =
        Layout::vertical([lines[0], lines[1], lines[2], lines[3], Constraint::Fill(1)]).areas(area);
    for (chart, area) in charts.iter().zip([first, second, third, fourth]) {
        chart_lines(frame, area, chart, palette);
    }
    frame.render_widget(text(data, palette), rest);
}

/// A chart: its title with the current value and the peak, and bars of two minutes.
pub(super) fn chart_lines(frame: &mut Frame<'_>, area: Rect, chart: &TopChart, palette: Palette) {
    let [title, bars] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let peak = chart.values.iter().flatten().copied().fold(0.0, f64::max);
    let line = Line::from_iter([
        Span::styled(format!("{} ", chart.title), palette.strong()),
        Span::raw(chart.value.clone()),
        Span::raw(format!("  (peak {})", (chart.format)(peak))),
    ]);
    frame.render_widget(line, title);
    let colour = match chart.title {
        "Refused/s" => Color::Yellow,
        "Connections" => Color::Cyan,
        _ => Color::Green,
    };
    frame.render_widget(
        sparkline(&chart.values, bars.width, peak).style(palette.coloured(colour)),
        bars,
    );
}

fn sparkline(values: &Points, width: u16, peak: f64) -> Sparkline<'static> {
    let bar = |value: Option<f64>| {
        let part = value.map(|value| if peak > 0.0 { value / peak } else { 0.0 });
        SparklineBar::from(part.map(|part| (part * BAR_RANGE) as u64))
    };
    let bars = resampled(values, usize::from(width)).into_iter().map(bar);
    Sparkline::default().data(bars).max(BAR_RANGE as u64)
}

/// Counts, and problems.
fn text(data: &TopData, palette: Palette) -> Paragraph<'static> {
    let count = |(name, text)| Line::from_iter([Span::styled(format!("{name:<9}"), palette.strong()), Span::raw(text)]);
    let mut lines: Vec<Line<'_>> = counts(data).into_iter().map(count).collect();
    let troubles = troubles(data);
    if troubles.is_empty() {
        lines.push(Line::from("No trouble."));
    }
    let trouble = |(look, text): (crate::top::grid::Look, String)| {
        Line::styled(format!("{} {text}", look.shape()), palette.look(look))
    };
    lines.extend(troubles.into_iter().map(trouble));
    Paragraph::new(lines).wrap(Wrap { trim: false })
}
