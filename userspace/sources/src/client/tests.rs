use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};

use super::*;

fn balancer(url: String) -> ApiClient {
    ApiClient::Balancer(Balancer {
        name: None,
        url,
        token_file: None,
        ca: None,
        identity: None,
    })
}

#[test]
fn a_selector_survives_a_query() {
    let encoded = percent_encoded("a/b=c,d in (e, é)&x").to_string();
    assert_eq!(encoded, "a%2Fb%3Dc%2Cd%20in%20%28e%2C%20%C3%A9%29%26x");
}

/// Answers one request with these bytes, and returns the request's first line by the task.
async fn server(answer: &'static str) -> (ApiClient, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = balancer(format!("http://{}/", listener.local_addr().unwrap()));
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        let text = String::from_utf8_lossy(&request[..length]).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    });
    (client, serving)
}

#[tokio::test]
async fn an_answer_is_decoded_and_a_refusal_repeats_its_reason() {
    let (client, asked) = server("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}").await;
    let answer = client.ask(Method::GET, "/api/v1/x", None).await.unwrap();
    assert_eq!(answer["a"], 1);
    assert_eq!(asked.await.unwrap(), "GET /api/v1/x HTTP/1.1");
    let (client, _) = server("HTTP/1.1 409 C\r\ncontent-length: 17\r\n\r\n{\"detail\":\"busy\"}").await;
    let error = client.ask(Method::PUT, "/x", Some("{}".into())).await.unwrap_err();
    assert!(error.to_string().ends_with(" refuses: 409 Conflict: busy"), "{error}");
    let (client, _) = server("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnone").await;
    let error = client.ask(Method::GET, "/x", None).await.unwrap_err();
    assert!(error.to_string().contains("the answer is not JSON"), "{error}");
}

#[tokio::test]
async fn a_balancer_that_does_not_answer_is_named_with_the_reason() {
    // A port without a listener.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = balancer(format!("http://{free}")).ask(Method::GET, "/x", None).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("http://{free} does not answer: ")),
        "{error}"
    );
    assert!(error.contains("Connection refused"), "{error}");
    for wrong in ["ftp://a.test", "a b"] {
        let error = balancer(wrong.into()).ask(Method::GET, "/x", None).await.unwrap_err();
        assert!(error.to_string().contains("is not a URL such as"), "{error}");
    }
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = balancer(format!("http://{}", silent.local_addr().unwrap()));
    let asked = client.ask_with_timeout(Duration::ZERO, Method::GET, "/x", None).await;
    assert!(asked.unwrap_err().to_string().ends_with("no answer within 0 s"));
}

#[tokio::test]
async fn a_server_without_a_trusted_certificate_is_not_asked() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = balancer(format!("https://{}", listener.local_addr().unwrap()));
    let provider = signalbox_tls::provider::provider();
    let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let private = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], private)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let _ = acceptor.accept(stream).await;
    });
    let error = client.ask(Method::GET, "/x", None).await.unwrap_err();
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
}

#[tokio::test]
async fn a_stream_is_read_line_by_line_and_a_cut_line_is_none() {
    let (client, _) = server("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\none\ntwo\nt").await;
    let mut lines = Vec::new();
    let streamed = client.stream_lines("/x", String::new(), |line| {
        lines.push(String::from_utf8_lossy(line).into_owned());
        true
    });
    let error = streamed.await.unwrap_err();
    assert!(error.to_string().contains("ended within a line"), "{error}");
    assert_eq!(lines, ["one", "two"]);
    let (client, _) = server("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\none\ntwo\nt").await;
    client
        .stream_lines("/x", String::new(), |line| line != b"two")
        .await
        .unwrap();
    let (client, _) = server("HTTP/1.1 401 U\r\ncontent-length: 4\r\n\r\nnope").await;
    let error = client.stream_lines("/x", String::new(), |_| true).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused { status, .. } if status == StatusCode::UNAUTHORIZED));
    let (client, _) = server("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\none\ntwo\nt").await;
    let (_, mut body) = client.send(Method::GET, "/x", None).await.unwrap();
    assert!(matches!(body.line(2).await, Ok(Some(line)) if line == b"one"));
    let (client, _) = server("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nonetwothr").await;
    let (_, mut body) = client.send(Method::GET, "/x", None).await.unwrap();
    assert!(matches!(body.line(2).await, Err(BodyError::TooLong(2))));
}

#[tokio::test]
async fn the_admin_socket_answers_and_a_missing_one_gives_the_remedy() {
    let path = std::env::temp_dir().join(format!("signalbox-client-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let client = ApiClient::Socket(path.clone());
    let error = client.ask(Method::GET, "/x", None).await.unwrap_err().to_string();
    let expected = format!(
        "no signalbox answers on {} (is it running? --socket names another one): ",
        path.display()
    );
    assert!(
        error.starts_with(&expected) && error.contains("No such file"),
        "{error}"
    );
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        let text = String::from_utf8_lossy(&request[..length]).to_ascii_lowercase();
        let is_right = text.starts_with("get /x http/1.1\r\n") && text.contains("host: signalbox\r\n");
        let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{is_right}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    let answer = client.ask(Method::GET, "/x", None).await;
    let _ = std::fs::remove_file(&path);
    assert_eq!(answer.unwrap(), Value::Bool(true));
}
