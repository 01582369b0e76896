//! The shield: what a packet's source address alone decides, before anything else is looked at.

pub mod prefixes;
