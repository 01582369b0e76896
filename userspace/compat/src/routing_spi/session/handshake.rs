//! Handshake: the first frames to the broker, and the error for an unexpected answer.

use std::time::Duration;

use signalbox_core::model::{Login, RoutingEvents};

use super::super::stomp::Frame;

/// Id of the only subscription.
pub(super) const SUBSCRIPTION: &str = "0";

pub(super) fn connect_frame(host: &str, settings: &RoutingEvents, heart_beat: Duration) -> Result<Frame, String> {
    let beat = format!("{0},{0}", heart_beat.as_millis());
    let mut headers = vec![
        ("accept-version", "1.1,1.2"),
        ("host", host),
        ("heart-beat", beat.as_str()),
    ];
    let password = settings.login.as_ref().map(password).transpose()?;
    if let (Some(login), Some(password)) = (&settings.login, &password) {
        headers.extend([("login", login.user.as_str()), ("passcode", password.as_str())]);
    }
    headers.extend(settings.client_id.as_deref().map(|id| ("client-id", id)));
    Ok(Frame::new("CONNECT", &headers))
}

fn password(login: &Login) -> Result<String, String> {
    let path = login.password_file.display();
    let text = std::fs::read_to_string(&login.password_file).map_err(|error| format!("reading {path}: {error}"))?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() || line.contains(char::is_control) {
        return Err(format!("the first line of {path} is not a password"));
    }
    Ok(line.to_owned())
}

pub(super) fn subscribe_frame(settings: &RoutingEvents) -> Frame {
    let mut headers = vec![
        ("id", SUBSCRIPTION),
        ("destination", settings.destination.as_str()),
        ("ack", "client-individual"),
        // A prefetch of one: messages are taken in order, and redelivered in order.
        ("activemq.prefetchSize", "1"),
        ("receipt", "subscribed"),
    ];
    headers.extend(
        settings
            .subscription
            .as_deref()
            .map(|name| ("activemq.subscriptionName", name)),
    );
    Frame::new("SUBSCRIBE", &headers)
}

/// Returns a broker's error message, short and on one line.
pub(super) fn refusal_text(frame: &Frame) -> String {
    let said = frame.header("message").unwrap_or(&frame.command);
    let said: String = said.chars().filter(|c| !c.is_control()).take(200).collect();
    format!("the broker answers {said:?}")
}
