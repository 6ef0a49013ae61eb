//! Exit codes and messages where a command fails.

use super::*;
use crate::shared::daemon::Client;
use crate::tests::fixtures::block_on;

#[test]
fn what_is_not_there_has_exit_code_3() {
    for line in [["show", "nobody"], ["release", "nobody"]] {
        let failure = steliactl(no_vm().path(), &line).unwrap_err();
        assert_eq!(failure.exit_code(), 3, "{line:?}: {failure}");
    }
}

/// A daemon that has taken a call and does nothing more.
struct Hung;

#[interface(name = "io.stelia.Isolation1.Manager")]
impl Hung {
    async fn describe(&self) -> String {
        std::future::pending().await
    }

    async fn reconcile(&self, _options: OwnedDict) -> OwnedDict {
        std::future::pending().await
    }
}

#[test]
fn a_silent_daemon_is_not_waited_for_and_the_cure_is_named() {
    block_on(async {
        let patience = std::time::Duration::from_millis(200);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = connection::Builder::unix_stream(ours)
            .server(Guid::generate())
            .p2p()
            .serve_at(MANAGER_PATH, Hung)
            .build();
        let client = connection::Builder::unix_stream(theirs).p2p().build();
        let (server, client) = tokio::join!(server, client);
        let client = Client::new(client.unwrap(), patience).await.unwrap();
        let failure = client.describe().await.unwrap_err();
        assert!(failure.to_string().contains("0.2 s"), "{failure}");
        assert!(failure.fix().unwrap().contains("systemctl status steliad"));
        // It lives, and a pass takes its time.
        let waited = tokio::time::timeout(patience * 4, client.reconcile(crate::shared::daemon::Mode::Change)).await;
        assert!(waited.is_err(), "{waited:?}");
        drop(server);
    });
}

#[test]
fn what_a_caller_lacks_is_named() {
    let refused = |name: &'static str, text: &str| {
        let name = zbus::names::OwnedErrorName::try_from(name).unwrap();
        let call = zbus::message::Message::method_call("/", "Rebind").build(&()).unwrap();
        Failure::from(zbus::Error::MethodError(name, Some(text.to_owned()), call)).to_string()
    };
    let lacks = |text| refused("io.stelia.Isolation1.Error.NotPermitted", text);
    assert_eq!(
        lacks("polkit does not permit io.stelia.Isolation1.maintain: authentication is needed"),
        "Permission denied: run as root, or grant io.stelia.Isolation1.maintain (polkit)"
    );
    let silent =
        "polkit cannot be asked about io.stelia.Isolation1.maintain: org.freedesktop.DBus.Error.ServiceUnknown: x";
    assert_eq!(lacks(silent), format!("Permission denied: run as root ({silent})"));
    let stopped = refused("org.freedesktop.DBus.Error.NoReply", "Message recipient disconnected");
    assert_eq!(stopped, Failure::NotRunning.to_string());
    assert!(
        refused("org.freedesktop.DBus.Error.AccessDenied", "Rejected").starts_with("Permission denied: run as root")
    );
}

#[test]
fn a_refusal_is_the_daemons_own_text() {
    let node = fixtures::folder(&[(
        "etc/stelia/steliad.toml",
        "cpu-source = \"steliad\"\nreserved-cpus = \"0\"\n",
    )]);
    let root = node.path().display().to_string();
    let failure = steliactl(node.path(), &["--root", &root, "plan", "--cpus", "1"]).unwrap_err();
    assert_eq!(failure, Failure::Other("only an administrator asks".to_owned()));
    assert_eq!(failure.exit_code(), 1);
}
