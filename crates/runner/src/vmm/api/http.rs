//! One request over a UNIX socket, on a connection of its own, so that an abandoned request or an incomplete answer does not affect
//! the next request.

use std::path::Path;
use std::pin::{Pin, pin};

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::Builder;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use stelia_cpus::text::excerpt::with_causes;
use tokio::net::UnixStream;

/// Limit of an answer's body, in bytes. Cloud Hypervisor's `vm.info` has some thousand, and some hundred for each device.
const MAX_BODY: usize = 4 << 20;
/// Limit of the status line and the header fields, in bytes.
const MAX_HEAD: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HttpFailure {
    /// Nothing was sent.
    Connect(String),
    /// The request may have been carried out.
    Exchange(String),
}

/// Sends a request, without a body if `body` is empty. It has no time limit; the caller sets one.
pub(super) async fn request(socket: &Path, method: Method, path: &str, body: &str) -> Result<HttpAnswer, HttpFailure> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|error| HttpFailure::Connect(error.to_string()))?;
    exchange(stream, method, path, body)
        .await
        .map_err(HttpFailure::Exchange)
}

async fn exchange(stream: UnixStream, method: Method, path: &str, body: &str) -> Result<HttpAnswer, String> {
    let mut request = hyper::Request::builder()
        .method(method)
        .uri(path)
        // HTTP/1.1 requires it.
        .header(HOST, "localhost")
        .header(ACCEPT, "application/json");
    if !body.is_empty() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let request = request.body(body.to_owned()).map_err(|error| error.to_string())?;
    let handshake = Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = handshake.map_err(text)?;
    let mut answer = pin!(async move {
        let response = sender.send_request(request).await.map_err(text)?;
        let status = response.status();
        let body = read(response.into_body()).await?;
        Ok(HttpAnswer { status, body })
    });
    // The connection reads and writes. When the server closes it, the data that was read before has not been collected yet.
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        _ = pin!(connection) => {}
    }
    answer.await
}

async fn read(mut body: Incoming) -> Result<Vec<u8>, String> {
    let mut read = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(data) = frame.map_err(text)?.into_data() {
            read.extend_from_slice(&data);
        }
        if read.len() > MAX_BODY {
            return Err(format!("an answer of more than {MAX_BODY} bytes"));
        }
    }
    Ok(read)
}

/// The error with its causes, which are not in hyper's own text.
fn text(error: hyper::Error) -> String {
    with_causes(&error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    /// A server that reads a request's head, answers this, byte by byte up to a length that allows it, and closes the
    /// connection unless it `stays`.
    async fn answered(answer: Vec<u8>, stays: bool) -> Result<HttpAnswer, HttpFailure> {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let piece = if answer.len() < 10_000 { 1 } else { 10_000 };
            for piece in answer.chunks(piece) {
                if stream.write_all(piece).await.is_err() {
                    break;
                }
            }
            if stays {
                std::future::pending::<()>().await;
            }
            String::from_utf8(head).unwrap()
        });
        let answer = request(&socket, Method::GET, "/x", "").await;
        server.abort();
        answer
    }

    fn ok(status: u16, body: &str) -> Result<HttpAnswer, HttpFailure> {
        Ok(HttpAnswer {
            status: StatusCode::from_u16(status).unwrap(),
            body: body.into(),
        })
    }

    #[rstest]
    #[case("HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n", ok(204, ""))]
    #[case("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", ok(200, "{}"))]
    #[case(
        "HTTP/1.0 200 \r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
        ok(200, "{}")
    )]
    #[case("HTTP/1.1 400 Bad Request\r\nContent-Length: 1\r\n\r\nx", ok(400, "x"))]
    #[case(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ok(200, "{}")
    )]
    #[tokio::test]
    async fn an_answer_is_its_status_and_its_body(
        #[case] answer: &str,
        #[case] expected: Result<HttpAnswer, HttpFailure>,
        #[values(false, true)] stays: bool,
    ) {
        assert_eq!(answered(answer.into(), stays).await, expected);
    }

    #[rstest]
    #[case::none("", "connection closed")]
    #[case::half_a_head("HTTP/1.1 204 No Con", "connection closed")]
    #[case::half_a_body("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "body")]
    #[case::no_http("{\"QMP\":{}}\r\n\r\n", "invalid HTTP")]
    #[tokio::test]
    async fn half_an_answer_is_an_error_with_its_cause(#[case] answer: &str, #[case] cause: &str) {
        match answered(answer.into(), false).await {
            Err(HttpFailure::Exchange(text)) => assert!(text.contains(cause), "{text}"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn an_oversized_answer_is_not_read_to_its_end() {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", MAX_BODY * 100);
        let body = [head.as_bytes(), &vec![b' '; MAX_BODY + 200_000]].concat();
        let expected = format!("an answer of more than {MAX_BODY} bytes");
        assert_eq!(answered(body, true).await, Err(HttpFailure::Exchange(expected)));
        let head = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(MAX_HEAD * 4));
        match answered(head.into(), true).await {
            Err(HttpFailure::Exchange(text)) => assert!(text.contains("message head is too large"), "{text}"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn where_nobody_listens_nothing_was_sent() {
        let dir = tempfile::tempdir().unwrap();
        let answer = request(&dir.path().join("none"), Method::GET, "/", "").await;
        assert!(matches!(answer, Err(HttpFailure::Connect(_))), "{answer:?}");
    }
}
