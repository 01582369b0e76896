//! Bar chart: a line for each contender, a panel for each scenario.

use super::svg::{Anchor, GRID, INK, PALE, RED, Svg};
use crate::stats::Spread;

/// Panel of a scenario.
pub(super) struct Panel {
    pub(super) title: String,
    /// Bars, as many as there are names; `None` for a contender that did not take part.
    pub(super) bars: Vec<Option<Bar>>,
}

/// Bar of a contender.
pub(super) struct Bar {
    /// Measured value; `None` if the contender failed.
    pub(super) value: Option<Spread>,
    /// Ratio to HAProxy.
    pub(super) ratio: Option<f64>,
}

const WIDTH: f64 = 960.0;
const LEFT: f64 = 168.0;
const TOP: f64 = 76.0;
const LINE: f64 = 22.0;
const GAP: f64 = 14.0;
/// Width of the number and ratio after the longest bar.
const LABEL: f64 = 108.0;

/// Draws the chart.
pub(super) fn draw(title: &str, names: &[String], panels: &[Panel]) -> String {
    let mut svg = Svg::new(WIDTH, TOP + LINE * names.len() as f64 + 14.0);
    svg.text((16.0, 28.0), 16, Anchor::Start, INK, title);
    for (name, y) in names.iter().zip(lines()) {
        svg.text((LEFT - 10.0, y + 15.0), 12, Anchor::End, INK, name);
    }
    let width = (WIDTH - LEFT - GAP) / panels.len() as f64;
    for (number, panel) in panels.iter().enumerate() {
        let left = LEFT + width * number as f64;
        svg.text((left, TOP - 14.0), 12, Anchor::Start, PALE, &panel.title);
        let bottom = TOP + LINE * names.len() as f64;
        svg.line((left, TOP - 4.0), (left, bottom), GRID, 1.0);
        draw_panel(&mut svg, names, panel, left, width - GAP - LABEL);
    }
    svg.finish(title)
}

fn draw_panel(svg: &mut Svg, names: &[String], panel: &Panel, left: f64, longest: f64) {
    let values = panel.bars.iter().flatten().filter_map(|bar| bar.value);
    let most = values.map(|value| value.max).fold(f64::MIN_POSITIVE, f64::max);
    let length = |value: f64| value / most * longest;
    for ((bar, y), name) in panel.bars.iter().zip(lines()).zip(names) {
        let Some(bar) = bar else {
            continue;
        };
        let Some(value) = bar.value else {
            svg.text((left + 6.0, y + 15.0), 12, Anchor::Start, RED, "failed");
            continue;
        };
        svg.rect((left, y + 3.0), (length(value.median), LINE - 6.0), colour(name));
        let middle = y + LINE / 2.0;
        let (from, to) = (left + length(value.min), left + length(value.max));
        svg.line((from, middle), (to, middle), INK, 1.0);
        let ratio = bar.ratio.map_or_else(String::new, |ratio| format!("  ×{ratio:.2}"));
        let label = thousands(value.median) + &ratio;
        svg.text((to + 6.0, y + 15.0), 12, Anchor::Start, INK, &label);
    }
}

fn lines() -> impl Iterator<Item = f64> {
    (0..).map(|line| TOP + LINE * f64::from(line))
}

/// Colour of a contender: one for each family, a lighter one for its variants.
pub(super) fn colour(name: &str) -> &'static str {
    match name.split(' ').next().unwrap_or_default() {
        "haproxy" => "#0969da",
        "haproxy-splice" | "haproxy-3.0" => "#80bfff",
        "nginx" => "#1a7f37",
        "envoy" => "#8250df",
        "traefik" => "#0e7490",
        "caddy" => "#bf3989",
        "signalbox-auto" => "#bc4c00",
        name if name.starts_with("signalbox-") => "#ffb77c",
        _ => "#8c959f",
    }
}

/// Formats a number: one decimal below 100, none above, thousands in groups.
fn thousands(value: f64) -> String {
    if value < 1000.0 {
        let digits = if value < 100.0 { 1 } else { 0 };
        return format!("{value:.digits$}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::svg::assert_well_formed;
    use super::*;

    #[test]
    fn numbers_are_in_groups() {
        let all = [0.25, 37.31, 640.4, 1000.0, 123_456.7].map(thousands);
        assert_eq!(all, ["0.2", "37.3", "640", "1\u{2009}000", "123\u{2009}457"]);
    }

    #[test]
    fn failed_or_absent_contenders_have_no_bar() {
        let value = Spread::of([1.0, 2.0]);
        let bar = |value| Some(Bar { value, ratio: None });
        let panel = Panel {
            title: "a & b".into(),
            bars: vec![bar(value), bar(None), None],
        };
        let svg = draw("t", &["a".into(), "b".into(), "c".into()], &[panel]);
        assert_well_formed(&svg);
        assert_eq!((svg.matches("<rect").count(), svg.matches("failed").count()), (2, 1));
    }
}
