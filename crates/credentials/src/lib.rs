#![doc = include_str!("../README.md")]

pub mod backoff;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use kube::{Client, Config};

/// Until a connection stands; a request as a whole has its own limit.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes clients anew when what they are made of changes.
pub trait Credentials: Send {
    /// A new client, or why there is none; `None` while the old one is as good. `refused` says that the API server answered 401.
    fn renewed(&mut self, refused: bool) -> Option<Result<Client, String>>;
}

/// A client that is made anew when its credentials change or are not accepted any more.
pub struct RenewedClient {
    client: Client,
    credentials: Option<Box<dyn Credentials>>,
}

impl RenewedClient {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            credentials: None,
        }
    }

    /// Where a new client comes from.
    pub fn renewed_by(&mut self, credentials: impl Credentials + 'static) {
        self.credentials = Some(Box::new(credentials));
    }

    /// The client with the credentials of this moment. `refused` says that the API server answered 401 since this was asked last. Where new ones cannot be
    /// read the old client goes on, and its failures are told.
    pub fn current(&mut self, refused: bool) -> &Client {
        match self
            .credentials
            .as_mut()
            .and_then(|credentials| credentials.renewed(refused))
        {
            Some(Ok(client)) => self.client = client,
            Some(Err(cause)) => tracing::warn!("the credentials cannot be read: {cause}"),
            None => {}
        }
        &self.client
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{}: {cause}", path.display())]
    Kubeconfig {
        path: PathBuf,
        cause: Box<kube::config::KubeconfigError>,
    },
    #[error("no kubeconfig is given, and this is not a pod with a service account: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    #[error("no kubeconfig is given: {0}")]
    Inferred(#[from] Box<kube::config::InferConfigError>),
    #[error("{0}")]
    Client(#[from] Box<kube::Error>),
}

fn client(mut config: Config) -> Result<Client, Box<kube::Error>> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // Trying again is decided by whoever sends the request.
    config.default_retry = false;
    // Without TLS no root certificates are needed, and a host may have none: they would be looked for all the same.
    if config.cluster_url.scheme_str() == Some("http") {
        config.root_cert.get_or_insert_default();
    }
    Client::try_from(config).map_err(Box::new)
}

/// What a file was when it was read: its content may be another one when any of these is.
type Stamp = (u64, u64, i64, i64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let now = path.metadata().ok()?;
    Some((now.dev(), now.ino(), now.mtime(), now.mtime_nsec(), now.size()))
}

/// Credentials in files.
#[derive(Debug)]
pub struct Files {
    /// None: the pod's service account.
    kubeconfig: Option<PathBuf>,
    read: Vec<(PathBuf, Option<Stamp>)>,
    /// Set if an exec plugin made the client's credentials.
    valid_until: Option<Timestamp>,
}

impl Files {
    /// The first client, and what renews it.
    ///
    /// # Errors
    /// The files cannot be read, or no client can be made of them.
    pub fn client(kubeconfig: Option<PathBuf>) -> Result<(Client, Self), ClientError> {
        let mut files = Self {
            kubeconfig,
            read: Vec::new(),
            valid_until: None,
        };
        let client = files.read()?;
        Ok((client, files))
    }

    /// As kubectl finds the API server, or by the pod's service account: `$KUBECONFIG`, `~/.kube/config`. It is found once only.
    ///
    /// # Errors
    /// There is nothing of these, or no client can be made of it.
    pub async fn found() -> Result<Client, ClientError> {
        let config = Config::infer().await.map_err(Box::new)?;
        Ok(client(config)?)
    }

    fn read(&mut self) -> Result<Client, ClientError> {
        let config = match &self.kubeconfig {
            None => Config::incluster()?,
            Some(path) => {
                let of = |cause| ClientError::Kubeconfig {
                    path: path.clone(),
                    cause: Box::new(cause),
                };
                // Before they are read: what is written meanwhile is read again.
                let mut seen = vec![(path.clone(), stamp(path))];
                let kubeconfig = Kubeconfig::read_from(path).map_err(of)?;
                seen.extend(named(&kubeconfig).into_iter().map(|path| {
                    let stamp = stamp(&path);
                    (path, stamp)
                }));
                let config = Config::try_from(kubeconfig).map_err(of)?;
                self.read = seen;
                config
            }
        };
        let client = client(config)?;
        self.valid_until = *client.valid_until();
        Ok(client)
    }

    fn has_changed(&self) -> bool {
        let expired = self.valid_until.is_some_and(|until| until <= Timestamp::now());
        expired || self.read.iter().any(|(path, read)| stamp(path) != *read)
    }
}

/// The files that clusters and users of a kubeconfig are in.
fn named(kubeconfig: &Kubeconfig) -> Vec<PathBuf> {
    let users = kubeconfig
        .auth_infos
        .iter()
        .filter_map(|named| named.auth_info.as_ref());
    let users = users.flat_map(|user: &AuthInfo| [&user.client_certificate, &user.client_key]);
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let clusters = clusters.map(|cluster: &Cluster| &cluster.certificate_authority);
    users.chain(clusters).flatten().map(PathBuf::from).collect()
}

impl Credentials for Files {
    fn renewed(&mut self, refused: bool) -> Option<Result<Client, String>> {
        if !refused && !self.has_changed() {
            return None;
        }
        tracing::info!("the credentials are read again");
        Some(self.read().map_err(|error| error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_that_a_kubeconfig_names_are_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let text = "clusters: [{name: k, cluster: {server: 'https://h', certificate-authority: /etc/ca.crt}}]\n\
                    users: [{name: u, user: {client-certificate: current.pem, client-key: current.pem}}]\n";
        std::fs::write(&path, text).unwrap();
        let link = folder.path().join("current.pem");
        let named = named(&Kubeconfig::read_from(&path).unwrap());
        assert_eq!(named, [link.clone(), link.clone(), "/etc/ca.crt".into()]);

        // As kubelet renews its certificate: a link that is set to another file.
        for name in ["a.pem", "b.pem"] {
            std::fs::write(folder.path().join(name), "certificate").unwrap();
        }
        std::os::unix::fs::symlink("a.pem", &link).unwrap();
        let mut files = Files {
            kubeconfig: Some(path),
            read: vec![(link.clone(), stamp(&link))],
            valid_until: None,
        };
        assert!(files.renewed(false).is_none());
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("b.pem", &link).unwrap();
        assert!(files.has_changed());
        assert!(files.renewed(false).is_some());
    }
}
