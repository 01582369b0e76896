//! Tools of an operator: the command line, the API, the UI, metrics, exports.

mod admin;
mod api;
mod check_files;
mod coming_from;
mod demo;
mod dns;
mod explain;
mod export;
mod figures;
mod prometheus;
mod tables;
mod top;
mod ui;
