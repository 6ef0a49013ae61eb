//! tmp
use std::time::Duration;
use tokio::net::UnixStream;
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
#[derive(Clone, Default)]
pub struct Gate;
impl Gate { pub fn admit(&self, s: UnixStream, _k: &str) -> std::io::Result<UnixStream> { Ok(s) } }
