//! How the API server is reached, and by which credentials, as client-go finds it out.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use http::header::HeaderValue;
use kube::Config;
use kube::client::AuthError;
use kube::config::{AuthInfo, Cluster, InClusterError, Kubeconfig, KubeconfigError};
use kube::{Client, Error};
use secrecy::ExposeSecret;

use crate::proxied_client;
use crate::proxy::{Environment, Proxy, ProxyError, Scheme};

/// Instead of a kubeconfig's proxy, which is looked at here: without one kube takes HTTPS_PROXY for it.
const PLACEHOLDER_PROXY: &str = "http://unused.invalid";

const NO_HEADER: &str = "it has a character that no HTTP header can have, such as a newline";

/// Where address and credentials are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Kubeconfig(PathBuf),
    /// The pod's service account.
    Pod,
    /// As kubectl finds them: `$KUBECONFIG`, `~/.kube/config`, the pod's service account.
    LikeKubectl,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{}: {cause}", path.display())]
    Kubeconfig { path: PathBuf, cause: Box<KubeconfigError> },
    #[error("no kubeconfig is given, and this is not a pod with a service account: {0}")]
    InCluster(#[from] InClusterError),
    #[error("no kubeconfig is given: {kubeconfig}; and this is not a pod with a service account: {in_cluster}")]
    LikeKubectl {
        kubeconfig: Box<KubeconfigError>,
        in_cluster: Box<InClusterError>,
    },
    #[error("kubeconfig: {0}")]
    FoundKubeconfig(Box<KubeconfigError>),
    #[error("read token file {}: {cause}", path.display())]
    TokenFile { path: PathBuf, cause: std::io::Error },
    #[error("the kubeconfig's token cannot be used: {NO_HEADER}")]
    Token,
    #[error("run the exec plugin {command}: {cause}")]
    Exec { command: String, cause: std::io::Error },
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("{}", stelia_cpus::text::excerpt::with_causes(.0))]
    Client(Box<Error>),
}

/// What a file was when it was read: its content may be another one when any of these is.
pub(crate) type Stamp = (u64, u64, i64, i64, u64);

pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    let now = path.metadata().ok()?;
    Some((now.dev(), now.ino(), now.mtime(), now.mtime_nsec(), now.size()))
}

/// A file of a configuration, as it was before it was read: what is written meanwhile is read again.
pub(crate) type StampedFile = (PathBuf, Option<Stamp>);

fn seen(path: PathBuf) -> StampedFile {
    let stamp = stamp(&path);
    (path, stamp)
}

/// A configuration, with the files that it is from.
pub(crate) struct LoadedConfig {
    pub config: Config,
    /// The kubeconfig's proxy, which the environment has no say about.
    proxy: Option<String>,
    pub files: Vec<StampedFile>,
}

impl LoadedConfig {
    /// Reads the configuration; `context` is another one of the kubeconfig than its own.
    pub(crate) fn read(source: &Source, context: Option<&str>) -> Result<Self, ClientError> {
        let mut found = match source {
            Source::Kubeconfig(path) => {
                let of = |cause| ClientError::Kubeconfig {
                    path: path.clone(),
                    cause: Box::new(cause),
                };
                let kubeconfig = seen(path.clone());
                let found = Kubeconfig::read_from(path);
                let mut found = found.and_then(|kubeconfig| Self::of(kubeconfig, context)).map_err(of)?;
                found.files.push(kubeconfig);
                found
            }
            Source::Pod => Self::of_pod()?,
            Source::LikeKubectl => match Kubeconfig::read().and_then(|kubeconfig| Self::of(kubeconfig, context)) {
                Ok(found) => found,
                Err(kubeconfig) if context.is_some() => return Err(ClientError::FoundKubeconfig(Box::new(kubeconfig))),
                Err(kubeconfig) => Self::of_pod().map_err(|in_cluster| ClientError::LikeKubectl {
                    kubeconfig: Box::new(kubeconfig),
                    in_cluster: Box::new(in_cluster),
                })?,
            },
        };
        found.read_token()?;
        Ok(found)
    }

    fn of_pod() -> Result<Self, InClusterError> {
        Ok(Self {
            config: Config::incluster()?,
            proxy: None,
            files: Vec::new(),
        })
    }

