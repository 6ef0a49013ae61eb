//! Probes, metrics, clients that are slow or broken, and the end of leadership.

use super::*;

fn quick() -> Bounds {
    Bounds {
        connections: 8,
        headers: Duration::from_millis(500),
        idle: Duration::from_secs(4),
        body: Duration::from_millis(600),
        body_bytes: 1 << 20,
    }
}

/// Until the connection ends: what was answered, headers and all.
async fn whole(stream: &mut TcpStream, request: &[u8]) -> String {
    stream.write_all(request).await.unwrap();
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn an_instance_that_does_not_lead_closes_its_connections_and_stays_ready() {
    let served = plain().await;
    let mut kept = served.connect().await;
    let filter = request("POST", "/filter", &served.recorded("filter-args.json"));
    assert_eq!(exchange(&mut kept, &filter).await.0, 200);
    // Another instance takes the Lease.
    let (group, name) = ("coordination.k8s.io", "stelia-placement");
    let lease = served.server.object(group, "leases", "stelia-system", name);
    let mut lease = lease.unwrap();
    lease["spec"]["holderIdentity"] = "another".into();
    served.server.put(group, "leases", lease);
    until(async || served.placer.ready().is_err()).await;
    // What stands is closed, without another call on it.
    assert_eq!(kept.read(&mut [0u8; 1]).await.unwrap(), 0);
    for (verb, code) in [("filter", "200"), ("prioritize", "503"), ("bind", "200")] {
        let body = match verb {
            "bind" => text("binding-args.json"),
            _ => served.recorded("filter-args.json"),
        };
        let mut stream = served.connect().await;
        let answer = whole(&mut stream, &request("POST", &format!("/{verb}"), &body)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{answer}");
        let closes = answer.to_ascii_lowercase().contains("connection: close\r\n");
        assert!(closes && answer.contains("does not hold the Lease"), "{answer}");
    }
    assert_eq!(served.ask("GET", "/readyz", "").await.0, 200);
    assert_eq!(served.ask("GET", "/leader", "").await.0, 503);
}

#[tokio::test]
async fn it_tells_of_itself() {
    let served = plain().await;
    for path in ["/healthz", "/readyz", "/leader"] {
        assert_eq!(served.ask("GET", path, "").await, (200, "ok\n".to_owned()));
    }
    served.ask("POST", "/bind", &text("binding-args.json")).await;
    let (code, metrics) = served.ask("GET", "/metrics", "").await;
    assert_eq!(code, 200);
    for line in [
        "stelia_placement_binds_total 1",
        "stelia_placement_ready 1",
        "stelia_placement_nodes 2",
        "stelia_placement_claims{state=\"unseen\"} 1",
        "# EOF",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    assert_eq!(served.ask("GET", "/filter", "").await.0, 405);
    assert_eq!(served.ask("POST", "/metrics", "").await.0, 405);
    assert_eq!(served.ask("GET", "/else", "").await.0, 404);
}

#[tokio::test]
async fn probes_are_answered_on_an_address_of_their_own() {
    let served = served(Paths::Probes, None, Bounds::default()).await;
    for path in ["/readyz", "/leader", "/metrics"] {
        assert_eq!(served.ask("GET", path, "").await.0, 200);
    }
    assert_eq!(served.ask("POST", "/bind", &text("binding-args.json")).await.0, 404);
}

#[tokio::test]
async fn slow_and_broken_clients_cost_themselves_alone() {
    let served = served(Paths::All, None, quick()).await;
    // As many as there are places for: they say nothing, a part of a header, a part of a body.
    let mut slow = Vec::new();
    for begin in [
        "",
        "POST /fil",
        "POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"Pod\"",
    ] {
        for _ in 0..3 {
            let mut stream = TcpStream::connect(served.address).await.unwrap();
            stream.write_all(begin.as_bytes()).await.unwrap();
            slow.push(stream);
        }
    }
    // Who comes next waits until they are thrown out, and is answered.
    assert_eq!(served.ask("GET", "/healthz", "").await.0, 200);
    for mut stream in slow {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        let rest = String::from_utf8_lossy(&rest).into_owned();
        assert!(rest.is_empty() || rest.contains(" 408 "), "{rest}");
    }
    // One that asks now and then is kept; one that says nothing after its first request is not.
    let mut kept = TcpStream::connect(served.address).await.unwrap();
    for _ in 0..3 {
        assert_eq!(exchange(&mut kept, &request("GET", "/healthz", "")).await.0, 200);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    assert_eq!(kept.read(&mut [0u8; 1]).await.unwrap_or(0), 0);
    // A later request whose header is never whole ends its connection sooner than silence between requests does.
    let mut idle = TcpStream::connect(served.address).await.unwrap();
    let mut half = TcpStream::connect(served.address).await.unwrap();
    for stream in [&mut idle, &mut half] {
        assert_eq!(exchange(stream, &request("GET", "/healthz", "")).await.0, 200);
    }
    half.write_all(b"GET /healthz HT").await.unwrap();
    let (mut of_idle, mut of_half) = ([0u8; 1], [0u8; 1]);
    tokio::select! {
        _ = idle.read(&mut of_idle) => panic!("the idle one ended first"),
        read = half.read(&mut of_half) => assert_eq!(read.unwrap_or(0), 0),
    }
    // One that closes in the midst of it.
    let mut gone = TcpStream::connect(served.address).await.unwrap();
    gone.write_all(b"POST /bind HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        .await
        .unwrap();
    drop(gone);
    let (code, _) = served.ask("POST", "/filter", &" ".repeat((1 << 20) + 1)).await;
    assert_eq!(code, 413);
    let many: String = (0..200).map(|number| format!("X-{number}: y\r\n")).collect();
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let (code, _) = exchange(&mut stream, format!("GET /healthz HTTP/1.1\r\n{many}\r\n").as_bytes()).await;
    assert!(code == 431 || code == 400, "{code}");
    assert_eq!(served.ask("GET", "/healthz", "").await.0, 200);
}

#[tokio::test]
async fn at_the_end_what_was_begun_is_finished() {
    let served = plain().await;
    let delay = test_apiserver::Answer::Delay(Duration::from_millis(300));
    let fault = test_apiserver::Fault::of("create", "pods/binding", 1, delay);
    served.server.fail(fault);
    let mut stream = served.connect().await;
    let bind = request("POST", "/bind", &text("binding-args.json"));
    let bind = tokio::spawn(async move { exchange(&mut stream, &bind).await });
    until(async || served.placer.reservation_counts().binding > 0).await;
    served.ended.cancel();
    let (code, body) = bind.await.unwrap();
    assert_eq!((code, json(&body)), (200, json(&text("binding-result.json"))));
}
