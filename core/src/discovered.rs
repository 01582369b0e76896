//! Reports of clusters and applications: claims of names, how they become routes, and where they are written to.

pub mod by_label;
pub mod claims;
pub mod discovery;
pub mod dns;
pub mod export;
pub mod expose;
pub mod join;
pub mod merge;
pub mod spi;
