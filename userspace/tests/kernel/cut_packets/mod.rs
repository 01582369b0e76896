//! Tier cut's programs, run by the kernel on packets that a test describes (BPF_PROG_TEST_RUN): the fate of the packet,
//! of the flow, and the counts, of every single run. Attached to nothing; real connections are in `e2e_cut*`.

// Parts that the tests share.
mod clock;
mod flows;
mod options;
mod outcome;
pub(crate) mod packet;
mod programs;
mod raw;
mod scene;
mod syns;

// The tests.
mod anything;
mod chain;
mod draining;
mod dropped;
mod ends;
mod forward;
mod hardware;
mod header;
mod hops;
mod icmp;
mod joining;
mod last_request;
mod opening;
mod ports;
mod shadows;
mod shared;
mod sockets;
mod stamps;
