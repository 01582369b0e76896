//! Positions of the fields of map keys and values, by name: one version of signalbox leaves them for the next one,
//! whose structures may differ.
//!
//! Rules for a change of a pinned structure: a field whose meaning or unit changes gets another name. A new field's
//! zero means that it is not known. An integer may grow, and may not shrink. A renamed field or map is listed in
//! `userspace/kernel/src/pins/former_names.rs`. Then `ABI_VERSION` is raised, and flows of the version before are
//! carried over field by field.

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the field in the source.
    pub name: &'static str,
    /// Offset in the structure, in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// Fields of the nested structure; empty for a number or an array of numbers.
    pub parts: &'static [Self],
    /// Number of nested structures, one after the other.
    pub count: usize,
}

/// A structure whose fields are known by name.
pub trait Layout {
    /// The fields, in the order of the source.
    const FIELDS: &'static [Field];
}

/// Size of the field that `fn` projects to; the function is never called.
#[must_use]
pub const fn size_behind<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Gives a structure its [`Layout`]. All of its fields must be named, padding too; those that are arrays of structures
/// are named after `of`.
#[macro_export]
macro_rules! layout {
    ($type:ident { $($field:ident),* $(,)? } $(of { $($nested:ident: [$inner:ident; $count:literal]),* })?) => {
        impl $crate::layout::Layout for $type {
            const FIELDS: &'static [$crate::layout::Field] = &[
                $($crate::layout::Field {
                    name: stringify!($field),
                    offset: core::mem::offset_of!($type, $field),
                    size: $crate::layout::size_behind::<$type, _>(|whole| &whole.$field),
                    parts: &[],
                    count: 1,
                },)*
                $($($crate::layout::Field {
                    name: stringify!($nested),
                    offset: core::mem::offset_of!($type, $nested),
                    size: size_of::<$inner>() * $count,
                    parts: <$inner as $crate::layout::Layout>::FIELDS,
                    count: $count,
                },)*)?
            ];
        }
        const _: () = assert!(
            $crate::layout::sum(<$type as $crate::layout::Layout>::FIELDS) == size_of::<$type>(),
            "a layout names every field, padding too"
        );
    };
}

/// Total size of the fields, in bytes.
#[must_use]
pub const fn sum(fields: &[Field]) -> usize {
    let (mut total, mut index) = (0, 0);
    while index < fields.len() {
        total += fields[index].size;
        index += 1;
    }
    total
}
