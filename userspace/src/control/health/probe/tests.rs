use std::path::PathBuf;

use parking_lot::Mutex;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::TcpListener;

use super::*;

#[test]
fn an_interim_answer_is_not_the_answer() {
    let status = |text: &str| final_status(&mut text.as_bytes().to_vec());
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    assert_eq!(status(&format!("{interim}HTTP/1.1 200 OK\r\n")), Ok(Some(200)));
    assert_eq!(status(interim), Ok(None));
    assert_eq!(status("HTTP/1.1 103 Early"), Ok(None));
    assert_eq!(status("HTTP/1.1 101 Switching Protocols\r\n"), Ok(Some(101)));
    assert_eq!(status("HTTP/1.1 404"), Ok(Some(404)));
    assert!(status("SSH-2.0-x\r\n").is_err());
}

fn host(port: u16) -> Host {
    Host {
        name: "h".into(),
        address: [127, 0, 0, 1].into(),
        http: Some(port),
        https: Some(port),
        tcp: None,
        ports: std::collections::BTreeMap::new(),
        weight: 1,
        backup: false,
        health_page: None,
    }
}

async fn ask(prober: &Prober) -> Result<String, String> {
    prober.ask().await.unwrap()
}

fn http(path: &str, tls: Option<TlsProbe>) -> Probe {
    Probe::Http(HttpProbe {
        port: None,
        path: path.into(),
        host_header: Some("app.test".into()),
        tls,
    })
}

/// Answers one request with a status; returns the request.
async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), status: &str) -> String {
    let mut request = vec![0; 4096];
    let n = stream.read(&mut request).await.unwrap();
    stream
        .write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes())
        .await
        .unwrap();
    String::from_utf8_lossy(&request[..n]).into_owned()
}

#[tokio::test]
async fn a_host_that_speaks_http2_alone_is_asked_in_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = host(listener.local_addr().unwrap().port());
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut requests = h2::server::handshake(stream).await?;
                while let Some(request) = requests.accept().await {
                    let (request, mut answer) = request?;
                    let is_ours = request.uri() == "http://app.test/healthz?deep";
                    let status = if is_ours { 204 } else { 404 };
                    answer.send_response(http::Response::builder().status(status).body(()).unwrap(), true)?;
                }
                Ok::<_, h2::Error>(())
            });
        }
    });
    let prober = || Prober::new(&http("/healthz?deep", None), CheckProxyHeader::Never, &host);
    let in_http2 = prober().in_http2(true, &host);
    assert_eq!(in_http2.description(), format!("HTTP/2 on port {}", host.http.unwrap()));
    assert_eq!(ask(&in_http2).await, Ok("HTTP 204".into()));
    assert!(ask(&prober().in_http2(false, &host)).await.is_err());
    serving.abort();
}

/// Returns the bytes that a host receives of a check before the check waits for an answer or ends.
async fn heard(probe: &Probe, header: CheckProxyHeader, is_host_port: bool) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut probe = probe.clone();
    if let (Probe::Tcp { port: at } | Probe::Http(HttpProbe { port: at, .. }), false) = (&mut probe, is_host_port) {
        *at = Some(port);
    }
    let host = host(if is_host_port { port } else { 1 });
    let prober = Prober::new(&probe, header, &host);
    let (_, heard) = tokio::join!(ask(&prober), async {
        let mut stream = listener.accept().await.unwrap().0;
        let mut heard = vec![0; 512];
        let n = stream.read(&mut heard).await.unwrap();
        heard.truncate(n);
        if heard.len() == LOCAL_HEADER.len() && matches!(probe, Probe::Http(_)) {
            let n = stream.read_buf(&mut heard).await.unwrap();
            assert!(n > 0, "the request follows the header");
        }
        heard
    });
    heard
}

#[tokio::test]
async fn a_check_sends_a_local_proxy_header_where_the_port_expects_it() {
    let (tcp, http) = (Probe::Tcp { port: None }, http("/healthz", None));
    // Section 2.2 of the specification: signature, version 2 and LOCAL, no family, no addresses.
    let header = b"\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A\x20\x00\x00\x00";
    for probe in [&tcp, &http] {
        let rest: &[u8] = if probe == &tcp { b"" } else { b"GET /healthz " };
        for (when, is_host_port, sent) in [
            (CheckProxyHeader::HostPorts, true, true),
            (CheckProxyHeader::HostPorts, false, false),
            (CheckProxyHeader::Always, false, true),
            (CheckProxyHeader::Never, true, false),
        ] {
            let heard = heard(probe, when, is_host_port).await;
            let expected = if sent {
                [&header[..], rest].concat()
            } else {
                rest.to_vec()
            };
            assert!(
                heard.starts_with(&expected) && (!rest.is_empty() || heard.len() == expected.len()),
                "{when:?}, a port of the host's: {is_host_port}: {heard:?}"
            );
        }
    }
}

#[test]
fn a_description_has_no_query() {
    let mut host = host(80);
    host.health_page = Some(HealthPage {
        path: "/ready?token=open-sesame".into(),
        host_header: None,
    });
    let described = Prober::new(&Probe::Endpoint, CheckProxyHeader::Never, &host).description();
    assert_eq!(described, "HTTP on port 80 for /ready?...");
}

