//! Chart of latencies: a line for each contender from its median to the latency that one request in a thousand exceeds,
//! on a logarithmic scale, because the tails differ most.

use super::bars::colour;
use super::svg::{Anchor, GRID, INK, PALE, RED, Svg};

/// Line of a contender: p50, p99 and p99.9 in ms, unless it failed.
pub(super) struct DotRow {
    pub(super) name: String,
    pub(super) millis: Option<[f64; 3]>,
}

const WIDTH: f64 = 960.0;
const LEFT: f64 = 168.0;
const RIGHT: f64 = 756.0;
const TOP: f64 = 84.0;
const HEIGHT: f64 = 24.0;

/// Draws the chart.
pub(super) fn draw(title: &str, lines: &[DotRow]) -> String {
    let bottom = TOP + HEIGHT * lines.len() as f64;
    let mut svg = Svg::new(WIDTH, bottom + 14.0);
    svg.text((16.0, 28.0), 16, Anchor::Start, INK, title);
    let all = || lines.iter().filter_map(|line| line.millis).flatten();
    let (least, most) = (all().fold(f64::MAX, f64::min), all().fold(f64::MIN_POSITIVE, f64::max));
    let ticks = ticks(least, most);
    let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
    let place = |ms: f64| LEFT + 10.0 + (ms / first).ln() / (last / first).ln() * (RIGHT - LEFT - 20.0);
    for tick in &ticks {
        let x = place(*tick);
        svg.line((x, TOP - 8.0), (x, bottom), GRID, 1.0);
        svg.text((x, TOP - 14.0), 11, Anchor::Middle, PALE, &format!("{tick} ms"));
    }
    svg.text(
        (RIGHT + 28.0, TOP - 14.0),
        11,
        Anchor::Start,
        PALE,
        "p50 · p99 · p99.9 ms",
    );
    for (number, line) in lines.iter().enumerate() {
        let y = TOP + HEIGHT * (number as f64 + 0.5);
        let colour = colour(&line.name);
        svg.text((LEFT - 10.0, y + 4.0), 12, Anchor::End, INK, &line.name);
        let Some([p50, p99, p999]) = line.millis else {
            svg.text((LEFT + 6.0, y + 4.0), 12, Anchor::Start, RED, "failed");
            continue;
        };
        svg.line((place(p50), y), (place(p999), y), colour, 3.0);
        svg.circle((place(p50), y), 5.0, colour, colour);
        svg.circle((place(p99), y), 5.0, "#ffffff", colour);
        svg.line((place(p999), y - 6.0), (place(p999), y + 6.0), colour, 3.0);
        let numbers = format!("{p50:.2} · {p99:.2} · {p999:.2}");
        svg.text((RIGHT + 28.0, y + 4.0), 12, Anchor::Start, INK, &numbers);
    }
    svg.finish(title)
}

/// Ticks of the scale: 1, 2 and 5 of each power of ten, from the last not above the least to the first not below the
/// most.
fn ticks(least: f64, most: f64) -> Vec<f64> {
    let powers = [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0];
    let all: Vec<f64> = powers
        .iter()
        .flat_map(|power| [1.0, 2.0, 5.0].map(|n: f64| (n * power * 1e3).round() / 1e3))
        .collect();
    let from = all.iter().rposition(|&tick| tick <= least).unwrap_or(0);
    let to = all.iter().position(|&tick| tick >= most).unwrap_or(all.len() - 1);
    // Two at least, or there is no scale.
    let from = from.min(all.len() - 2);
    all[from..=to.max(from + 1)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::super::svg::assert_well_formed;
    use super::*;

    #[test]
    fn ticks_surround_what_there_is() {
        assert_eq!(ticks(0.03, 0.4), [0.02, 0.05, 0.1, 0.2, 0.5]);
        assert_eq!(ticks(1.0, 1.0), [1.0, 2.0]);
        assert_eq!(ticks(1e-9, 1e-9), [0.001, 0.002]);
        assert_eq!(ticks(f64::MAX, f64::MIN_POSITIVE).len(), 2);
    }

    #[test]
    fn a_picture_of_nothing_is_one_too() {
        assert_well_formed(&draw("nothing", &[]));
        let line = |millis| DotRow {
            name: "haproxy ×2".into(),
            millis,
        };
        assert_well_formed(&draw("some", &[line(Some([0.1, 1.0, 10.0])), line(None)]));
    }
}
