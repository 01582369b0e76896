//! The verdict of hyper's client on an answer.

use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use hyper::Request;
use hyper::client::conn::http1;

use crate::hyper_server::{NoBody, read};
use crate::wire::{Wire, of_map};

/// A final answer, as someone understood it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenAnswer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, Vec<u8>)>,
}

/// Final answer of a host that sends these bytes and closes; `None` if hyper finds fault with it.
pub(crate) fn answer(stream: &[u8], method: &str, piece: usize) -> Option<SeenAnswer> {
    let wire = Wire {
        input: stream.to_vec(),
        at: 0,
        piece,
        waits: true,
        closes: true,
    };
    let exchange = async {
        let mut builder = http1::Builder::new();
        let (mut sender, connection) = builder.max_headers(128).handshake(wire).await.ok()?;
        let mut connection = Box::pin(connection);
        let request = Request::builder()
            .method(method)
            .header("host", "a.test")
            .header("te", "trailers");
        let mut answer = Box::pin(async {
            let (head, body) = sender.send_request(request.body(NoBody).ok()?).await.ok()?.into_parts();
            let (body, trailers) = read(body).await?;
            Some(SeenAnswer {
                status: head.status.as_u16(),
                fields: of_map(&head.headers),
                body,
                trailers,
            })
        });
        let mut is_open = true;
        poll_fn(|cx| {
            is_open = is_open && Future::poll(connection.as_mut(), cx).is_pending();
            Future::poll(answer.as_mut(), cx)
        })
        .await
    };
    let mut exchange = Box::pin(exchange);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..stream.len() * 2 + 50 {
        if let Poll::Ready(answer) = exchange.as_mut().poll(&mut cx) {
            return answer;
        }
    }
    panic!("hyper waits for more of {:?}", String::from_utf8_lossy(stream));
}
