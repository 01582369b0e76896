//! Replies of handlers: each has the type of its answer, from which its description in the OpenAPI document is made.

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;

use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;
use signalbox_api::v1;
use tokio_stream::Stream;

use super::openapi::{DescribedType, TypeSchema};

/// Reply with an answer of type `T`, or with a problem.
pub(super) struct ApiReply<T> {
    response: Response,
    of: PhantomData<fn() -> T>,
}

/// Makes a reply with an answer of the API's version.
pub(super) fn answer<T: Serialize>(answer: T) -> ApiReply<T> {
    Json(v1(answer)).into_response().into()
}

impl<T> ApiReply<T> {
    /// Changes the status of an answer from 200.
    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        *self.response.status_mut() = status;
        self
    }
}

impl<T> From<Response> for ApiReply<T> {
    fn from(response: Response) -> Self {
        Self {
            response,
            of: PhantomData,
        }
    }
}

impl<T> IntoResponse for ApiReply<T> {
    fn into_response(self) -> Response {
        self.response
    }
}

/// Reply with text, or with an answer of type `T` if the query asks for JSON.
pub(super) struct TextOr<T>(pub(super) ApiReply<T>);

impl<T> IntoResponse for TextOr<T> {
    fn into_response(self) -> Response {
        self.0.response
    }
}

/// Stream of events of type `E`.
pub(super) struct EventStream<E, S> {
    events: Sse<S>,
    of: PhantomData<fn() -> E>,
}

/// An event of a stream.
pub(super) type StreamedEvent = Result<Event, Infallible>;

impl<E, S> From<Sse<S>> for EventStream<E, S> {
    fn from(events: Sse<S>) -> Self {
        Self {
            events,
            of: PhantomData,
        }
    }
}

impl<E, S> IntoResponse for EventStream<E, S>
where
    S: Stream<Item = StreamedEvent> + Send + 'static,
{
    fn into_response(self) -> Response {
        self.events.into_response()
    }
}

/// Makes an event of a type that names its kind `event`, and its content `data`.
pub(super) fn event(event: &impl Serialize) -> StreamedEvent {
    let event = serde_json::to_value(event).unwrap_or_default();
    let kind = event["event"].as_str().unwrap_or_default();
    Ok(Event::default().event(kind).data(event["data"].to_string()))
}

/// Media type of a stream of events.
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// Media type of an answer, and the schema of JSON, or of the events of a stream.
pub(super) type Content = (&'static str, Option<TypeSchema>);

const TEXT: Content = ("text/plain", None);

/// Type of a handler's reply: it says what the reply can be.
pub(super) trait DescribedReply {
    const CONTENT: &'static [Content];
}

impl<T: DescribedType> DescribedReply for ApiReply<T> {
    const CONTENT: &'static [Content] = &[("application/json", Some(TypeSchema::of::<T>()))];
}

impl<T: DescribedType> DescribedReply for TextOr<T> {
    const CONTENT: &'static [Content] = &[TEXT, ("application/json", Some(TypeSchema::of::<T>()))];
}

impl DescribedReply for Response {
    const CONTENT: &'static [Content] = &[TEXT];
}

impl DescribedReply for &str {
    const CONTENT: &'static [Content] = &[TEXT];
}

impl<E: DescribedType, S> DescribedReply for EventStream<E, S> {
    const CONTENT: &'static [Content] = &[(EVENT_STREAM, Some(TypeSchema::of::<E>()))];
}

/// Handler with arguments `A`, whose reply can be described.
pub(super) trait DescribedHandler<A> {
    type Reply: DescribedReply;
}

macro_rules! described_handlers {
    ($(($($argument:ident),*))*) => {$(
        impl<F, R, $($argument),*> DescribedHandler<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> R,
            R: Future<Output: DescribedReply>,
        {
            type Reply = R::Output;
        }
    )*};
}

described_handlers! { () (A) (A, B) (A, B, C) (A, B, C, D, E) }
