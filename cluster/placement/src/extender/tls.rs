//! Certificates, read again and again: they are renewed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tracing::warn;

/// How often the files are read at most.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// The files.
#[derive(Debug, Clone)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Whose certificates clients must have; `None`: anybody is served.
    pub clients: Option<PathBuf>,
}

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read {0}: {1}")]
    File(PathBuf, pem::Error),
    #[error("{0} has no certificate")]
    Empty(PathBuf),
    #[error("{0} and {1}: {2}")]
    Pair(PathBuf, PathBuf, rustls::Error),
    #[error("{0}: {1}")]
    Clients(PathBuf, VerifierBuilderError),
}

/// What connections are accepted with.
pub struct Tls {
    files: Files,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    read: Instant,
}

impl Tls {
    /// # Errors
    /// The files cannot be used.
    pub fn new(files: Files) -> Result<Self, TlsError> {
        let current = Current {
            acceptor: load(&files)?,
            read: Instant::now(),
        };
        Ok(Self {
            files,
            current: Mutex::new(current),
        })
    }

    /// With the newest certificate that can be used.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.read.elapsed() >= READ_INTERVAL {
            current.read = Instant::now();
            match load(&self.files) {
                Ok(acceptor) => current.acceptor = acceptor,
                // Written half; the next time it may be whole.
                Err(cause) => warn!("the new certificate cannot be used: {cause}"),
            }
        }
        current.acceptor.clone()
    }
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |cause| TlsError::File(path.clone(), cause);
    let all = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(failed)?;
    if all.is_empty() {
        Err(TlsError::Empty(path.clone()))
    } else {
        Ok(all)
    }
}

fn load(files: &Files) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let paired = |cause| TlsError::Pair(files.certificate.clone(), files.key.clone(), cause);
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|cause| TlsError::File(files.key.clone(), cause))?;
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.map_err(paired)?;
    let builder = match &files.clients {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|cause| TlsError::Clients(path.clone(), cause))?)
        }
    };
    let config = builder.with_single_cert(certificates(&files.certificate)?, key);
    Ok(TlsAcceptor::from(Arc::new(config.map_err(paired)?)))
}
