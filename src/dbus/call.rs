//! What every method call has in common: the caller is admitted, the time and the answer are counted, and the call ends
//! when its caller disconnects.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use stelia_api::{Error, ErrorKind};
use zbus::Connection;
use zbus::fdo::DBusProxy;
use zbus::message::Header;

use super::caller::{Caller, EntryPoint};
use crate::caller_rights::Operation;
use crate::engine::Handle;

pub(super) struct Call<'a> {
    pub(super) engine: &'a Handle,
    pub(super) entry_point: &'a EntryPoint,
    pub(super) connection: &'a Connection,
    pub(super) header: &'a Header<'a>,
}

impl Call<'_> {
    /// Do the work if the caller may do `operation`, count the call, and restrict an error to what the caller may read.
    ///
    /// zbus lets a call go on whose connection is closed. Here it ends where it waits, and does not try again or ask the
    /// engine for more. That is safe at any point: a command that the engine has begun goes on to its end there.
    ///
    /// # Errors
    /// The caller may not do `operation`, or the work's own.
    pub(super) async fn answer<T, F>(&self, operation: Operation, work: impl FnOnce(Caller) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let began = Instant::now();
        let admitted = async {
            let _under_way = self.entry_point.begin(self.header)?;
            let admit = self
                .entry_point
                .admit(self.engine, self.connection, self.header, operation);
            work(admit.await?).await
        };
        // The caller has left: this is never read, and not counted as an answer.
        let left = || ErrorKind::Failed.because("the caller disconnected");
        let answer = tokio::select! {
            biased;
            answer = while_connected(self.connection, admitted) => answer.ok_or_else(left)?,
            () = leaves(self.connection, self.header) => return Err(left()),
        };
        // The journal has the whole error by now.
        let answer = answer.map_err(|error| self.engine.restrict(error));
        if let Err(error) = &answer {
            self.note(operation, error);
        }
        let refused = answer.as_ref().err().map(|error| error.kind);
        self.engine.metrics().answered(operation, refused, began.elapsed());
        answer
    }
}

impl Call<'_> {
    /// Tell the pod's owner of a refusal that keeps its VM from having its CPUs.
    fn note(&self, operation: Operation, refusal: &Error) {
        let what = match operation {
            Operation::Register => "registration refused",
            Operation::Attach => "vCPUs not attached",
            _ => return,
        };
        self.engine.note_refusal(what, refusal, || {
            let process = self.entry_point.peer(self.engine).ok().flatten();
            let only = process.as_ref().and_then(|(_, peer)| peer.pod().cloned());
            let caller = Caller {
                only,
                process,
                is_root: false,
            };
            caller.pod_name(self.engine)
        });
    }
}

/// Do the work as long as the connection is open; `None` when it was closed.
async fn while_connected<T>(connection: &Connection, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = connection.closed() => None,
    }
}

/// How long a call on the bus takes before its caller is watched: most end sooner, and watching costs calls to the bus.
const SLOW: Duration = Duration::from_secs(1);

/// Wait until the sender has left the bus. A peer of the runner socket has no name: its connection is closed.
async fn leaves(connection: &Connection, header: &Header<'_>) {
    let left = async {
        let Some(sender) = header.sender() else {
            return std::future::pending().await;
        };
        tokio::time::sleep(SLOW).await;
        let bus = DBusProxy::new(connection).await?;
        let mut owners = bus
            .receive_name_owner_changed_with_args(&[(0, sender.as_str())])
            .await?;
        // It may have left before this listened.
        if bus.name_has_owner(sender.into()).await? {
            owners.next().await;
        }
        Ok::<(), zbus::Error>(())
    };
    // If the bus does not answer, the caller counts as waiting.
    if left.await.is_err() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use zbus::connection::Builder;
    use zbus::{Guid, interface};

    use super::super::test_bus::PrivateBus;
    use super::*;

    /// Says when a call of it begins and when it is over, whichever way.
    struct Slow {
        news: mpsc::UnboundedSender<&'static str>,
    }

    struct AtItsEnd(mpsc::UnboundedSender<&'static str>);

    impl Drop for AtItsEnd {
        fn drop(&mut self) {
            let _ = self.0.send("over");
        }
    }

    #[interface(name = "io.stelia.Test")]
    impl Slow {
        async fn wait(&self, #[zbus(connection)] connection: &Connection) {
            let work = async {
                let _end = AtItsEnd(self.news.clone());
                let _ = self.news.send("begun");
                std::future::pending().await
            };
            while_connected(connection, work).await.unwrap_or_default()
        }
    }

    #[tokio::test]
    async fn a_caller_that_left_takes_its_call_with_it() {
        let (news, mut told) = mpsc::unbounded_channel();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let server = Builder::unix_stream(ours).server(Guid::generate()).p2p();
        let server = server.serve_at("/t", Slow { news }).build();
        let (server, client) = tokio::join!(server, Builder::unix_stream(theirs).p2p().build());
        let (_server, client) = (server.unwrap(), client.unwrap());
        let call = client.call_method(None::<&str>, "/t", Some("io.stelia.Test"), "Wait", &());
        tokio::select! {
            answer = call => panic!("{answer:?}"),
            news = told.recv() => assert_eq!(news, Some("begun")),
        }
        client.close().await.unwrap();
        let over = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
        assert_eq!(over, Ok(Some("over")));
    }

    /// Says when a call begins, and when its caller has left the bus.
    struct Left(mpsc::UnboundedSender<&'static str>);

    #[interface(name = "io.stelia.Test")]
    impl Left {
        async fn wait(&self, #[zbus(connection)] connection: &Connection, #[zbus(header)] header: Header<'_>) {
            let _ = self.0.send("begun");
            leaves(connection, &header).await;
            let _ = self.0.send("left");
        }
    }

    #[tokio::test]
    async fn a_caller_that_leaves_the_bus_is_noticed_and_one_that_waits_is_not() {
        let bus = PrivateBus::start();
        let (daemon, client) = (bus.connect().await, bus.connect().await);
        let (news, mut told) = mpsc::unbounded_channel();
        daemon.object_server().at("/t", Left(news)).await.unwrap();
        let name = daemon.unique_name().unwrap().clone();
        // An object that joins a connection which is open already may miss a call that comes at once.
        loop {
            let call = client.call_method(Some(name.clone()), "/t", Some("io.stelia.Test"), "Wait", &());
            tokio::select! {
                answer = call => panic!("{answer:?}"),
                news = told.recv() => break assert_eq!(news, Some("begun")),
                () = tokio::time::sleep(Duration::from_secs(2)) => {}
            }
        }
        let waits = tokio::time::timeout(SLOW + Duration::from_millis(500), async {
            while told.recv().await == Some("begun") {}
        });
        assert!(waits.await.is_err());
        client.close().await.unwrap();
        let left = async { while told.recv().await == Some("begun") {} };
        tokio::time::timeout(Duration::from_secs(60), left).await.unwrap();
    }
}