#[tokio::test]
async fn two_and_three_hundreds_are_well_and_the_rest_is_not() {
    for (status, well) in [
        ("200 OK", true),
        ("302 Found", true),
        ("404 Not Found", false),
        ("503 Busy", false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let prober = Prober::new(
            &http("/healthz", None),
            CheckProxyHeader::Never,
            &host(listener.local_addr().unwrap().port()),
        );
        let (asked, said) = tokio::join!(ask(&prober), async {
            answer(&mut listener.accept().await.unwrap().0, status).await
        });
        assert_eq!(asked.is_ok(), well, "{status}: {asked:?}");
        assert!(
            said.starts_with("GET /healthz HTTP/1.1\r\nHost: app.test\r\n"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_host_that_is_down_or_speaks_no_http_fails_its_check() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let prober = Prober::new(&http("/", None), CheckProxyHeader::Never, &host(port));
    let (asked, ()) = tokio::join!(ask(&prober), async {
        listener
            .accept()
            .await
            .unwrap()
            .0
            .write_all(b"SSH-2.0-OpenSSH\r\n")
            .await
            .unwrap();
    });
    assert!(asked.is_err());
    drop(listener);
    let error = ask(&prober).await.unwrap_err();
    assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
}

/// Records the server name of the ClientHello.
#[derive(Debug)]
struct Noting(Arc<CertifiedKey>, Mutex<Option<String>>);

impl ResolvesServerCert for Noting {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        *self.1.lock() = hello.server_name().map(str::to_owned);
        Some(Arc::clone(&self.0))
    }
}

async fn ask_over_tls(
    sni: Option<&str>,
    ca: Option<PathBuf>,
    made: &rcgen::CertifiedKey<rcgen::KeyPair>,
) -> (Result<String, String>, Option<String>) {
    let provider = signalbox_tls::provider::provider();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
    let certified = CertifiedKey::from_der(vec![made.cert.der().clone()], key, &provider).unwrap();
    let noting = Arc::new(Noting(Arc::new(certified), Mutex::new(None)));
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&noting) as Arc<dyn ResolvesServerCert>);
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tls = TlsProbe {
        sni: sni.map(str::to_owned),
        ca,
    };
    let prober = Prober::new(
        &http("/", Some(tls)),
        CheckProxyHeader::Never,
        &host(listener.local_addr().unwrap().port()),
    );
    let (asked, ()) = tokio::join!(ask(&prober), async {
        if let Ok(mut stream) = acceptor.accept(listener.accept().await.unwrap().0).await {
            answer(&mut stream, "204 No Content").await;
        }
    });
    let seen = noting.1.lock().take();
    (asked, seen)
}

#[tokio::test]
async fn an_https_check_sends_its_name_and_trusts_only_the_given_ca() {
    let made = rcgen::generate_simple_self_signed(vec!["app.test".to_owned(), "probe.test".to_owned()]).unwrap();
    let mut other = rcgen::CertificateParams::new(vec!["app.test".to_owned()]).unwrap();
    other.distinguished_name.push(rcgen::DnType::CommonName, "another");
    let other = other.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let (asked, seen) = ask_over_tls(Some("probe.test"), None, &made).await;
    assert_eq!(
        (asked.as_deref(), seen.as_deref()),
        (Ok("HTTP 204"), Some("probe.test"))
    );
    let (asked, seen) = ask_over_tls(None, None, &made).await;
    assert_eq!(
        (asked.is_ok(), seen.as_deref()),
        (true, Some("app.test")),
        "the Host header is the name then"
    );

    let of_host = |host_header: &str| {
        let Probe::Http(http) = http("/", None) else { panic!() };
        let host_header = Some(host_header.to_owned());
        server_name(&TlsProbe { sni: None, ca: None }, &HttpProbe { host_header, ..http })
    };
    let name = |text: &str| Some(ServerName::try_from(text.to_owned()).unwrap());
    assert_eq!(of_host("app.test:8443"), name("app.test"), "the port is no part of it");
    assert_eq!(of_host("10.2.0.2:8443"), name("10.2.0.2"));
    assert_eq!(
        (of_host("[fd00:2::4]"), of_host("-.-")),
        (None, None),
        "the host's address is used"
    );

    let directory = std::env::temp_dir().join(format!("signalbox-probe-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (right, wrong) = (directory.join("right.pem"), directory.join("wrong.pem"));
    std::fs::write(&right, made.cert.pem()).unwrap();
    std::fs::write(&wrong, other.pem()).unwrap();
    assert!(ask_over_tls(None, Some(right), &made).await.0.is_ok());
    let stranger = ask_over_tls(None, Some(wrong), &made).await.0.unwrap_err();
    let told = "TLS: its certificate is signed by no authority of `https.ca` of the health check";
    assert_eq!(stranger, told);
    let error = ask_over_tls(None, Some(directory.join("none.pem")), &made)
        .await
        .0
        .unwrap_err();
    assert!(error.contains("none.pem"), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
}
