//! SVG, as much as our pictures need. They have a background, so that they can be read on a dark page.

use std::fmt::Write;

/// A picture being drawn. Coordinates are pixels from the upper left corner.
pub(super) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// Which end of a text is at its coordinates.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

pub(super) const INK: &str = "#1f2328";
pub(super) const PALE: &str = "#656d76";
pub(super) const GRID: &str = "#d8dee4";
pub(super) const RED: &str = "#cf222e";

impl Svg {
    /// An empty picture.
    pub(super) fn new(width: f64, height: f64) -> Self {
        let mut svg = Self {
            body: String::new(),
            width,
            height,
        };
        let _ = writeln!(
            svg.body,
            r##"<rect width="{width}" height="{height}" rx="6" fill="#ffffff" stroke="{GRID}"/>"##
        );
        svg
    }

    pub(super) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        );
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{width}"/>"#
        );
    }

    pub(super) fn circle(&mut self, (x, y): (f64, f64), radius: f64, fill: &str, stroke: &str) {
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>"#
        );
    }

    /// Draws text; `y` is the baseline.
    pub(super) fn text(&mut self, (x, y): (f64, f64), size: u32, anchor: Anchor, colour: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{text}</text>"#
        );
    }

    /// Text of the file. `title` is for screen readers.
    pub(super) fn finish(self, title: &str) -> String {
        let Self { body, width, height } = self;
        let title = escape(title);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" role="img">
<title>{title}</title>
{body}</svg>
"#
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Fails unless a file is well-formed, as far as we write XML: tags closed in order, attributes quoted, nothing
/// unescaped.
#[cfg(test)]
pub(super) fn assert_well_formed(xml: &str) {
    let mut open = Vec::new();
    let mut rest = xml.trim_end();
    while let Some(at) = rest.find('<') {
        let (text, tag) = (&rest[..at], &rest[at + 1..]);
        assert!(!text.contains('>'), "unescaped: {text}");
        assert!(text.split('&').skip(1).all(|t| t.contains(';')), "unescaped: {text}");
        let (tag, after) = tag.split_once('>').expect("a tag ends");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed");
            continue;
        }
        let (body, closed) = tag.strip_suffix('/').map_or((tag, false), |body| (body, true));
        let (name, mut attributes) = body.split_once(' ').unwrap_or((body, ""));
        while !attributes.is_empty() {
            let (key, value) = attributes.split_once("=\"").expect("quoted");
            assert!(key.trim().chars().all(|c| c.is_alphanumeric() || c == '-'), "{key}");
            let (value, next) = value.split_once('"').expect("quoted");
            assert!(!value.contains("NaN") && !value.contains("inf"), "{tag}");
            attributes = next;
        }
        if !closed {
            open.push(name);
        }
        assert!(rest.is_empty() || !open.is_empty(), "one root");
    }
    assert!(open.is_empty() && rest.is_empty(), "all closed: {open:?} {rest}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_may_have_anything_in_them() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text((1.0, 2.0), 12, Anchor::Middle, INK, "a < b && c > \"d\"");
        svg.line((0.0, 0.0), (1.0, 1.0), GRID, 1.0);
        svg.circle((1.0, 1.0), 2.0, INK, INK);
        svg.rect((0.0, 0.0), (1.0, 1.0), RED);
        assert_well_formed(&svg.finish("<title>"));
    }
}
