//! Certificates of the server and of its clients.

use super::*;

fn files(clients: bool) -> Files {
    Files {
        certificate: data("tls/server.crt"),
        key: data("tls/server.key"),
        clients: clients.then(|| data("tls/ca.crt")),
    }
}

fn connector(with_certificate: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let ca: Vec<_> = CertificateDer::pem_file_iter(data("tls/ca.crt"))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    roots.add_parsable_certificates(ca);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = if with_certificate {
        let own = CertificateDer::pem_file_iter(data("tls/client.crt"))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        builder
            .with_client_auth_cert(own, PrivateKeyDer::from_pem_file(data("tls/client.key")).unwrap())
            .unwrap()
    } else {
        builder.with_no_client_auth()
    };
    TlsConnector::from(Arc::new(config))
}

async fn over_tls(served: &Served, with_certificate: bool) -> std::io::Result<()> {
    let stream = TcpStream::connect(served.address).await?;
    let name = ServerName::try_from("stelia-placement.stelia-system.svc").unwrap();
    let mut stream = connector(with_certificate).connect(name, stream).await?;
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
    let mut stream = {
        let stream = TcpStream::connect(served.address).await.unwrap();
        let name = ServerName::try_from("stelia-placement.stelia-system.svc").unwrap();
        connector(false).connect(name, stream).await.unwrap()
    };
    let (code, body) = exchange(&mut stream, &request("POST", "/filter", &text("filter-args.json"))).await;
    assert_eq!((code, json(&body)), (200, json(&text("filter-result.json"))));
    // What does not speak TLS is closed, and costs the others nothing.
    let mut broken = TcpStream::connect(served.address).await.unwrap();
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
    let wrong = |change: fn(&mut Files)| {
        let mut files = files(true);
        change(&mut files);
        Tls::new(files).map(drop).unwrap_err().to_string()
    };
    let error = wrong(|files| files.certificate = "/nonexistent".into());
    assert!(error.contains("/nonexistent"), "{error}");
    let error = wrong(|files| files.key = data("tls/client.key"));
    assert!(error.contains("client.key"), "{error}");
    let error = wrong(|files| files.clients = Some(data("README.md")));
    assert!(error.contains("README.md"), "{error}");
}
