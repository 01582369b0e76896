//! The two directions of an exchange: the request to the host, and the answer to the client. Neither knows the other;
//! [`carry`] drives both. None of them knows how client and host were connected.

pub(super) mod answer;
pub(super) mod body;
pub(super) mod carry;
pub(super) mod head;
pub(super) mod request;
pub(super) mod websocket;
