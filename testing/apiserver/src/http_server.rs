//! The server on a socket, and the paths by which a test in another process tells it what to do.

use std::io;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::server::Server;
use crate::service::{Body, Closed, json as answer_json};

/// A `POST /control`: any of these.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Order {
    /// No request is answered for this many seconds.
    down: Option<f64>,
    /// Objects as they are: group, plural, object.
    put: Vec<(String, String, Value)>,
}

/// Serves connections until the listener fails. `/control` is not the API's: `GET` has the counts, `POST` takes an order.
///
/// # Errors
/// accept(2)'s.
pub async fn serve(server: Server, listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let server = server.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let server = server.clone();
                async move { answer(&server, request).await }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            // A client that closes, or a fault that closes, ends this connection only, and is no error of the server.
            http.timer(TokioTimer::new());
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(server: &Server, request: Request<Incoming>) -> Result<Response<Body>, Closed> {
    match request.uri().path() {
        "/control" => Ok(control(server, request).await),
        _ => server.answer(request).await,
    }
}

async fn control(server: &Server, request: Request<Incoming>) -> Response<Body> {
    if *request.method() == Method::GET {
        let counts = server.counts().into_iter().map(|((verb, resource), count)| {
            let mut row = json!(count);
            row["verb"] = verb.into();
            row["resource"] = resource.into();
            row
        });
        let counts: Vec<Value> = counts.collect();
        return text(StatusCode::OK, &json!({"counts": counts}));
    }
    let body = match Limited::new(request.into_body(), 64 << 20).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return text(StatusCode::BAD_REQUEST, &json!({"error": error.to_string()})),
    };
    let order = serde_json::from_slice(&body).map_err(|error| error.to_string());
    match order.and_then(|order| obey(server, order)) {
        Ok(()) => text(StatusCode::OK, &json!({})),
        Err(error) => text(StatusCode::BAD_REQUEST, &json!({"error": error})),
    }
}

fn obey(server: &Server, order: Order) -> Result<(), String> {
    for (group, plural, object) in order.put {
        server.put(&group, &plural, object);
    }
    if let Some(seconds) = order.down {
        server.down(Duration::try_from_secs_f64(seconds).map_err(|error| format!("down: {error}"))?);
    }
    Ok(())
}

fn text(code: StatusCode, value: &Value) -> Response<Body> {
    answer_json(code, Bytes::from(value.to_string())).0
}
