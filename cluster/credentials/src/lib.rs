#![doc = include_str!("../README.md")]

mod config;
mod proxied_client;
mod proxy;
#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::{Client, Config};

pub use config::{ClientError, Source};
use config::{LoadedConfig, StampedFile, stamp};
pub use proxy::ProxyError;

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
    is_refused: bool,
}

impl RenewedClient {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            credentials: None,
            is_refused: false,
        }
    }

    /// Where a new client comes from.
    pub fn renewed_by(&mut self, credentials: impl Credentials + 'static) {
        self.credentials = Some(Box::new(credentials));
    }

    /// The API server answered 401: the credentials are read again before the next request.
    pub fn refused(&mut self) {
        self.is_refused = true;
    }

    /// The client with the credentials of this moment. Where new ones cannot be read the old client goes on, and its failures are told.
    pub fn current(&mut self) -> &Client {
        let refused = std::mem::take(&mut self.is_refused);
        let credentials = self.credentials.as_mut();
        match credentials.and_then(|credentials| credentials.renewed(refused)) {
            Some(Ok(client)) => self.client = client,
            Some(Err(cause)) => tracing::warn!("the credentials cannot be read: {cause}"),
            None => {}
        }
        &self.client
    }
}

/// A client that is made once, of a program that soon ends; `adjust` changes what it is made of.
///
/// # Errors
/// The files cannot be read, or no client can be made of them.
pub fn connect(
    source: &Source,
    context: Option<&str>,
    adjust: impl FnOnce(&mut Config),
) -> Result<Client, ClientError> {
    let mut found = LoadedConfig::read(source, context)?;
    adjust(&mut found.config);
    found.client()
}

/// Credentials in files.
#[derive(Debug)]
pub struct Files {
    source: Source,
    read: Vec<StampedFile>,
    /// Set if an exec plugin made the client's credentials.
    valid_until: Option<Timestamp>,
}

impl Files {
    /// The first client, and what renews it.
    ///
    /// # Errors
    /// The files cannot be read, or no client can be made of them.
    pub fn client(source: Source) -> Result<(Client, Self), ClientError> {
        let mut files = Self {
            source,
            read: Vec::new(),
            valid_until: None,
        };
        let client = files.read()?;
        Ok((client, files))
    }

    fn read(&mut self) -> Result<Client, ClientError> {
        let mut found = LoadedConfig::read(&self.source, None)?;
        found.config.connect_timeout = Some(CONNECT_TIMEOUT);
        // Trying again is decided by whoever sends the request.
        found.config.default_retry = false;
        self.read = std::mem::take(&mut found.files);
        let client = found.client()?;
        self.valid_until = *client.valid_until();
        Ok(client)
    }

    fn has_changed(&self) -> bool {
        let expired = self.valid_until.is_some_and(|until| until <= Timestamp::now());
        expired || self.read.iter().any(|(path, read)| stamp(path) != *read)
    }
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
