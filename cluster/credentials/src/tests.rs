use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use stelia_cpus::text::excerpt::with_causes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// Answers every connection with this text, and keeps how each began.
async fn listen(answer: &'static str) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut text, mut buffer) = (Vec::new(), [0; 1024]);
            while !text.windows(4).any(|end| end == b"\r\n\r\n") {
                let read = stream.read(&mut buffer).await.unwrap();
                assert_ne!(read, 0);
                text.extend(&buffer[..read]);
            }
            kept.lock().unwrap().push(String::from_utf8_lossy(&text).into_owned());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (port, seen)
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";

/// A kubeconfig of one cluster and one user.
fn write(folder: &Path, cluster: &str, user: &str) -> PathBuf {
    let path = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: k, cluster: {{{cluster}}}}}]\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn client(kubeconfig: &Path) -> Result<Client, ClientError> {
    // A host may have no certificates of its own.
    let adjust = |config: &mut Config| {
        config.root_cert.get_or_insert_default();
    };
    connect(&Source::Kubeconfig(kubeconfig.to_owned()), None, adjust)
}

/// Why a client cannot be made of a kubeconfig.
fn refused(kubeconfig: &Path) -> String {
    client(kubeconfig).err().unwrap().to_string()
}

/// The tokens that were sent, one for each request.
fn tokens(seen: &Arc<Mutex<Vec<String>>>) -> Vec<String> {
    let token = |head: &String| {
        head.lines()
            .find_map(|line| Some(line.strip_prefix("authorization: Bearer ")?.to_owned()))
    };
    seen.lock()
        .unwrap()
        .iter()
        .map(|head| token(head).unwrap_or_default())
        .collect()
}

async fn ask(client: &Client) -> Result<String, String> {
    let request = http::Request::get("/api").body(Vec::new()).unwrap();
    client.request_text(request).await.map_err(|cause| with_causes(&cause))
}

/// What a proxy at this port is asked for the server.
async fn asked(scheme: &str, user: &str, server: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (port, seen) = listen(OK).await;
    let cluster = format!("server: '{server}', proxy-url: '{scheme}://{user}127.0.0.1:{port}'");
    let answer = ask(&client(&write(folder.path(), &cluster, "token: secret")).unwrap()).await;
    drop(answer);
    let seen = seen.lock().unwrap();
    seen[0].clone()
}

#[tokio::test]
async fn a_server_is_reached_by_connect_and_a_failure_names_the_proxy() {
    for (server, named) in [
        ("https://k8s.corp:6443", "k8s.corp:6443"),
        ("http://k8s.corp", "k8s.corp:80"),
    ] {
        let head = asked("http", "me:pass@", server).await;
        assert!(head.starts_with(&format!("CONNECT {named} HTTP/1.1\r\n")), "{head}");
        assert!(head.contains("Basic bWU6cGFzcw==") && !head.contains("secret"));
    }
    let folder = tempfile::tempdir().unwrap();
    let (port, _) = listen("HTTP/1.1 403 Forbidden\r\n\r\n").await;
    let cluster = format!("server: 'https://k8s.corp', proxy-url: 'http://me:pass@127.0.0.1:{port}'");
    let client = client(&write(folder.path(), &cluster, "")).unwrap();
    let cause = ask(&client).await.unwrap_err();
    assert!(cause.contains(&format!("through the proxy http://127.0.0.1:{port}: ")));
    assert!(!cause.contains("pass"), "{cause}");
}

