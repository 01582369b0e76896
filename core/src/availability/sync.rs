//! Replication of flows to other balancers: the records of flows, and the messages that carry them.
//!
//! Once the kernel carries a flow, its entry of the flow table is a pure function of the packets: what another balancer
//! needs to carry it is constant for the flow's life. So a flow is sent once when it is handed off, and once more when
//! it has ended. So are connections of layer-4 services in mode `nat`.

pub mod record;
pub mod service;
pub mod wire;

pub use record::{FlowRecord, RecordClock};
pub use service::{ServicePlace, ServiceRecord};
pub use wire::{
    Decoder, HandOver, Hello, MAX_HANDED_OVER, Message, MovedAddress, Name, PROTOCOL, SharedCookieKey, WireError,
};
