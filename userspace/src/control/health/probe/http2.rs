//! Check in HTTP/2 with prior knowledge (RFC 9113, section 3.3), of hosts that speak nothing else.

use http::Request;
use http::header::{ACCEPT, USER_AGENT};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{PageRequest, ProbeAnswer};

/// Asks for a page, and returns the status.
pub(super) async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    page: &PageRequest,
) -> Result<ProbeAnswer, String> {
    let sending = |error: &dyn std::fmt::Display| format!("sending the request in HTTP/2: {error}");
    let request = Request::get(format!("http://{}{}", page.host, page.path))
        .header(USER_AGENT, PageRequest::AGENT)
        .header(ACCEPT, "*/*")
        .body(())
        .map_err(|error| sending(&error))?;
    let (mut requests, connection) = h2::client::handshake(stream).await.map_err(|error| sending(&error))?;
    let (answer, _) = requests.send_request(request, true).map_err(|error| sending(&error))?;
    let reading = |error: &dyn std::fmt::Display| format!("reading the answer in HTTP/2: {error}");
    tokio::select! {
        // The answer counts, even if the host closes the connection after it.
        biased;
        answer = answer => match answer {
            Ok(answer) => Ok(Some(answer.status().as_u16())),
            Err(error) => Err(reading(&error)),
        },
        ended = connection => Err(match ended {
            Ok(()) => "the answer ended before its status".to_owned(),
            Err(error) => reading(&error),
        }),
    }
}
