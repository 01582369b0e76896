//! Kubeconfig files: the parts that kubectl reads to reach a server and to authenticate (client-go,
//! `clientcmd/api/v1`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde::{Deserialize, Deserializer, Serialize};
use signalbox_core::wire::yaml;

use super::server_tls::ClientCertificate;

/// A kubeconfig, with the keys that signalbox obeys.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Kubeconfig {
    pub(super) current_context: Option<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) clusters: Vec<NamedCluster>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) users: Vec<NamedUser>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) contexts: Vec<NamedContext>,
}

#[derive(Clone, Deserialize)]
pub(super) struct NamedCluster {
    pub(super) name: String,
    pub(super) cluster: Option<Cluster>,
}

#[derive(Clone, Deserialize)]
pub(super) struct NamedUser {
    pub(super) name: String,
    pub(super) user: Option<User>,
}

#[derive(Clone, Deserialize)]
pub(super) struct NamedContext {
    pub(super) name: String,
    pub(super) context: Option<Context>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Context {
    pub(super) cluster: String,
    pub(super) user: Option<String>,
}

/// Address of a server, and how it is known.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Cluster {
    pub(super) server: Option<String>,
    pub(super) insecure_skip_tls_verify: Option<bool>,
    pub(super) certificate_authority: Option<PathBuf>,
    pub(super) certificate_authority_data: Option<String>,
    pub(super) proxy_url: Option<String>,
    pub(super) tls_server_name: Option<String>,
    #[serde(deserialize_with = "null_is_empty")]
    extensions: Vec<Extension>,
}

#[derive(Clone, Deserialize)]
struct Extension {
    name: String,
    extension: serde_json::Value,
}

/// Credentials. It has no `Debug`: tokens, keys and passwords are never printed.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct User {
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) token: Option<String>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<PathBuf>,
    pub(super) client_certificate: Option<PathBuf>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key: Option<PathBuf>,
    pub(super) client_key_data: Option<String>,
    #[serde(flatten)]
    pub(super) impersonation: Impersonation,
    pub(super) auth_provider: Option<AuthProvider>,
    pub(super) exec: Option<Exec>,
}

/// User, groups and further facts that requests are made as.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Impersonation {
    #[serde(rename = "as")]
    pub(super) user: Option<String>,
    #[serde(rename = "as-uid")]
    pub(super) uid: Option<String>,
    #[serde(rename = "as-groups", deserialize_with = "null_is_empty")]
    pub(super) groups: Vec<String>,
    #[serde(rename = "as-user-extra", deserialize_with = "null_is_empty")]
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Deserialize)]
pub(super) struct AuthProvider {
    pub(super) name: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) config: BTreeMap<String, String>,
}

/// Program that prints credentials.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Exec {
    pub(super) api_version: Option<String>,
    pub(super) command: Option<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) args: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) env: Vec<Variable>,
    pub(super) install_hint: Option<String>,
    provide_cluster_info: bool,
    /// Filled in for a program that asks for it.
    #[serde(skip)]
    pub(super) cluster: Option<ExecCluster>,
}

#[derive(Clone, PartialEq, Deserialize)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

/// Description of a cluster for a program (`client.authentication.k8s.io/v1`, Cluster).
#[derive(Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ExecCluster {
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    insecure_skip_tls_verify: Option<bool>,
    /// PEM in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<serde_json::Value>,
}

/// Name of the extension whose content is passed to a program.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Kubeconfig {
    /// Reads a file. Paths in it are relative to its directory.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let mut read = Self::parse(&text)?;
        if let Some(directory) = path.parent() {
            read.resolve(directory);
        }
        Ok(read)
    }

    /// Parses a file's text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document = yaml::read_json(text).map_err(|error| {
            format!(
                "line {}, column {}: {error}",
                error.position.line, error.position.column
            )
        })?;
        if document.is_null() {
            return Ok(Self::default());
        }
        serde_json::from_value(document).map_err(|error| error.to_string())
    }

    fn resolve(&mut self, directory: &Path) {
        let clusters = self.clusters.iter_mut().filter_map(|named| named.cluster.as_mut());
        let authorities = clusters.map(|cluster| &mut cluster.certificate_authority);
        let users = self.users.iter_mut().filter_map(|named| named.user.as_mut());
        let credentials = users.flat_map(|user| {
            if let Some(command) = user.exec.as_mut().and_then(|exec| exec.command.as_mut())
                // A bare name is looked for in PATH.
                && command.contains('/')
            {
                *command = directory.join(&*command).display().to_string();
            }
            [&mut user.token_file, &mut user.client_certificate, &mut user.client_key]
        });
        for path in authorities.chain(credentials).flatten() {
            *path = directory.join(&*path);
        }
    }
}

impl Cluster {
    /// PEM of the authorities that sign the server's certificate, if they are given.
    pub(super) fn authorities(&self) -> Result<Option<Vec<u8>>, String> {
        data_or_file(
            "certificate-authority",
            self.certificate_authority_data.as_deref(),
            self.certificate_authority.as_deref(),
        )
    }
}

