//! The admin API's requests and answers: fields, units, and the words for states. The server fills these types, the
//! commands read them, so that a renamed field is a compile error.
//!
//! A point in time is in seconds since 1970, a duration in seconds, a size in bytes, unless the field's name ends in
//! another unit. Readers accept missing fields, because a running signalbox may be of another version.

pub mod applications;
pub mod changes;
pub mod events;
pub mod explain;
pub mod export;
pub mod flows;
pub mod ha;
pub mod hosts;
pub mod live;
pub mod migrations;
pub mod problem;
pub mod rotations;
pub mod routing;
pub mod services;
pub mod shield;
pub mod sources;
pub mod status;
pub mod streams;
pub mod weights;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;

/// Word that the server takes from a fixed list.
pub type Label = Cow<'static, str>;

/// Answer with the version of the API.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Versioned<T> {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    #[serde(flatten)]
    answer: T,
}

/// Makes an answer of this version.
pub const fn v1<T>(answer: T) -> Versioned<T> {
    Versioned {
        api_version: "v1",
        answer,
    }
}

/// Makes a map of counts by label.
pub fn by_label<N>(counts: impl IntoIterator<Item = (&'static str, N)>) -> BTreeMap<Label, N> {
    counts.into_iter().map(|(label, count)| (label.into(), count)).collect()
}
