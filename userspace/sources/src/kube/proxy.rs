//! Proxy in front of an API server: named by the kubeconfig, or by the environment.
//!
//! The environment is read here, because the kube crate compares `no_proxy` with the proxy's name instead of the
//! server's, and refuses a list that ends with a comma.

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// A proxy.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    pub(super) uri: Uri,
    /// Header `Proxy-Authorization`, for HTTP.
    pub(super) basic: Option<HeaderValue>,
    /// Name and password, for SOCKS.
    pub(super) login: Option<(String, String)>,
}

impl Proxy {
    /// Returns the environment's proxy for a server: `https_proxy`, `http_proxy`, `all_proxy`, except for `no_proxy`.
    pub(super) fn of_environment(server: &Uri) -> Option<Self> {
        Self::of(&Matcher::from_env(), server)
    }

    fn of(matcher: &Matcher, server: &Uri) -> Option<Self> {
        matcher.intercept(server).map(|found| Self::from(&found))
    }

    /// Returns the proxy of a kubeconfig's `proxy-url`, to which `no_proxy` does not apply, as for kubectl.
    pub(super) fn named(url: &str, server: &Uri) -> Result<Self, String> {
        let wrong = || format!("`proxy-url` {url:?} is not a proxy: write http://, https:// or socks5:// with a host");
        let scheme = url.split_once("://").ok_or_else(wrong)?.0;
        if !matches!(scheme, "http" | "https" | "socks5" | "socks5h") {
            return Err(wrong());
        }
        let matcher = Matcher::builder().all(url).build();
        matcher
            .intercept(server)
            .map(|found| Self::from(&found))
            .ok_or_else(wrong)
    }

    pub(super) fn is_socks(&self) -> bool {
        self.uri.scheme_str().is_some_and(|scheme| scheme.starts_with("socks5"))
    }

    /// Returns the URL for messages: without name and password.
    pub(super) fn shown(&self) -> String {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let port = self.uri.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{scheme}://{}{port}", self.uri.host().unwrap_or_default())
    }
}

impl From<&Intercept> for Proxy {
    fn from(found: &Intercept) -> Self {
        Self {
            uri: found.uri().clone(),
            basic: found.basic_auth().cloned(),
            login: found
                .raw_auth()
                .map(|(name, password)| (name.to_owned(), password.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_is_compared_with_the_servers_name() {
        let of = |no: &str, server: &str| {
            let environment = Matcher::builder().https("http://proxy.test:3128").no(no).build();
            Proxy::of(&environment, &server.parse().unwrap())
        };
        let server = "https://api.east.test:6443";
        assert!(of("", server).is_some() && of("proxy.test", server).is_some());
        for no in ["api.east.test", ".east.test", "other.test, east.test,", "*"] {
            assert!(of(no, server).is_none(), "{no}");
        }
        assert!(of("10.0.0.0/8", "https://10.1.2.3:6443").is_none());
        assert!(of("10.0.0.0/8", "https://192.0.2.1:6443").is_some());
    }

    #[test]
    fn a_kubeconfig_names_its_proxy() {
        let server: Uri = "https://api.east.test:6443".parse().unwrap();
        let proxy = Proxy::named("http://me:pass@proxy.test:3128", &server).unwrap();
        assert_eq!(
            (proxy.shown().as_str(), proxy.is_socks()),
            ("http://proxy.test:3128", false)
        );
        assert!(proxy.basic.is_some());
        let proxy = Proxy::named("socks5://proxy.test:1080", &server).unwrap();
        assert!(proxy.is_socks() && proxy.login.is_none());
        for bad in ["proxy.test:3128", "ftp://proxy.test", "http://"] {
            let error = Proxy::named(bad, &server).unwrap_err();
            assert!(error.contains(bad) && error.contains("socks5://"), "{error}");
        }
    }
}
