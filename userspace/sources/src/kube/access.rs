//! Connection settings for an API server, from a service account, a kubeconfig or an address.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use hyper::Uri;
use rustls::pki_types::CertificateDer;
use signalbox_core::model::kubernetes::ApiServerAccess;

use super::kubeconfig::{Exec, Impersonation, Kubeconfig, User};
use super::proxy::Proxy;
use super::server_tls::{ServerTls, certificates};

/// Directory of the service account in a pod.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Settings of a connection.
pub(super) struct ResolvedAccess {
    pub(super) server: Uri,
    pub(super) tls: ServerTls,
    pub(super) impersonation: Impersonation,
    pub(super) proxy: Option<Proxy>,
    pub(super) identity: Identity,
    /// Files that the settings were read from, so that a change is noticed.
    pub(super) files: Vec<PathBuf>,
}

/// Credentials.
pub(super) enum Identity {
    /// None, or a client certificate.
    Anonymous,
    /// Value of the header `Authorization`.
    Header(String),
    /// Path of a bearer token, which is read for each request, because it may be replaced at any time.
    File(PathBuf),
    /// Program that prints credentials.
    Program(Box<Exec>),
}

/// Reads the settings. Errors say what to fix.
pub(super) async fn resolve(connection: &ApiServerAccess) -> Result<ResolvedAccess, String> {
    match connection {
        ApiServerAccess::InCluster => in_cluster().await,
        ApiServerAccess::Kubeconfig { path, context } => {
            let shown = path.display();
            let kubeconfig =
                Kubeconfig::read(path).map_err(|error| format!("the kubeconfig {shown} cannot be read: {error}"))?;
            let mut access = from_kubeconfig(kubeconfig, context.as_deref())
                .map_err(|error| format!("the kubeconfig {shown} is not usable: {error}"))?;
            access.files.push(path.clone());
            Ok(access)
        }
        ApiServerAccess::Url { url, ca, token } => {
            let server: Uri = url
                .parse()
                .map_err(|error| format!("`{url}` is not an address: {error}"))?;
            let authorities = match ca {
                Some(path) => Some(authorities(path).await?),
                None => None,
            };
            Ok(ResolvedAccess {
                server,
                tls: ServerTls {
                    authorities,
                    ..ServerTls::default()
                },
                impersonation: Impersonation::default(),
                proxy: None,
                identity: token.clone().map_or(Identity::Anonymous, Identity::File),
                files: ca.iter().chain(token).cloned().collect(),
            })
        }
    }
}

/// Settings of a pod: the address that the kubelet puts into the environment, and the files of its service account.
async fn in_cluster() -> Result<ResolvedAccess, String> {
    let hint = |error: String| {
        format!("there is no service account: {error}: run in a pod that has one, or set `kubeconfig` or `url`")
    };
    let variable = |name: &str| std::env::var(name).map_err(|error| hint(format!("{name}: {error}")));
    let (host, port) = (
        variable("KUBERNETES_SERVICE_HOST")?,
        variable("KUBERNETES_SERVICE_PORT")?,
    );
    let (ca, token) = (
        Path::new(SERVICE_ACCOUNT).join("ca.crt"),
        Path::new(SERVICE_ACCOUNT).join("token"),
    );
    Ok(ResolvedAccess {
        server: service_address(&host, &port).map_err(hint)?,
        tls: ServerTls {
            authorities: Some(authorities(&ca).await.map_err(hint)?),
            ..ServerTls::default()
        },
        impersonation: Impersonation::default(),
        proxy: None,
        files: vec![token.clone(), ca],
        identity: Identity::File(token),
    })
}

fn service_address(host: &str, port: &str) -> Result<Uri, String> {
    let host = match host.parse() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host.to_owned(),
    };
    let address = format!("https://{host}:{port}");
    address
        .parse()
        .map_err(|error| format!("`{address}` is not an address: {error}"))
}

