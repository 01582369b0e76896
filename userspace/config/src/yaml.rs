//! Parser of YAML (and so JSON) text to a tree of [`Node`]s.
//!
//! Built on the parser's events, not on its ready-made tree: the ready-made tree drops the place of keys, stops at the
//! first duplicate key and recurses as deep as the file says.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::anchors::Anchors;
use super::node::{MapEntry, Node, NodeKind, NodePath, Position};
use super::report::{Report, quote};

/// Deepest nesting; keeps recursion over the tree (dropping it, copying it) off the stack's end. The schema needs 7.
const MAX_DEPTH: usize = 32;

/// Reads the only document of `text`. `None`: there is a mistake, which is in the report.
pub(super) fn read(text: &str, report: &mut Report) -> Option<Node> {
    let mut builder = Builder {
        open: Vec::new(),
        root: None,
        anchors: Anchors::default(),
    };
    match builder.run(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        Ok(()) => {}
        Err(YamlError(spot, message)) => {
            report.error(spot, &NodePath::ROOT, message);
            return None;
        }
    }
    if builder.root.is_none() {
        report.error(
            Position::START,
            &NodePath::ROOT,
            "the file is empty: it needs `version`, `listeners` and `clusters`",
        );
    }
    builder.root
}

/// A mistake after which the rest of the file has no meaning.
struct YamlError(Position, String);

impl From<ScanError> for YamlError {
    fn from(error: ScanError) -> Self {
        let info = error.info();
        // Values taken for an alias are mostly an address or a wildcard.
        let hint = if info.contains("anchor") {
            " (a value that begins with `*` or `&` needs quotes: \"*:80\")"
        } else {
            ""
        };
        let spot = Position {
            line: error.marker().line(),
            column: error.marker().col() + 1,
        };
        let info: String = info.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self(spot, format!("this is not YAML: {info}{hint}"))
    }
}

/// List or mapping whose end has not come yet.
struct OpenNode {
    position: Position,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map {
        entries: Vec<MapEntry>,
        key: Option<(Position, String)>,
    },
}

struct Builder {
    open: Vec<OpenNode>,
    root: Option<Node>,
    anchors: Anchors,
}

impl Builder {
    fn run(&mut self, text: &str) -> Result<(), YamlError> {
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            let (event, span) = event?;
            if event == Event::StreamEnd {
                break;
            }
            self.on_event(event, &span)?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event<'_>, span: &Span) -> Result<(), YamlError> {
        let spot = Position {
            line: span.start.line(),
            column: span.start.col() + 1,
        };
        match event {
            Event::DocumentStart(_) if self.root.is_some() => Err(YamlError(
                spot,
                "a second document begins here: a configuration is a single one".to_owned(),
            )),
            Event::Scalar(_, _, _, Some(tag))
            | Event::SequenceStart(_, Some(tag))
            | Event::MappingStart(_, Some(tag)) => {
                let tag = quote(&tag.suffix);
                Err(YamlError(
                    spot,
                    format!("YAML tags (here {tag}) have no meaning in a configuration: leave it out"),
                ))
            }
            Event::Scalar(text, style, anchor, None) => {
                let quoted = style != ScalarStyle::Plain;
                let kind = match &*text {
                    "" | "~" | "null" | "Null" | "NULL" if !quoted => NodeKind::Null,
                    _ => NodeKind::Scalar {
                        text: text.into_owned(),
                        quoted,
                    },
                };
                self.add(Node { position: spot, kind }, anchor)
            }
            Event::Alias(id) => {
                let room = MAX_DEPTH.saturating_sub(self.open.len());
                let node = self
                    .anchors
                    .resolve(id, room)
                    .map_err(|problem| YamlError(spot, problem))?;
                self.add(node, 0)
            }
            Event::SequenceStart(anchor, None) => self.begin(spot, anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, None) => self.begin(
                spot,
                anchor,
                Content::Map {
                    entries: Vec::new(),
                    key: None,
                },
            ),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                Ok(())
            }
        }
    }

    fn begin(&mut self, spot: Position, anchor: usize, content: Content) -> Result<(), YamlError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(spot));
        }
        self.open.push(OpenNode {
            position: spot,
            anchor,
            content,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), YamlError> {
        let Some(OpenNode {
            position: spot,
            anchor,
            content,
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let kind = match content {
            Content::List(items) => NodeKind::List(items),
            Content::Map { entries, .. } => NodeKind::Map(entries),
        };
        self.add(Node { position: spot, kind }, anchor)
    }

    /// Adds a complete node to the innermost open list or mapping, or makes it the root.
    fn add(&mut self, node: Node, anchor: usize) -> Result<(), YamlError> {
        if anchor != 0 {
            self.anchors
                .define(anchor, &node)
                .map_err(|problem| YamlError(node.position, problem))?;
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map { entries, key }) => match key.take() {
                Some((spot, key)) => entries.push(MapEntry {
                    position: spot,
                    key,
                    value: node,
                }),
                None => *key = Some((node.position, key_text(node)?)),
            },
        }
        Ok(())
    }
}

fn too_deep(spot: Position) -> YamlError {
    YamlError(
        spot,
        format!("lists and mappings are nested more than {MAX_DEPTH} deep here; a configuration never is"),
    )
}

fn key_text(node: Node) -> Result<String, YamlError> {
    match node.kind {
        NodeKind::Null => Ok(String::new()),
        NodeKind::Scalar { text, .. } => Ok(text),
        NodeKind::List(_) | NodeKind::Map(_) => {
            let message =
                "a list or mapping cannot be a key (a value with brackets or braces needs quotes: \"[::1]:80\")";
            Err(YamlError(node.position, message.to_owned()))
        }
    }
}