#[tokio::test]
async fn a_socks_proxy_is_told_the_name_and_the_port_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    for (server, port) in [
        ("http://k8s.corp", 80_u16),
        ("http://k8s.corp:8080", 8080),
        ("https://k8s.corp", 443),
        ("https://k8s.corp:6443", 6443),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let cluster = format!("server: '{server}', proxy-url: 'socks5://me:pass@{at}'");
        let client = client(&write(folder.path(), &cluster, "token: secret")).unwrap();
        let proxy = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Its method: user and password.
            let (mut greeting, mut user) = ([0; 3], [0; 9]);
            stream.read_exact(&mut greeting).await.unwrap();
            stream.write_all(&[5, 2]).await.unwrap();
            stream.read_exact(&mut user).await.unwrap();
            stream.write_all(&[1, 0]).await.unwrap();
            let mut request = [0; 15];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
            if server.starts_with("http:") {
                let mut asked = [0; 1024];
                assert_ne!(stream.read(&mut asked).await.unwrap(), 0);
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
            (greeting, user, request)
        };
        let (answer, (greeting, user, request)) = tokio::join!(ask(&client), proxy);
        assert_eq!((greeting, &user), ([5, 1, 2], b"\x01\x02me\x04pass"));
        assert_eq!(&request[..13], b"\x05\x01\x00\x03\x08k8s.corp");
        assert_eq!(&request[13..], port.to_be_bytes());
        assert_eq!(answer.is_ok(), server.starts_with("http:"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_reached_is_named_with_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (proxy, server) in [
        ("http", "http://k8s"),
        ("http", "https://k8s"),
        ("https", "https://k8s"),
        ("socks5", "https://k8s"),
    ] {
        let cluster = format!("server: '{server}', proxy-url: '{proxy}://{closed}'");
        let client = client(&write(folder.path(), &cluster, "")).unwrap();
        let cause = ask(&client).await.unwrap_err();
        assert!(cause.contains(&format!("through the proxy {proxy}://{closed}: ")));
        assert!(cause.contains("Connection refused"), "{cause}");
    }
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = "server: 'https://k8s', proxy-url: 'ftp://me:pass@proxy'";
    let cause = refused(&write(folder.path(), cluster, ""));
    assert!(cause.contains("proxy-url") && !cause.contains("pass"), "{cause}");
}

#[tokio::test]
async fn a_token_file_is_trimmed_has_precedence_and_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (port, seen) = listen(OK).await;
    let server = format!("server: 'http://127.0.0.1:{port}'");
    let path = write(folder.path(), &server, "token: inline, tokenFile: token");
    let token = folder.path().join("token");
    // The inline one is for when the file cannot be read.
    ask(&client(&path).unwrap()).await.unwrap();
    std::fs::write(&token, "first\n").unwrap();
    let (made, mut files) = Files::client(Source::Kubeconfig(path.clone())).unwrap();
    ask(&made).await.unwrap();
    assert!(files.renewed(false).is_none());
    std::fs::write(&token, " second\r\n").unwrap();
    ask(&files.renewed(false).unwrap().unwrap()).await.unwrap();
    std::fs::write(&token, "\n").unwrap();
    ask(&files.renewed(false).unwrap().unwrap()).await.unwrap();
    assert_eq!(tokens(&seen), ["inline", "first", "second", "inline"]);
    write(folder.path(), &server, "tokenFile: token");
    let named = |why| format!("read token file {}: {why}", token.display());
    assert_eq!(refused(&path), named("it is empty"));
    std::fs::remove_file(&token).unwrap();
    assert!(refused(&path).starts_with(&named("No such file")));
}

#[tokio::test]
async fn a_kubeconfig_that_is_replaced_or_refused_is_read_again_and_one_half_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (port, seen) = listen(OK).await;
    let server = format!("server: 'http://127.0.0.1:{port}'");
    let path = write(folder.path(), &server, "token: first");
    let (made, mut files) = Files::client(Source::Kubeconfig(path.clone())).unwrap();
    ask(&made).await.unwrap();
    assert!(files.renewed(false).is_none(), "nothing changed");
    write(folder.path(), &server, "token: the-second");
    ask(&files.renewed(false).unwrap().unwrap()).await.unwrap();
    assert!(files.renewed(false).is_none());
    ask(&files.renewed(true).unwrap().unwrap()).await.unwrap();
    // Half written: it is tried again.
    std::fs::write(&path, "clusters: [").unwrap();
    let cause = files.renewed(false).unwrap().err().unwrap();
    assert!(cause.contains("kubeconfig"), "{cause}");
    write(folder.path(), &server, "token: third");
    ask(&files.renewed(false).unwrap().unwrap()).await.unwrap();
    assert_eq!(tokens(&seen), ["first", "the-second", "the-second", "third"]);
}

