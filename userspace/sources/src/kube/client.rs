//! HTTP client: connections that are kept alive, through a proxy where there is one, with TLS as the server needs it.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::{Client as Pool, ResponseFuture};
use hyper_util::rt::TokioExecutor;

use super::access::ResolvedAccess;
use super::kubeconfig::Impersonation;
use crate::client::percent_encoded;

/// Time limit of a connect, with its proxy and TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// TCP keep-alive: a firewall forgets a watch that is silent for minutes. The kernel probes after this idle time, at
/// the interval below, and closes the connection after that many probes without an answer.
const KEEPALIVE_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const MAX_KEEPALIVE_PROBES: u32 = 3;

/// Function that sends a request over a pool of connections of any type.
type Sender = Arc<dyn Fn(Request<Empty<Bytes>>) -> ResponseFuture + Send + Sync>;

/// HTTP client of one server.
#[derive(Clone)]
pub(super) struct Client {
    send: Sender,
    server: Uri,
    headers: HeaderMap,
}

impl Client {
    pub(super) fn new(access: &ResolvedAccess) -> Result<Self, String> {
        let mut headers = impersonation(&access.impersonation)?;
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        Ok(Self {
            send: sender(access)?,
            server: access.server.clone(),
            headers,
        })
    }

    /// Sends a GET of `path` (with its query) below the server's address.
    pub(super) fn get(&self, path: &str, authorization: Option<HeaderValue>) -> Result<ResponseFuture, String> {
        let base = self.server.path().trim_end_matches('/');
        let uri = Uri::builder()
            .scheme(self.server.scheme_str().unwrap_or("https"))
            .authority(self.server.authority().map_or("", |authority| authority.as_str()))
            .path_and_query(format!("{base}{path}"));
        let uri = uri.build().map_err(|error| error.to_string())?;
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        if let Some(value) = authorization {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok((self.send)(request))
    }
}

fn sender(access: &ResolvedAccess) -> Result<Sender, String> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_keepalive(Some(KEEPALIVE_IDLE_TIMEOUT));
    http.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    http.set_keepalive_retries(Some(MAX_KEEPALIVE_PROBES));
    let (config, name) = (access.tls.client_config()?, access.tls.name()?);
    // Macros, because the connectors' types differ.
    macro_rules! with_tls {
        ($connector:expr) => {{
            let mut builder = HttpsConnectorBuilder::new()
                .with_tls_config(config.clone())
                .https_or_http();
            if let Some(name) = name.clone() {
                builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
            }
            builder.enable_http1().wrap_connector($connector)
        }};
    }
    macro_rules! pool {
        ($connector:expr) => {{
            let mut connector = TimeoutConnector::new(with_tls!($connector));
            connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
            let pool = Pool::builder(TokioExecutor::new()).build(connector);
            Arc::new(move |request| pool.request(request))
        }};
    }
    Ok(match &access.proxy {
        None => pool!(http),
        Some(proxy) if proxy.is_socks() => {
            let mut socks = SocksV5::new(proxy.uri.clone(), http);
            if let Some((name, password)) = proxy.login.clone() {
                socks = socks.with_auth(name, password);
            }
            pool!(socks)
        }
        Some(proxy) => {
            // A proxy's own certificate is checked with the server's authorities.
            let mut tunnel = Tunnel::new(proxy.uri.clone(), with_tls!(http));
            if let Some(basic) = proxy.basic.clone() {
                tunnel = tunnel.with_auth(basic);
            }
            pool!(tunnel)
        }
    })
}

/// Returns the headers for `as`, `as-uid`, `as-groups` and `as-user-extra`.
fn impersonation(asked: &Impersonation) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str| {
        let name = name.parse::<HeaderName>().map_err(|error| error.to_string())?;
        let value = HeaderValue::from_str(value)
            .map_err(|_| format!("the kubeconfig impersonates {value:?}, which no header can hold"))?;
        headers.append(name, value);
        Ok::<_, String>(())
    };
    for (name, value) in [("impersonate-user", &asked.user), ("impersonate-uid", &asked.uid)] {
        if let Some(value) = value {
            add(name, value)?;
        }
    }
    for group in &asked.groups {
        add("impersonate-group", group)?;
    }
    for (key, values) in &asked.extra {
        for value in values {
            add(&format!("impersonate-extra-{}", percent_encoded(key)), value)?;
        }
    }
    Ok(headers)
}
