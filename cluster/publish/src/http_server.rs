//! `/metrics`, `/healthz` and `/readyz` over HTTP, for probes and Prometheus.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::metrics;
use crate::status::{Part, Status};

/// Timeout of a client that does not finish its request.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after accept(2) failed: exhausted descriptors become free again.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Answers for ever, one connection after the other.
pub async fn serve(listener: TcpListener, status: watch::Receiver<Status>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let answer = service_fn(|request: http::Request<Incoming>| {
            let (status, kind, body) = answer(request.uri().path(), &status.borrow());
            let response = Response::builder().status(status).header(CONTENT_TYPE, kind);
            async { response.body(body) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .max_buf_size(8 << 10)
            .serve_connection(TokioIo::new(stream), answer);
        // A client that went away, or sent no HTTP: nobody is left to tell.
        let _ = tokio::time::timeout(CLIENT_TIMEOUT, connection).await;
    }
}

/// Ready as long as the API server answers and takes the object.
fn answer(path: &str, status: &Status) -> (StatusCode, &'static str, String) {
    let problem = status.problems.get(&Part::Api).or(status.problems.get(&Part::Object));
    let (code, body) = match (path, problem) {
        ("/metrics", _) => match metrics::text(status) {
            Ok(text) => return (StatusCode::OK, metrics::CONTENT_TYPE, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        ("/readyz", Some(problem)) => (StatusCode::SERVICE_UNAVAILABLE, problem.clone()),
        ("/healthz" | "/readyz", _) => (StatusCode::OK, "ok".to_owned()),
        _ => (StatusCode::NOT_FOUND, "not found".to_owned()),
    };
    (code, "text/plain; charset=utf-8", body + "\n")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn probes_and_metrics_are_answered() {
        let sender = watch::Sender::new(Status::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, sender.subscribe()));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        sender.send_modify(|status| {
            status.problems.insert(Part::Object, "koordlet also writes this".into());
        });
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        let metrics = get(address, "/metrics").await;
        assert!(metrics.contains("stelia_publish_problem{part=\"object\"} 1\n"));
        assert!(get(address, "/").await.starts_with("HTTP/1.1 404"));
        server.abort();
    }
}