#[tokio::test]
async fn a_token_that_no_header_can_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (port, seen) = listen(OK).await;
    let server = format!("server: 'http://127.0.0.1:{port}'");
    let token = folder.path().join("token");
    std::fs::write(&token, "two\nlines\n").unwrap();
    let refused = |user| refused(&write(folder.path(), &server, user));
    let cause = refused("tokenFile: token, token: ''");
    assert!(cause.starts_with(&format!("read token file {}: ", token.display())));
    let cause = refused(r#"token: "secret\n""#);
    assert!(cause.contains("token cannot be used") && !cause.contains("secret"));
    // Empty values are none.
    let path = write(folder.path(), &server, "tokenFile: '', token: ''");
    ask(&client(&path).unwrap()).await.unwrap();
    assert!(!seen.lock().unwrap()[0].contains("authorization"));
}

#[tokio::test]
async fn an_exec_plugin_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: no-such-plugin, interactiveMode: Never}";
    let path = write(folder.path(), "server: 'http://127.0.0.1:1'", exec);
    assert!(refused(&path).starts_with("run the exec plugin no-such-plugin: No such file"));
}

#[tokio::test]
async fn the_end_of_an_exec_plugins_certificate_is_known_with_and_without_a_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let pem = |name| std::fs::read_to_string(format!("../placement/tests/data/tls/client.{name}")).unwrap();
    let credential = format!(
        "{{apiVersion: client.authentication.k8s.io/v1, kind: ExecCredential, status: {{\
         expirationTimestamp: '2030-01-02T03:04:05Z', clientCertificateData: {:?}, clientKeyData: {:?}}}}}",
        pem("crt"),
        pem("key")
    );
    let file = folder.path().join("credential");
    std::fs::write(&file, credential).unwrap();
    let user = format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: cat, args: [{}], interactiveMode: Never}}",
        file.display()
    );
    for proxy in ["", ", proxy-url: 'http://127.0.0.1:1'"] {
        let path = write(folder.path(), &format!("server: 'http://127.0.0.1:1'{proxy}"), &user);
        let (_, files) = Files::client(Source::Kubeconfig(path)).unwrap();
        assert_eq!(files.valid_until.unwrap().to_string(), "2030-01-02T03:04:05Z");
    }
}

#[test]
fn certificates_that_a_kubeconfig_names_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let text = "clusters: [{name: k, cluster: {server: 'https://h', certificate-authority: /etc/ca.crt}}]\n\
                users: [{name: u, user: {client-certificate: current.pem, client-key: current.pem}}]\n";
    std::fs::write(&path, text).unwrap();
    let link = folder.path().join("current.pem");
    let named = config::certificate_files(&kube::config::Kubeconfig::read_from(&path).unwrap());
    assert_eq!(named, [link.clone(), link.clone(), "/etc/ca.crt".into()]);

    // As kubelet renews its certificate: a link that is set to another file.
    for name in ["a.pem", "b.pem"] {
        std::fs::write(folder.path().join(name), "certificate").unwrap();
    }
    std::os::unix::fs::symlink("a.pem", &link).unwrap();
    let mut files = Files {
        source: Source::Kubeconfig(path),
        read: vec![(link.clone(), stamp(&link))],
        valid_until: None,
    };
    assert!(files.renewed(false).is_none());
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("b.pem", &link).unwrap();
    assert!(files.has_changed());
    assert!(files.renewed(false).is_some());
}
