//! Certificates of the server and of its clients.

use tokio_rustls::client::TlsStream;

use super::*;

fn files(clients: bool) -> Files {
    Files {
        certificate: data("tls/server.crt"),
        key: data("tls/server.key"),
        clients: clients.then(|| data("tls/ca.crt")),
    }
}

fn certificates(name: &str) -> Vec<CertificateDer<'static>> {
    let read = CertificateDer::pem_file_iter(data(name)).unwrap();
    read.map(Result::unwrap).collect()
}

async fn connect(served: &Served, with_certificate: bool) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates("tls/ca.crt"));
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = if with_certificate {
        let key = PrivateKeyDer::from_pem_file(data("tls/client.key")).unwrap();
        builder
            .with_client_auth_cert(certificates("tls/client.crt"), key)
            .unwrap()
    } else {
        builder.with_no_client_auth()
    };
    let name = ServerName::try_from("stelia-placement.stelia-system.svc").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, served.connect().await)
        .await
}

async fn over_tls(served: &Served, with_certificate: bool) -> std::io::Result<()> {
    let mut stream = connect(served, with_certificate).await?;
    // In TLS 1.3 the client's certificate is refused after the client's handshake is done.
    stream.write_all(&request("GET", "/healthz", "")).await?;
    let mut first = [0u8; 1];
    match stream.read(&mut first).await? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

#[tokio::test]
async fn over_tls_the_same() {
    let served = served(Paths::All, Some(Tls::new(files(false)).unwrap()), Bounds::default()).await;
    let mut stream = connect(&served, false).await.unwrap();
    let (code, body) = exchange(&mut stream, &request("POST", "/filter", &text("filter-args.json"))).await;
    assert_eq!((code, json(&body)), (200, json(&text("filter-result.json"))));
    // What does not speak TLS is closed, and costs the others nothing.
    let mut broken = served.connect().await;
    broken.write_all(&request("GET", "/healthz", "")).await.unwrap();
    let mut rest = Vec::new();
    let _ = broken.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("200"), "{rest:?}");
    let (code, _) = exchange(&mut stream, &request("GET", "/healthz", "")).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn who_has_no_certificate_of_the_authority_is_not_answered() {
    let served = served(Paths::All, Some(Tls::new(files(true)).unwrap()), Bounds::default()).await;
    assert!(over_tls(&served, false).await.is_err());
    assert!(over_tls(&served, true).await.is_ok());
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let [mut certificate, mut key, mut clients] = [true; 3].map(files);
    certificate.certificate = "/nonexistent".into();
    key.key = data("tls/client.key");
    clients.clients = Some(data("README.md"));
    for (files, named) in [
        (certificate, "/nonexistent"),
        (key, "client.key"),
        (clients, "README.md"),
    ] {
        let error = Tls::new(files).map(drop).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}
