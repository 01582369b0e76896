//! Changes of a field section.

use super::field_name::FieldName;

/// A change of a field section. Of the changes of one name that are not [`Add`](Self::Add), the last one counts, and
/// lines added before it are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldEdit {
    /// Adds a line after all others.
    Add(FieldName, Vec<u8>),
    /// Removes all lines of a name.
    Remove(FieldName),
    /// Gives a value to the first line of a name and removes the others; changes nothing if there is none.
    Replace(FieldName, Vec<u8>),
    /// Like [`Replace`](Self::Replace), and like [`Add`](Self::Add) if there is none.
    Set(FieldName, Vec<u8>),
}

/// As text, such as `set X-Team: blue`.
impl serde::Serialize for FieldEdit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (verb, value) = match self {
            Self::Add(_, value) => ("add", Some(value)),
            Self::Remove(_) => ("remove", None),
            Self::Replace(_, value) => ("replace", Some(value)),
            Self::Set(_, value) => ("set", Some(value)),
        };
        let name = String::from_utf8_lossy(self.name().as_bytes());
        match value {
            Some(value) => serializer.collect_str(&format_args!("{verb} {name}: {}", String::from_utf8_lossy(value))),
            None => serializer.collect_str(&format_args!("{verb} {name}")),
        }
    }
}

impl FieldEdit {
    pub(super) const fn name(&self) -> &FieldName {
        match self {
            Self::Add(name, _) | Self::Remove(name) | Self::Replace(name, _) | Self::Set(name, _) => name,
        }
    }

    const fn adds(&self) -> bool {
        matches!(self, Self::Add(..))
    }
}

/// Effect of the edits on a received line.
pub(super) enum LineEdit<'a> {
    /// The line stays.
    None,
    Removed,
    /// The line gets this value.
    Value(&'a [u8]),
}

/// Edits, and which of them have changed a line.
pub(super) struct PendingEdits<'a> {
    edits: &'a [FieldEdit],
    is_done: Vec<bool>,
    /// Whether lines with `_` for `-` in their names go where the field itself is removed or set.
    removes_underscored: bool,
}

impl<'a> PendingEdits<'a> {
    /// Edits of a request or an answer. Hosts with CGI's variables, such as those of PHP, WSGI and Rack, have one name
    /// for `X-User` and `X_User`, so a request's `X_User` would pass for the balancer's field.
    pub(super) fn new(edits: &'a [FieldEdit], is_request: bool) -> Self {
        Self {
            edits,
            is_done: vec![false; edits.len()],
            removes_underscored: is_request,
        }
    }

    /// Effect of the edits on the next line of a name.
    pub(super) fn of_line(&mut self, name: &[u8]) -> LineEdit<'a> {
        let last = self.edits.iter().rposition(|edit| !edit.adds() && edit.name().is(name));
        let Some(at) = last else {
            let is_other_spelling = |edit: &FieldEdit| !edit.adds() && edit.name().is_underscored(name);
            return if self.removes_underscored && self.edits.iter().any(is_other_spelling) {
                LineEdit::Removed
            } else {
                LineEdit::None
            };
        };
        let is_first = !std::mem::replace(&mut self.is_done[at], true);
        match &self.edits[at] {
            FieldEdit::Replace(_, value) | FieldEdit::Set(_, value) if is_first => LineEdit::Value(value),
            _ => LineEdit::Removed,
        }
    }

    /// Lines that come after all others.
    pub(super) fn additions(&self) -> impl Iterator<Item = (&'a FieldName, &'a [u8])> {
        self.edits.iter().enumerate().filter_map(|(at, edit)| match edit {
            FieldEdit::Add(name, value) | FieldEdit::Set(name, value)
                if !self.is_done[at] && !self.is_overruled(at) =>
            {
                Some((name, &value[..]))
            }
            _ => None,
        })
    }

    fn is_overruled(&self, at: usize) -> bool {
        let (name, later) = (self.edits[at].name(), &self.edits[at + 1..]);
        later.iter().any(|edit| !edit.adds() && edit.name() == name)
    }
}
