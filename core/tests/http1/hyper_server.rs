//! The verdict of hyper's server on a request.

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};

use crate::wire::{Wire, of_map};

/// A whole request, as someone understood it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenRequest {
    pub(crate) method: String,
    pub(crate) path_and_query: String,
    pub(crate) is_http11: bool,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, Vec<u8>)>,
}

/// Body without bytes.
pub(crate) struct NoBody;

impl Body for NoBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

/// Reads a body to its end; `None` if it is broken.
pub(crate) async fn read(mut body: Incoming) -> Option<(Vec<u8>, Vec<(String, Vec<u8>)>)> {
    let (mut data, mut trailers) = (Vec::new(), Vec::new());
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.ok()?;
        match frame.into_data() {
            Ok(bytes) => data.extend_from_slice(&bytes),
            Err(frame) => trailers = of_map(&frame.into_trailers().ok()?),
        }
    }
    Some((data, trailers))
}

/// Whole requests in a stream that comes in pieces of a size, and whether hyper has found fault with the stream.
pub(crate) fn requests(stream: &[u8], piece: usize) -> (Vec<SeenRequest>, bool) {
    let log = Rc::new(RefCell::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let log = Rc::clone(&log);
        async move {
            let (parts, body) = request.into_parts();
            let Some((body, trailers)) = read(body).await else {
                return Err("broken body");
            };
            log.borrow_mut().push(SeenRequest {
                method: parts.method.as_str().to_owned(),
                path_and_query: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
                is_http11: parts.version == hyper::Version::HTTP_11,
                fields: of_map(&parts.headers),
                body,
                trailers,
            });
            Ok(Response::new(NoBody))
        }
    });
    let wire = Wire {
        input: stream.to_vec(),
        at: 0,
        piece,
        waits: false,
        closes: false,
    };
    let connection = http1::Builder::new().max_headers(128).serve_connection(wire, service);
    let mut connection = Box::pin(connection);
    let mut cx = Context::from_waker(Waker::noop());
    let mut is_faulty = false;
    // More polls than a stream has pieces, as hyper yields between requests.
    for _ in 0..stream.len() / piece + 50 {
        if let Poll::Ready(end) = Future::poll(connection.as_mut(), &mut cx) {
            is_faulty = end.is_err();
            break;
        }
    }
    drop(connection);
    let requests = log.borrow().clone();
    (requests, is_faulty)
}
