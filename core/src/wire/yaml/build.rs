//! Builder of the tree from the parser's events.
//!
//! Not the parser's own tree: that one drops the place of keys, stops at the first duplicate key and recurses as deep
//! as the text.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::anchors::Anchors;
use super::{Dialect, MAX_DEPTH, MapEntry, NodeKind, Position, YamlError, YamlNode};

/// Reads the documents of `text`.
///
/// # Errors
/// The first mistake, which ends reading.
pub fn read(text: &str, dialect: Dialect) -> Result<Vec<YamlNode>, YamlError> {
    let mut builder = Builder {
        dialect,
        done: Vec::new(),
        open: Vec::new(),
        anchors: Anchors::default(),
    };
    match builder.run(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        Ok(()) => Ok(builder.done),
        Err(Fault(position, message)) => Err(YamlError {
            document: builder.done.len() + 1,
            position,
            message,
        }),
    }
}

/// Mistake, with its place.
struct Fault(Position, String);

impl From<ScanError> for Fault {
    fn from(error: ScanError) -> Self {
        let info = error.info();
        // Values mistaken for an alias are mostly an address or a wildcard.
        let hint = if info.contains("anchor") {
            " (a value that begins with `*` or `&` needs quotes: \"*:80\")"
        } else {
            ""
        };
        let info: String = info.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self(position(error.marker()), format!("this is not YAML: {info}{hint}"))
    }
}

fn position(marker: &Marker) -> Position {
    Position {
        line: marker.line(),
        column: marker.col() + 1,
    }
}

/// List or mapping whose end has not come yet.
struct OpenNode {
    position: Position,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<YamlNode>),
    Map {
        entries: Vec<MapEntry>,
        /// Key whose value has not come yet.
        key: Option<(Position, String)>,
    },
}

struct Builder {
    dialect: Dialect,
    done: Vec<YamlNode>,
    open: Vec<OpenNode>,
    anchors: Anchors,
}

impl Builder {
    fn run(&mut self, text: &str) -> Result<(), Fault> {
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            let (event, span) = event?;
            if event == Event::StreamEnd {
                break;
            }
            self.on_event(event, position(&span.start))?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event<'_>, at: Position) -> Result<(), Fault> {
        match event {
            Event::DocumentStart(_) if self.dialect == Dialect::Plain && !self.done.is_empty() => Err(Fault(
                at,
                "a second document begins here: write a single one".to_owned(),
            )),
            Event::Scalar(text, style, anchor, tag) => {
                self.check_tag(tag.as_deref(), at)?;
                let kind = scalar(&text, style, tag.as_deref());
                self.add(YamlNode { position: at, kind }, anchor)
            }
            Event::Alias(id) => {
                let room = MAX_DEPTH.saturating_sub(self.open.len());
                let node = self.anchors.resolve(id, room);
                self.add(node.map_err(|message| Fault(at, message))?, 0)
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), at)?;
                self.begin(at, anchor, Content::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), at)?;
                let (entries, key) = (Vec::new(), None);
                self.begin(at, anchor, Content::Map { entries, key })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                Ok(())
            }
        }
    }

    fn check_tag(&self, tag: Option<&Tag>, at: Position) -> Result<(), Fault> {
        match tag {
            Some(tag) if self.dialect == Dialect::Plain => {
                let shown: String = tag.suffix.chars().take(80).flat_map(char::escape_debug).collect();
                let message = format!("YAML tags (here `{shown}`) have no meaning in a configuration: leave it out");
                Err(Fault(at, message))
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, position: Position, anchor: usize, content: Content) -> Result<(), Fault> {
        if self.open.len() >= MAX_DEPTH {
            let message = format!("lists and mappings are nested more than {MAX_DEPTH} deep here");
            return Err(Fault(position, message));
        }
        self.open.push(OpenNode {
            position,
            anchor,
            content,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(OpenNode {
            position,
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
        self.add(YamlNode { position, kind }, anchor)
    }

    /// Adds a complete node to the innermost open list or mapping, or as a document.
    fn add(&mut self, node: YamlNode, anchor: usize) -> Result<(), Fault> {
        if anchor != 0 {
            let kept = self.anchors.define(anchor, &node);
            kept.map_err(|message| Fault(node.position, message))?;
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.done.push(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map { entries, key }) => match key.take() {
                Some((position, key)) => entries.push(MapEntry {
                    position,
                    key,
                    value: node,
                }),
                None => *key = Some((node.position, key_text(node)?)),
            },
        }
        Ok(())
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> NodeKind {
    if tag.is_some_and(|tag| tag.suffix == "binary") {
        return NodeKind::Binary;
    }
    let quoted = style != ScalarStyle::Plain || tag.is_some();
    match text {
        "" | "~" | "null" | "Null" | "NULL" if !quoted => NodeKind::Null,
        _ => NodeKind::Scalar {
            text: text.to_owned(),
            quoted,
        },
    }
}

fn key_text(node: YamlNode) -> Result<String, Fault> {
    match node.kind {
        NodeKind::Null => Ok(String::new()),
        NodeKind::Scalar { text, .. } => Ok(text),
        NodeKind::Binary | NodeKind::List(_) | NodeKind::Map(_) => {
            let message = format!(
                "{} cannot be a key (a value with brackets or braces needs quotes: \"[::1]:80\")",
                node.kind.type_name()
            );
            Err(Fault(node.position, message))
        }
    }
}
