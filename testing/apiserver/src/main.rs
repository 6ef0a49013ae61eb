//! The server as a program, for tests in other processes.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use clap::Parser;
use test_apiserver::{Server, serve};
use tokio::net::TcpListener;

/// An API server in memory, for tests: HTTP without TLS, on loopback alone
#[derive(Parser)]
#[command(name = "test-apiserver", version, max_term_width = 100)]
struct Options {
    /// Address and port; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    ensure!(
        options.listen.ip().is_loopback(),
        "{}: not a loopback address",
        options.listen
    );
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listen on {}", options.listen))?;
    println!("ready: http://{}", listener.local_addr().context("local address")?);
    serve(Server::default(), listener).await.context("accept a connection")
}
