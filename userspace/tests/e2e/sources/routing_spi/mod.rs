//! Routing events by way of a real ActiveMQ: after any fault of the broker, the consumer or the ledger, the
//! applications are those that the naive model of `core/tests/spi` finds in the events.

mod activemq;
mod consumer;
mod disk;
mod faults;
#[path = "../../../../../core/tests/spi/naive.rs"]
mod naive;
mod samples;
mod secured;
mod stomp;
mod storm;