fn from_kubeconfig(kubeconfig: Kubeconfig, context: Option<&str>) -> Result<ResolvedAccess, String> {
    let context = context.or(kubeconfig.current_context.as_deref());
    let context = context.ok_or("it has no `current-context`: set `context`")?;
    let found = kubeconfig.contexts.iter().find(|one| one.name == context);
    let found = found
        .and_then(|one| one.context.clone())
        .ok_or_else(|| format!("it has no context {context:?}"))?;
    let cluster = kubeconfig.clusters.iter().find(|one| one.name == found.cluster);
    let cluster = cluster.and_then(|one| one.cluster.clone()).ok_or_else(|| {
        format!(
            "it has no cluster {:?}, which the context {context:?} names",
            found.cluster
        )
    })?;
    // A missing user is anonymous, as for kubectl.
    let user = kubeconfig
        .users
        .into_iter()
        .find(|one| found.user.as_ref() == Some(&one.name));
    let user = user.and_then(|one| one.user).unwrap_or_default();

    let address = cluster.server.as_deref().unwrap_or_default();
    let server: Uri = address
        .parse()
        .map_err(|error| format!("its server {address:?} is not an address: {error}"))?;
    let authorities = cluster.authorities()?;
    // As for kubectl, a program is asked only where there is no other credential.
    let identity = match (identity(&user)?, user.exec.clone()) {
        (Identity::Anonymous, Some(exec)) => {
            let exec = exec.for_cluster(&cluster, authorities.as_deref());
            Identity::Program(Box::new(exec))
        }
        (found, _) => found,
    };
    let files = [
        &cluster.certificate_authority,
        &user.token_file,
        &user.client_certificate,
        &user.client_key,
    ];
    let files = files.into_iter().flatten().cloned().collect();
    let authorities = authorities.map(|pem| certificates(&pem)).transpose();
    Ok(ResolvedAccess {
        proxy: match cluster.proxy_url.filter(|url| !url.is_empty()) {
            Some(url) => Some(Proxy::named(&url, &server)?),
            None => Proxy::of_environment(&server),
        },
        server,
        tls: ServerTls {
            authorities: authorities.map_err(|error| format!("its certificate authority {error}"))?,
            is_unverified: cluster.insecure_skip_tls_verify.unwrap_or(false),
            server_name: cluster.tls_server_name,
            identity: user.certificate()?,
        },
        impersonation: user.impersonation,
        identity,
        files,
    })
}

fn identity(user: &User) -> Result<Identity, String> {
    use base64::Engine as _;
    if let Some(provider) = &user.auth_provider {
        let token = provider.config.get("id-token").ok_or_else(|| {
            let name = &provider.name;
            format!("its `auth-provider` {name:?} is one that Kubernetes has given up: use `exec` or `tokenFile`")
        })?;
        return Ok(Identity::Header(format!("Bearer {token}")));
    }
    if let (Some(name), Some(password)) = (&user.username, &user.password) {
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
        return Ok(Identity::Header(format!("Basic {pair}")));
    }
    if let Some(token) = &user.token {
        return Ok(Identity::Header(format!("Bearer {}", token.trim())));
    }
    Ok(user.token_file.clone().map_or(Identity::Anonymous, Identity::File))
}

async fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let pem = tokio::fs::read(path)
        .await
        .map_err(|error| format!("the authorities in {shown} cannot be read: {error}"))?;
    certificates(&pem).map_err(|error| format!("{shown} {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unreadable_kubeconfig_or_ca_file_is_named_in_the_error() {
        let error = |connection| async move { resolve(&connection).await.err().unwrap() };
        let kubeconfig = ApiServerAccess::Kubeconfig {
            path: "/nonexistent/k".into(),
            context: None,
        };
        assert!(
            error(kubeconfig)
                .await
                .starts_with("the kubeconfig /nonexistent/k cannot be read")
        );
        let url = |ca: &str| ApiServerAccess::Url {
            url: "https://a.test".into(),
            token: None,
            ca: Some(ca.into()),
        };
        assert!(
            error(url("/nonexistent/ca"))
                .await
                .starts_with("the authorities in /nonexistent/ca cannot be read")
        );
        assert!(error(url("/dev/null")).await.contains("holds no certificate"));
    }

    #[test]
    fn a_kubeconfigs_context_cluster_and_user_are_found() {
        let text = "clusters: [{ name: c, cluster: { server: 'https://a.test:6443', tls-server-name: b.test, \
                    proxy-url: 'socks5://proxy.test:1080' } }]\n\
                    users: [{ name: u, user: { tokenFile: /t, as: admin } }]\n\
                    contexts: [{ name: x, context: { cluster: c, user: u } }, { name: y, context: { cluster: d } }]\n";
        let read = || Kubeconfig::parse(text).unwrap();
        let way = from_kubeconfig(read(), Some("x")).unwrap();
        assert_eq!(way.tls.server_name.as_deref(), Some("b.test"));
        assert_eq!(way.impersonation.user.as_deref(), Some("admin"));
        assert!(way.proxy.unwrap().is_socks());
        assert!(matches!(way.identity, Identity::File(path) if path == Path::new("/t")));
        assert_eq!(way.files, [PathBuf::from("/t")]);
        for (host, address) in [
            ("10.0.0.1", "https://10.0.0.1:443/"),
            ("fd00::1", "https://[fd00::1]:443/"),
            ("api.test", "https://api.test:443/"),
        ] {
            assert_eq!(service_address(host, "443").unwrap().to_string(), address);
        }
        for (context, part) in [
            (None, "no `current-context`"),
            (Some("z"), r#"no context "z""#),
            (Some("y"), r#"no cluster "d", which the context "y" names"#),
        ] {
            let error = from_kubeconfig(read(), context).err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }
}
