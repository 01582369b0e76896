//! OpenShift's routing SPI: events about applications from the broker's ActiveMQ plugin, and the clusters that they
//! make.
//!
//! Events parsed from a text ([`parse`]) are folded into [`Applications`], and each application becomes the knowledge
//! of a cluster ([`discover()`]). Pure: no broker, no file, no clock.
//!
//! Brokers deliver at least once and, with several workers, out of order; their events carry neither a time nor a
//! number. The fold treats such deliveries as follows:
//!
//! - A repeated event, at once or as part of a replayed stretch of the queue, changes nothing.
//! - A removal of something absent does nothing; an endpoint, alias or certificate creates the application that it
//!   belongs to, whether or not that was announced.
//! - A gear that moves leaves its old address when its new one arrives, so that the late removal of the old one does
//!   nothing; and a removal takes nothing from a gear that has been given the address since.
//! - Two cases cannot be repaired: a removal that overtakes the addition it undoes (the endpoint, alias or application
//!   stays until it is removed again), and an addition delivered again after its removal. Only the order of the queue
//!   tells these from an addition after a removal. One consumer of one queue gets events in order.

mod application;
mod applications;
mod decode;
mod discover;
mod error;
mod event;
mod fields;
mod health_page;
mod redact;
mod secret;

pub use application::{AppKey, Application, Certificate, Endpoint, Mapping, RecordError};
pub use applications::Applications;
pub use decode::{MAX_BYTES, parse};
pub use discover::{discover, endpoint_host_names};
pub use error::ParseError;
pub use event::{AppChange, RoutingEvent};
pub use redact::{MAX_REDACTED_BYTES, redact};
pub use secret::Secret;
