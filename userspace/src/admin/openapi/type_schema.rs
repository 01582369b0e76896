//! Schemas of types, by their names. The schemas themselves are in `schemas.json`, which a test writes.

use serde_json::{Value, json};

/// A type with a schema. Only tests make schemas: the program does not compile their library.
#[cfg(test)]
pub(in crate::admin) use schemars::JsonSchema as DescribedType;
#[cfg(not(test))]
pub(in crate::admin) trait DescribedType {}
#[cfg(not(test))]
impl<T> DescribedType for T {}

/// Schema of a type.
#[derive(Clone, Copy)]
pub(in crate::admin) struct TypeSchema {
    type_name: fn() -> &'static str,
    /// Adds the schema to a generator, and returns its name.
    #[cfg(test)]
    pub(super) add: fn(&mut schemars::SchemaGenerator) -> String,
}

impl TypeSchema {
    /// Returns the schema of a type.
    pub(in crate::admin) const fn of<T: DescribedType>() -> Self {
        Self {
            type_name: std::any::type_name::<T>,
            #[cfg(test)]
            add: |generator| {
                generator.subschema_for::<T>();
                T::schema_name().into_owned()
            },
        }
    }

    /// Returns the schema's name: the type's, without its path and arguments.
    pub(super) fn name(self) -> &'static str {
        let full = (self.type_name)();
        let path = full.split_once('<').map_or(full, |(path, _)| path);
        path.rsplit_once("::").map_or(path, |(_, name)| name)
    }

    /// Returns a reference to the schema in the description.
    pub(super) fn reference(self) -> Value {
        json!({ "$ref": format!("#/components/schemas/{}", self.name()) })
    }
}
