//! The programs of layer-4 services, run by the kernel on packets that a test describes (BPF_PROG_TEST_RUN): the fate
//! of the packet, the remembered state, and the counts. Each test runs both programs, XDP and TC, unless it says why
//! not. Attached to nothing; real servers are in `e2e_l4`.

// Parts that the tests share.
mod packet;
mod world;

// The tests.
mod dsr;
mod flows;
mod fragments;
mod icmp;
mod nat;
mod refused;
mod shield;