    fn of(mut kubeconfig: Kubeconfig, context: Option<&str>) -> Result<Self, KubeconfigError> {
        if let Some(context) = context {
            kubeconfig.current_context = Some(context.to_owned());
        }
        let proxy = take_proxy(&mut kubeconfig);
        let files = certificate_files(&kubeconfig).into_iter().map(seen).collect();
        Ok(Self {
            config: Config::try_from(kubeconfig)?,
            proxy,
            files,
        })
    }

    /// Reads the token file, which has precedence: an inline token is for when it cannot be read.
    fn read_token(&mut self) -> Result<(), ClientError> {
        let auth = &mut self.config.auth_info;
        auth.token = auth.token.take().filter(|token| !token.expose_secret().is_empty());
        // An empty name is the kubeconfig's folder by now.
        if let Some(path) = auth.token_file.take().filter(|path| !path.ends_with('/')) {
            let file = seen(path.into());
            match token_of(&file.0) {
                Ok(token) => auth.token = Some(token.into()),
                Err(cause) if auth.token.is_none() => {
                    return Err(ClientError::TokenFile { path: file.0, cause });
                }
                Err(cause) => tracing::warn!(
                    "read token file {}: {cause}; the inline token is used",
                    file.0.display()
                ),
            }
            self.files.push(file);
        }
        match &auth.token {
            Some(token) if !is_header(token.expose_secret()) => Err(ClientError::Token),
            _ => Ok(()),
        }
    }

    /// The client.
    pub(crate) fn client(self) -> Result<Client, ClientError> {
        let Self { mut config, proxy, .. } = self;
        config.proxy_url = None;
        let proxy = match proxy {
            Some(url) => Some(Proxy::parse("the kubeconfig's proxy-url", &url)?),
            None => Environment::read().proxy_for(&config.cluster_url)?,
        };
        // Without TLS no root certificates are needed, and a host may have none: they would be looked for all the same.
        let has_tls = proxy.as_ref().is_some_and(|proxy| proxy.scheme == Scheme::Https);
        if config.cluster_url.scheme_str() == Some("http") && !has_tls {
            config.root_cert.get_or_insert_default();
        }
        let exec = config.auth_info.exec.as_ref();
        let command = exec.and_then(|exec| exec.command.clone()).unwrap_or_default();
        let client = match proxy {
            None => Client::try_from(config),
            Some(proxy) => proxied_client::client(config, &proxy),
        };
        client.map_err(|cause| match cause {
            Error::Auth(AuthError::AuthExecStart(cause)) => ClientError::Exec { command, cause },
            other => ClientError::Client(Box::new(other)),
        })
    }
}

/// Takes the proxy of the current context's cluster.
fn take_proxy(kubeconfig: &mut Kubeconfig) -> Option<String> {
    let name = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *name)?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter_mut().find(|named| named.name == *cluster)?;
    let proxy = cluster
        .cluster
        .as_mut()?
        .proxy_url
        .replace(PLACEHOLDER_PROXY.to_owned());
    proxy.filter(|url| !url.is_empty())
}

/// The token in a file, without the blanks and newlines around it that an editor adds.
fn token_of(path: &Path) -> std::io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    match text.trim() {
        "" => Err(std::io::Error::other("it is empty")),
        token if !is_header(token) => Err(std::io::Error::other(NO_HEADER)),
        token => Ok(token.to_owned()),
    }
}

/// Whether a header can have the token: kube panics where it cannot.
fn is_header(token: &str) -> bool {
    HeaderValue::try_from(token).is_ok()
}

/// The certificate and key files that a kubeconfig names.
pub(crate) fn certificate_files(kubeconfig: &Kubeconfig) -> Vec<PathBuf> {
    let users = kubeconfig.auth_infos.iter();
    let users = users.filter_map(|named| named.auth_info.as_ref());
    let users = users.flat_map(|user: &AuthInfo| [&user.client_certificate, &user.client_key]);
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let clusters = clusters.map(|cluster: &Cluster| &cluster.certificate_authority);
    users.chain(clusters).flatten().map(PathBuf::from).collect()
}
