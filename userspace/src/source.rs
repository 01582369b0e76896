//! Where configuration comes from. So far: the file, on SIGHUP, and when it changes.

pub mod file;
