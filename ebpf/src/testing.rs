//! Object `testing`, which does not ship: programs that tests and benchmarks attach, and signalbox never does.
#![no_std]
#![no_main]

mod bare_tx;
mod impair;
mod object;
