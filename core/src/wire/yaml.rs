//! YAML (and so JSON) as a tree that remembers the place of each node, within limits of depth and size.
//!
//! Configurations and events are read by this code. Their decoders decide what the nodes mean.

mod anchors;
mod build;
mod json;

pub use build::read;
pub use json::read_json;

/// Deepest nesting; keeps recursion over the tree (dropping it, copying it) off the stack's end. The configuration's
/// schema needs 7, an event 3.
const MAX_DEPTH: usize = 32;

/// Most values that anchors and aliases of a text may copy in all: enough to share settings, too few for a "billion
/// laughs".
const MAX_COPIED_VALUES: usize = 1_000_000;

/// Bytes of text that count as one more copied value: a long text takes memory each time.
const TEXT_BYTES_PER_VALUE: usize = 64;

/// Dialect of YAML, which decides which texts are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// A single document without tags, as people write configurations.
    Plain,
    /// Documents with tags, as Ruby writes them. Tags create nothing: a tagged scalar is text, `!binary` is
    /// [`NodeKind::Binary`].
    Ruby,
}

/// Position in the text: line and column (in characters), both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of the line, from 1.
    pub line: usize,
    /// Number of the character in the line, from 1.
    pub column: usize,
}

impl Position {
    /// Beginning of the text, for mistakes of the whole text.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// Node: a piece of the text.
#[derive(Clone, Debug)]
pub struct YamlNode {
    /// Position of the node's first character.
    pub position: Position,
    /// Kind of the node, with its content.
    pub kind: NodeKind,
}

/// Kind of a node. Scalars stay text: only the decoder of a key knows whether `80` is a port or a name.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// Null: nothing, `~` or `null`.
    Null,
    /// Single value.
    Scalar {
        /// Text without quotes and escapes.
        text: String,
        /// Whether the text is in quotes, a block or tagged: it never is a number or a keyword then.
        quoted: bool,
    },
    /// `!binary`, which Ruby writes for text that it does not recognise as text.
    Binary,
    /// List.
    List(Vec<YamlNode>),
    /// Entries in the order of the text, duplicates included.
    Map(Vec<MapEntry>),
}

impl NodeKind {
    /// Name of the kind, for messages.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Scalar { .. } => "a single value",
            Self::Binary => "binary data",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

/// Key with its value.
#[derive(Clone, Debug)]
pub struct MapEntry {
    /// Position of the key.
    pub position: Position,
    /// Text of the key; empty where it is null.
    pub key: String,
    /// Value of the key.
    pub value: YamlNode,
}

/// Mistake after which the rest of a text has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    /// Number of the document in the text, from 1.
    pub document: usize,
    /// Position of the mistake.
    pub position: Position,
    /// Description of the mistake and its fix; it never quotes a value.
    pub message: String,
}

#[cfg(test)]
mod tests;
