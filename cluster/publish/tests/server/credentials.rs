//! Credentials that change or are not accepted: over a real connection on loopback, because kube makes the header of them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use stelia_credentials::{Credentials, Files, Source};
use stelia_publish::{Publisher, Reading};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::*;

/// Answers every request with 200, and keeps the credentials of each.
async fn listen() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut text, mut buffer) = (String::new(), [0; 1024]);
            while !text.contains("\r\n\r\n") {
                let read = stream.read(&mut buffer).await.unwrap();
                assert_ne!(read, 0);
                text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
            }
            let header = text.lines().find_map(|line| line.strip_prefix("authorization: "));
            kept.lock().unwrap().push(header.unwrap_or("none").to_owned());
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            stream.write_all(answer).await.unwrap();
        }
    });
    (port, seen)
}

fn write(path: &Path, port: u16, user: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nusers: [{{name: u, user: {user}}}]\n"
    );
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

async fn ask(client: &kube::Client) {
    let request = http::Request::get("/api").body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap();
}

#[tokio::test]
async fn a_kubeconfig_that_is_replaced_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (port, seen) = listen().await;
    let path = folder.path().join("kubeconfig");
    write(&path, port, "{token: first}");
    let (client, mut files) = Files::client(Source::Kubeconfig(path.clone())).unwrap();
    ask(&client).await;
    assert!(files.renewed(false).is_none(), "nothing changed");
    write(&path, port, "{token: second}");
    ask(&files.renewed(false).unwrap().unwrap()).await;
    assert!(files.renewed(false).is_none());
    ask(&files.renewed(true).unwrap().unwrap()).await;
    assert_eq!(
        *seen.lock().unwrap(),
        ["Bearer first", "Bearer second", "Bearer second"]
    );

    // Half written: the old client goes on, and it is tried again.
    std::fs::write(&path, "clusters: [").unwrap();
    let error = files.renewed(false).unwrap().err().unwrap();
    assert!(error.contains("kubeconfig"), "{error}");
    write(&path, port, "{token: third}");
    ask(&files.renewed(false).unwrap().unwrap()).await;
    assert_eq!(seen.lock().unwrap().last().unwrap(), "Bearer third");
}

#[tokio::test]
async fn a_token_file_is_named_with_what_is_wrong_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let Err(error) = Files::client(Source::Kubeconfig(path.clone())) else {
        panic!("there is none");
    };
    assert!(error.to_string().contains("kubeconfig"), "{error}");
    write(&path, 1, "{tokenFile: missing}");
    let Err(error) = Files::client(Source::Kubeconfig(path)) else {
        panic!("there is none");
    };
    assert!(error.to_string().contains("missing"), "{error}");
}

/// Gives a client whenever one is asked for, and counts.
struct Counted(Vec<kube::Client>, Arc<Mutex<Vec<bool>>>);

impl Credentials for Counted {
    fn renewed(&mut self, refused: bool) -> Option<Result<kube::Client, String>> {
        self.1.lock().unwrap().push(refused);
        refused.then(|| self.0.pop().ok_or("no such file".into()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_publisher_whose_token_expired_goes_on_with_the_new_one() {
    let expired = |_: &Seen| status(401, "Unauthorized", "Unauthorized", json!([]));
    let ((old, before), (new, after)) = (server(expired), server(healthy));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let publisher = Publisher::new(old, options()).with_credentials(Counted(vec![new], asked.clone()));
    let running = Running::of(publisher, Reading::of(told(6)));
    pass(0.5).await;
    assert_eq!((before.all().len(), after.objects().len()), (1, 1));
    assert_eq!(asked.lock().unwrap().iter().filter(|refused| **refused).count(), 1);
    assert!(running.status.borrow().problems.is_empty());
}
