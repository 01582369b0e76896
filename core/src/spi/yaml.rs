//! YAML as Ruby writes it, parsed to trees that remember lines. Tags are ignored, so that no object is ever created.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::decode::ParseError;

/// Deepest nesting that is accepted; an event is three deep.
const MAX_DEPTH: usize = 16;

/// Most nodes of a document, counting an alias as the nodes it stands for; an event has some dozens.
const MAX_NODES: usize = 50_000;

/// Node: a piece of a document.
#[derive(Clone, Debug)]
pub(super) struct YamlNode {
    /// Number of the line, from 1.
    pub(super) line: usize,
    pub(super) kind: YamlKind,
}

#[derive(Clone, Debug)]
pub(super) enum YamlKind {
    Null,
    /// Scalar; symbols have lost their colon. Only the reader of a field knows whether it should be a number.
    Text(String),
    /// `!binary`, which Ruby writes for text that it does not take for text.
    Binary,
    List(Vec<YamlNode>),
    Map(Vec<(YamlNode, YamlNode)>),
}

impl YamlKind {
    /// Name of the kind, for messages.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Text(_) => "a single value",
            Self::Binary => "binary data",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

/// All documents of a text, each with its number from 1; the first mistake ends reading.
pub(super) fn documents(text: &str) -> Result<Vec<YamlNode>, ParseError> {
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            let info: String = error.info().chars().filter(|c| !c.is_control()).collect();
            builder.error(error.marker().line(), format!("expected YAML: {info}"))
        })?;
        if event == Event::StreamEnd {
            break;
        }
        builder.take(event, span.start.line())?;
    }
    Ok(builder.done)
}

/// Open collection: a list with its items, or a mapping with its entries and the key whose value has not come yet.
enum OpenNode {
    List(Vec<YamlNode>),
    Map(Vec<(YamlNode, YamlNode)>, Option<YamlNode>),
}

#[derive(Default)]
struct Builder {
    done: Vec<YamlNode>,
    open: Vec<(OpenNode, usize, usize)>,
    root: Option<YamlNode>,
    /// Nodes that anchors stand for, with the number of nodes in each and its depth.
    anchors: HashMap<usize, (YamlNode, usize, usize)>,
    nodes: usize,
}

impl Builder {
    fn error(&self, line: usize, expected: impl Into<String>) -> ParseError {
        ParseError::new(self.done.len() + 1, line, expected)
    }

    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), ParseError> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_ref().map(|tag| tag.suffix.as_str());
                let kind = scalar(&text, style, tag);
                self.count(1, line)?;
                let size = node_cost(&kind);
                self.add(YamlNode { line, kind }, anchor, size, 0)
            }
            Event::Alias(id) => {
                let Some((_, size, depth)) = self.anchors.get(&id) else {
                    return Err(self.error(line, "expected an alias of something that ended before it"));
                };
                let (size, depth) = (*size, *depth);
                if self.open.len() + depth > MAX_DEPTH {
                    return Err(self.too_deep(line));
                }
                self.count(size, line)?;
                let Some((node, ..)) = self.anchors.get(&id).cloned() else {
                    return Ok(());
                };
                self.add(node, 0, size, depth)
            }
            Event::SequenceStart(anchor, _) => self.begin(OpenNode::List(Vec::new()), anchor, line),
            Event::MappingStart(anchor, _) => self.begin(OpenNode::Map(Vec::new(), None), anchor, line),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::DocumentEnd => {
                let root = self.root.take();
                self.done.extend(root);
                self.anchors.clear();
                Ok(())
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) => Ok(()),
        }
    }

    fn count(&mut self, nodes: usize, line: usize) -> Result<(), ParseError> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES * (self.done.len() + 1) {
            return Err(self.error(line, format!("expected at most {MAX_NODES} values in an event")));
        }
        Ok(())
    }

    fn too_deep(&self, line: usize) -> ParseError {
        self.error(
            line,
            format!("expected lists and mappings at most {MAX_DEPTH} deep in each other"),
        )
    }

    fn begin(&mut self, open: OpenNode, anchor: usize, line: usize) -> Result<(), ParseError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(self.too_deep(line));
        }
        self.count(1, line)?;
        self.open.push((open, anchor, line));
        Ok(())
    }

    fn end(&mut self) -> Result<(), ParseError> {
        let Some((open, anchor, line)) = self.open.pop() else {
            return Ok(());
        };
        let kind = match open {
            OpenNode::List(items) => YamlKind::List(items),
            OpenNode::Map(entries, _) => YamlKind::Map(entries),
        };
        let node = YamlNode { line, kind };
        // Only nodes that can be repeated are measured.
        let (size, depth) = if anchor == 0 { (0, 0) } else { measure(&node) };
        self.add(node, anchor, size, depth)
    }

    fn add(&mut self, node: YamlNode, anchor: usize, size: usize, depth: usize) -> Result<(), ParseError> {
        if anchor != 0 {
            self.count(size, node.line)?;
            self.anchors.insert(anchor, (node.clone(), size, depth));
        }
        match self.open.last_mut().map(|(open, ..)| open) {
            None => self.root = Some(node),
            Some(OpenNode::List(items)) => items.push(node),
            Some(OpenNode::Map(entries, key)) => match key.take() {
                Some(key) => entries.push((key, node)),
                None => *key = Some(node),
            },
        }
        Ok(())
    }
}

/// Count of a scalar towards [`MAX_NODES`]: a long text that is repeated takes memory each time.
fn node_cost(kind: &YamlKind) -> usize {
    match kind {
        YamlKind::Text(text) => 1 + text.len() / 64,
        _ => 1,
    }
}

/// Number of nodes in a tree, and its depth. The depth is bounded, and with it the recursion.
fn measure(node: &YamlNode) -> (usize, usize) {
    let join = |(size, depth): (usize, usize), node: &YamlNode| {
        let (more, deeper) = measure(node);
        (size + more, depth.max(deeper + 1))
    };
    match &node.kind {
        YamlKind::Null | YamlKind::Text(_) | YamlKind::Binary => (node_cost(&node.kind), 0),
        YamlKind::List(items) => items.iter().fold((1, 1), join),
        YamlKind::Map(entries) => entries.iter().flat_map(|(key, value)| [key, value]).fold((1, 1), join),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&str>) -> YamlKind {
    if matches!(tag, Some("binary")) {
        return YamlKind::Binary;
    }
    if style != ScalarStyle::Plain || tag.is_some() {
        // Ruby 1.8 wrote `!ruby/sym name`, 1.9 `! 'text'`: both mean the text.
        return YamlKind::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => YamlKind::Null,
        _ => YamlKind::Text(symbol(text).to_owned()),
    }
}

/// Removes the colon of a symbol: `:name` and `:"a name"` are symbols; `::1` is an address.
fn symbol(text: &str) -> &str {
    match text.strip_prefix(':') {
        Some(name) if !name.is_empty() && !name.starts_with(':') => name
            .strip_prefix('"')
            .and_then(|name| name.strip_suffix('"'))
            .unwrap_or(name),
        _ => text,
    }
}