impl User {
    /// PEM of a certificate to show, and of its key.
    pub(super) fn certificate(&self) -> Result<Option<ClientCertificate>, String> {
        let (data, file) = (
            self.client_certificate_data.as_deref(),
            self.client_certificate.as_deref(),
        );
        let certificate = data_or_file("client-certificate", data, file)?;
        let key = data_or_file(
            "client-key",
            self.client_key_data.as_deref(),
            self.client_key.as_deref(),
        )?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(ClientCertificate { certificate, key })),
            (None, None) => Ok(None),
            (Some(_), None) => Err("it has a `client-certificate` without `client-key`".to_owned()),
            (None, Some(_)) => Err("it has a `client-key` without `client-certificate`".to_owned()),
        }
    }
}

impl Exec {
    /// The program, with a description of the cluster if it asks for one.
    pub(super) fn for_cluster(self, cluster: &Cluster, authorities: Option<&[u8]>) -> Self {
        let described = self.provide_cluster_info.then(|| ExecCluster {
            server: cluster.server.clone(),
            tls_server_name: cluster.tls_server_name.clone(),
            insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
            certificate_authority_data: authorities.map(|pem| base64::engine::general_purpose::STANDARD.encode(pem)),
            proxy_url: cluster.proxy_url.clone(),
            config: cluster
                .extensions
                .iter()
                .find(|one| one.name == EXEC_EXTENSION)
                .map(|one| one.extension.clone()),
        });
        Self {
            cluster: described,
            ..self
        }
    }
}

/// Content of a `KEY-data` in base64, which comes first, or of the file that `KEY` names.
fn data_or_file(key: &str, data: Option<&str>, file: Option<&Path>) -> Result<Option<Vec<u8>>, String> {
    if let Some(data) = data {
        let decoded = base64::engine::general_purpose::STANDARD.decode(data.trim());
        return decoded
            .map(Some)
            .map_err(|error| format!("its `{key}-data` is not base64: {error}"));
    }
    file.map(|path| {
        std::fs::read(path).map_err(|error| format!("its `{key}` {} cannot be read: {error}", path.display()))
    })
    .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_file_and_a_bare_command_is_not() {
        let text = "clusters: [{ name: c, cluster: { certificate-authority: ca.pem } }]\n\
                    users: [{ name: u, user: { tokenFile: /abs/token, client-key: k/key.pem, exec: { command: aws } } },\n\
                    { name: v, user: { exec: { command: ./bin/login } } }]\n\
                    contexts: null\n";
        let mut read = Kubeconfig::parse(text).unwrap();
        read.resolve(Path::new("/etc/kube"));
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(
            cluster.certificate_authority.as_deref(),
            Some(Path::new("/etc/kube/ca.pem"))
        );
        let users: Vec<&User> = read.users.iter().filter_map(|one| one.user.as_ref()).collect();
        assert_eq!(users[0].token_file.as_deref(), Some(Path::new("/abs/token")));
        assert_eq!(users[0].client_key.as_deref(), Some(Path::new("/etc/kube/k/key.pem")));
        let command = |user: &User| user.exec.as_ref().unwrap().command.clone().unwrap();
        assert_eq!(
            (command(users[0]).as_str(), command(users[1]).as_str()),
            ("aws", "/etc/kube/./bin/login")
        );
    }

    #[test]
    fn an_invalid_kubeconfig_is_refused_with_the_place() {
        let error = |text: &str| Kubeconfig::parse(text).err().unwrap();
        assert!(
            error("clusters: 3").contains("expected a sequence"),
            "{}",
            error("clusters: 3")
        );
        assert!(error("clusters: [").starts_with("line "), "{}", error("clusters: ["));
        assert!(Kubeconfig::parse("").unwrap().contexts.is_empty());
    }

    #[test]
    fn data_comes_before_a_file_and_half_an_identity_is_refused() {
        let user = |text: &str| serde_json::from_value::<User>(yaml::read_json(text).unwrap()).unwrap();
        let both =
            user("{ client-certificate-data: Y2VydA==, client-certificate: /nonexistent, client-key-data: a2V5 }");
        let shown = both.certificate().unwrap().unwrap();
        assert_eq!(
            (shown.certificate.as_slice(), shown.key.as_slice()),
            (&b"cert"[..], &b"key"[..])
        );
        for (text, part) in [
            ("{ client-certificate-data: Y2VydA== }", "without `client-key`"),
            ("{ client-key-data: a2V5 }", "without `client-certificate`"),
            ("{ client-key-data: '*' }", "`client-key-data` is not base64"),
            (
                "{ client-key: /nonexistent/key }",
                "`client-key` /nonexistent/key cannot be read",
            ),
        ] {
            let error = user(text).certificate().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(
            user("{ as: admin, as-groups: [a], as-user-extra: { k: [v] } }")
                .certificate()
                .unwrap()
                .is_none()
        );
    }
}
