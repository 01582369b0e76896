//! Connection settings for an API server, from a service account, a kubeconfig or an address.

use std::path::{Path, PathBuf};

use hyper::Uri;
use kube::Config;
use kube::config::{AuthInfo, ExecAuthCluster, ExecConfig, Kubeconfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use signalbox_core::model::kubernetes::ApiServerAccess;

use super::proxy::Proxy;

/// Settings of a connection.
pub(super) struct ResolvedAccess {
    /// Address and TLS. Its `auth_info` holds only a certificate and whom to impersonate: for all other credentials
    /// the kube crate would run programs and keep files by itself.
    pub(super) config: Config,
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
    Program(Box<ExecConfig>),
}

/// Reads the settings. Errors say what is to be mended.
pub(super) async fn resolve(connection: &ApiServerAccess) -> Result<ResolvedAccess, String> {
    match connection {
        ApiServerAccess::InCluster => in_cluster(),
        ApiServerAccess::Kubeconfig { path, context } => {
            let shown = path.display();
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| {
                format!(
                    "the kubeconfig {shown} cannot be read: {}",
                    signalbox_sys::error_chain(&error)
                )
            })?;
            let mut way = from_kubeconfig(kubeconfig, context.as_deref())
                .map_err(|error| format!("the kubeconfig {shown} is not usable: {error}"))?;
            way.files.push(path.clone());
            Ok(way)
        }
        ApiServerAccess::Url { url, ca, token } => {
            let url: Uri = url
                .parse()
                .map_err(|error| format!("`{url}` is not an address: {error}"))?;
            let mut config = Config::new(url);
            config.root_cert = match ca {
                Some(path) => Some(authorities(path).await?),
                None => None,
            };
            Ok(ResolvedAccess {
                config,
                proxy: None,
                identity: token.clone().map_or(Identity::Anonymous, Identity::File),
                files: ca.iter().chain(token).cloned().collect(),
            })
        }
    }
}

fn in_cluster() -> Result<ResolvedAccess, String> {
    let mut config = Config::incluster().map_err(|error| {
        let error = signalbox_sys::error_chain(&error);
        format!("there is no service account: {error}: run in a pod that has one, or set `kubeconfig` or `url`")
    })?;
    let token = std::mem::take(&mut config.auth_info).token_file.map(PathBuf::from);
    Ok(ResolvedAccess {
        proxy: None,
        files: token.iter().chain(&config.root_cert_file).cloned().collect(),
        identity: token.map_or(Identity::Anonymous, Identity::File),
        config,
    })
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
        .auth_infos
        .into_iter()
        .find(|one| found.user.as_ref() == Some(&one.name));
    let user = user.and_then(|one| one.auth_info).unwrap_or_default();

    let server = cluster.server.as_deref().unwrap_or_default();
    let url: Uri = server
        .parse()
        .map_err(|error| format!("its server {server:?} is not an address: {error}"))?;
    let described = ExecAuthCluster::try_from(&cluster).map_err(|error| signalbox_sys::error_chain(&error))?;
    let mut config = Config::new(url);
    if let Some(pem) = &described.certificate_authority_data {
        config.root_cert = Some(certificates(pem).map_err(|error| format!("its certificate authority {error}"))?);
    }
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or(false);
    config.tls_server_name = cluster.tls_server_name;
    let proxy = match cluster.proxy_url.filter(|url| !url.is_empty()) {
        Some(url) => Some(Proxy::named(&url, &config.cluster_url)?),
        None => Proxy::of_environment(&config.cluster_url),
    };
    let files = [
        &cluster.certificate_authority,
        &user.token_file,
        &user.client_certificate,
        &user.client_key,
    ];
    let files = files.into_iter().flatten().map(PathBuf::from).collect();
    let who = identity(&user, described)?;
    config.auth_info = AuthInfo {
        exec: None,
        token: None,
        token_file: None,
        password: None,
        auth_provider: None,
        ..user
    };
    Ok(ResolvedAccess {
        config,
        proxy,
        identity: who,
        files,
    })
}

fn identity(user: &AuthInfo, cluster: ExecAuthCluster) -> Result<Identity, String> {
    use base64::Engine as _;
    use secrecy::ExposeSecret as _;
    if let Some(provider) = &user.auth_provider {
        let token = provider.config.get("id-token").ok_or_else(|| {
            let name = &provider.name;
            format!("its `auth-provider` {name:?} is one that Kubernetes has given up: use `exec` or `tokenFile`")
        })?;
        return Ok(Identity::Header(format!("Bearer {token}")));
    }
    if let (Some(name), Some(password)) = (&user.username, &user.password) {
        let pair = format!("{name}:{}", password.expose_secret());
        let pair = base64::engine::general_purpose::STANDARD.encode(pair);
        return Ok(Identity::Header(format!("Basic {pair}")));
    }
    if let Some(token) = &user.token {
        return Ok(Identity::Header(format!("Bearer {}", token.expose_secret().trim())));
    }
    if let Some(path) = &user.token_file {
        return Ok(Identity::File(PathBuf::from(path)));
    }
    Ok(match user.exec.clone() {
        Some(exec) => Identity::Program(Box::new(ExecConfig {
            cluster: exec.provide_cluster_info.then_some(cluster),
            ..exec
        })),
        None => Identity::Anonymous,
    })
}

async fn authorities(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let shown = path.display();
    let pem = tokio::fs::read(path)
        .await
        .map_err(|error| format!("the authorities in {shown} cannot be read: {error}"))?;
    certificates(&pem).map_err(|error| format!("{shown} {error}"))
}

fn certificates(pem: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found.iter().map(|one| one.to_vec()).collect()),
        Ok(_) => Err("holds no certificate in PEM: give the file of the authorities".to_owned()),
        Err(error) => Err(format!("is not PEM: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_wrong_with_the_way_is_said_with_the_file() {
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
        let read = || Kubeconfig::from_yaml(text).unwrap();
        let way = from_kubeconfig(read(), Some("x")).unwrap();
        assert_eq!(way.config.tls_server_name.as_deref(), Some("b.test"));
        assert_eq!(way.config.auth_info.impersonate.as_deref(), Some("admin"));
        assert!(way.proxy.unwrap().is_socks());
        assert!(matches!(way.identity, Identity::File(path) if path == Path::new("/t")));
        assert_eq!(way.files, [PathBuf::from("/t")]);
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
