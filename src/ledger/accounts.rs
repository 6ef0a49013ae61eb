//! Computes accounts and verdicts from the ledger's files, on threads that may block. There are two queues, for operators and for pods,
//! and each is processed one query at a time. A pod has at most one query in the queue, and is answered at most once in ten seconds, so
//! the queue is limited by the number of pods. The query of a caller that has disconnected is removed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use stelia_api::{Error, ErrorKind};
use stelia_kernel::clock::now_us;
use stelia_kubelet::PodUid;
use stelia_ledger::account::Account;
use stelia_ledger::entry::Entry;
use stelia_ledger::verdict::Verdict;
use tokio::sync::{Semaphore, oneshot};

use super::visible_to_pods;
use crate::engine::AccountRequest;

/// The shortest time between two answers to a pod.
const POD_ANSWER_INTERVAL: Duration = Duration::from_secs(10);
/// How long an account waits for a new reading. After that it ends with the last entry in the files.
const READING_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads accounts and verdicts from the ledger's files.
pub(crate) trait AccountReader: Send + Sync {
    /// The accounts of one pod's VM, or of all VMs, over a period in microseconds since the epoch; `until_us` 0: to the last entry.
    /// `reading` is used like an entry after the last one. Blocks.
    ///
    /// # Errors
    /// What cannot be read, and why.
    fn accounts(
        &self,
        pod: Option<&PodUid>,
        since_us: u64,
        until_us: u64,
        reading: Option<Entry>,
    ) -> Result<Vec<Account>, String>;

    /// Verify the ring. `key`: the public key in use, base64; if it is empty, heads may be signed with any key. Blocks.
    ///
    /// # Errors
    /// What cannot be read, and why.
    fn verify(&self, key: &str) -> Result<Verdict, String>;
}

/// Answers queries for accounts and verdicts.
#[derive(Clone)]
pub(super) struct AccountService {
    reader: Arc<dyn AccountReader>,
    /// One permit: the query of a pod that is being answered.
    pods: Arc<Semaphore>,
    /// One permit: the query of an operator that is being answered.
    operators: Arc<Semaphore>,
    queries: Arc<Mutex<BTreeMap<PodUid, PodQuery>>>,
}

/// The state of a pod's last query.
#[derive(Debug, Clone, Copy)]
enum PodQuery {
    /// It is in the queue, or is being answered.
    Pending,
    Answered(Instant),
}

/// The permit of a pod's query. If it is dropped before the answer is begun, the pod may query again at once.
struct QueryPermit {
    queries: Arc<Mutex<BTreeMap<PodUid, PodQuery>>>,
    pod: PodUid,
    /// Whether the answer is begun. The query then counts even if the caller has disconnected, because it takes the same time.
    is_begun: bool,
}

impl Drop for QueryPermit {
    fn drop(&mut self) {
        let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_begun {
            queries.insert(self.pod.clone(), PodQuery::Answered(Instant::now()));
        } else {
            queries.remove(&self.pod);
        }
    }
}

impl AccountService {
    pub(super) fn new(reader: Arc<dyn AccountReader>) -> Self {
        let one_permit = || Arc::new(Semaphore::new(1));
        Self {
            reader,
            pods: one_permit(),
            operators: one_permit(),
            queries: Arc::default(),
        }
    }

    /// An account as JSON. `read` lets the counters be read first. Dropping the future removes the query from the queue.
    ///
    /// # Errors
    /// `Busy` for a pod that was answered less than ten seconds ago; `Failed` with what could not be read.
    pub(super) async fn account(
        &self,
        request: AccountRequest,
        read: impl FnOnce() -> Option<oneshot::Receiver<Option<Entry>>>,
    ) -> Result<String, Error> {
        let (queue, mut permit) = match (&request.pod, request.by_pod) {
            (Some(pod), true) => (&self.pods, Some(self.admit(pod, Instant::now())?)),
            _ => (&self.operators, None),
        };
        let turn = queue.clone().acquire_owned().await;
        let turn = turn.map_err(ErrorKind::Failed.context("the ledger"))?;
        let reading = request.until_us.is_none().then(read).flatten();
        let reading = match reading {
            // Without a reading in time the account ends with the last entry.
            Some(reading) => tokio::time::timeout(READING_TIMEOUT, reading)
                .await
                .ok()
                .and_then(Result::ok)
                .flatten(),
            None => None,
        };
        let reader = self.reader.clone();
        if let Some(permit) = &mut permit {
            permit.is_begun = true;
        }
        let answer = tokio::task::spawn_blocking(move || {
            // They are held until the answer is complete, even if the caller disconnects.
            let (_turn, _permit) = (turn, permit);
            let until_us = request.until_us.unwrap_or_else(now_us);
            // An account until now includes every entry, also one that is written while the files are read. With a limit, the time up to
            // the limit would count, but the runs of the window that ends after it would not.
            let limit_us = request.until_us.unwrap_or(0);
            let accounts = reader.accounts(request.pod.as_ref(), request.since_us, limit_us, reading);
            let mut accounts = accounts.map_err(ErrorKind::Failed.context("the ledger"))?;
            for account in &mut accounts {
                account.until_us = account.until_us.max(until_us);
            }
            let Some(pod) = &request.pod else {
                return json(&accounts);
            };
            let own = accounts.into_iter().find(|account| account.vm == pod.as_str());
            let own = own.unwrap_or_else(|| Account {
                vm: pod.to_string(),
                since_us: request.since_us,
                until_us,
                ..Account::default()
            });
            json(&if request.by_pod {
                visible_to_pods::for_pod(own)
            } else {
                own
            })
        });
        answer.await.map_err(ErrorKind::Failed.context("the ledger"))?
    }

    /// The ring's verdict as JSON.
    ///
    /// # Errors
    /// `Failed` with what could not be read.
    pub(super) async fn verify(&self, key: String) -> Result<String, Error> {
        let turn = self.operators.clone().acquire_owned().await;
        let turn = turn.map_err(ErrorKind::Failed.context("the ledger"))?;
        let reader = self.reader.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            json(&reader.verify(&key).map_err(ErrorKind::Failed.context("the ledger"))?)
        });
        answer.await.map_err(ErrorKind::Failed.context("the ledger"))?
    }

    fn admit(&self, pod: &PodUid, now: Instant) -> Result<QueryPermit, Error> {
        // A panic does not leave the map half changed: each call changes it once.
        let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        queries.retain(|_, query| match query {
            PodQuery::Pending => true,
            PodQuery::Answered(at) => now.saturating_duration_since(*at) < POD_ANSWER_INTERVAL,
        });
        if queries.contains_key(pod) {
            let seconds = POD_ANSWER_INTERVAL.as_secs();
            let text = format!("the account of a VM is answered once in {seconds} s, and one question at a time");
            return Err(ErrorKind::Busy.because(text));
        }
        queries.insert(pod.clone(), PodQuery::Pending);
        Ok(QueryPermit {
            queries: self.queries.clone(),
            pod: pod.clone(),
            is_begun: false,
        })
    }
}

pub(super) fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(ErrorKind::Failed.context("the ledger as JSON"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Fake {
        /// Accounts that are being computed.
        running: AtomicUsize,
        /// The largest number that were being computed at a time.
        max_running: AtomicUsize,
        made: AtomicUsize,
    }

    impl AccountReader for Fake {
        fn accounts(
            &self,
            pod: Option<&PodUid>,
            since_us: u64,
            until_us: u64,
            _: Option<Entry>,
        ) -> Result<Vec<Account>, String> {
            self.made.fetch_add(1, Ordering::SeqCst);
            self.max_running
                .fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            self.running.fetch_sub(1, Ordering::SeqCst);
            let mut account = Account {
                vm: pod.map(PodUid::to_string).unwrap_or_default(),
                since_us,
                until_us,
                ..Account::default()
            };
            account.totals.devices = [("nvme0".to_owned(), 1)].into();
            Ok(vec![account])
        }

        fn verify(&self, _: &str) -> Result<Verdict, String> {
            Err("read /var/lib: Input/output error".to_owned())
        }
    }

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    fn request(number: u32, by_pod: bool) -> AccountRequest {
        AccountRequest {
            pod: Some(pod(number)),
            since_us: 1,
            until_us: Some(2),
            by_pod,
        }
    }

    #[tokio::test]
    async fn a_pod_asks_once_in_ten_seconds_and_pods_one_at_a_time() {
        let fake = Arc::new(Fake::default());
        let answers = AccountService::new(fake.clone());
        let asked = (1..=3).map(|number| answers.account(request(number, true), || None));
        for answer in futures_util::future::join_all(asked).await {
            assert!(!answer.unwrap().contains("nvme0"));
        }
        assert_eq!(fake.max_running.load(Ordering::SeqCst), 1, "pods at a time");
        let again = answers.account(request(1, true), || None).await.unwrap_err();
        assert_eq!(again.kind, ErrorKind::Busy);
        assert!(again.visible_to(&pod(1)).text.contains("10 s"), "its pod is told why");
        drop(answers.admit(&pod(1), Instant::now() + POD_ANSWER_INTERVAL).unwrap());
        // Operators do not wait for pods, and have no limit.
        for _ in 0..2 {
            assert!(
                answers
                    .account(request(1, false), || None)
                    .await
                    .unwrap()
                    .contains("nvme0")
            );
        }
    }

    /// Holds the pods' permit until the test drops it.
    fn blocked(answers: &AccountService) -> tokio::sync::OwnedSemaphorePermit {
        answers.pods.clone().try_acquire_owned().unwrap()
    }

    #[tokio::test]
    async fn a_pod_has_one_query_in_the_queue_however_often_it_asks_and_leaves() {
        let fake = Arc::new(Fake::default());
        let answers = AccountService::new(fake.clone());
        let first = blocked(&answers);
        let asks = |number| {
            let answers = answers.clone();
            tokio::spawn(async move { answers.account(request(number, true), || None).await })
        };
        let waits = asks(1);
        tokio::task::yield_now().await;
        // A second query is refused while the first one waits, however long that takes.
        let again = answers.account(request(1, true), || None).await.unwrap_err();
        assert_eq!(again.kind, ErrorKind::Busy);
        assert!(
            answers
                .admit(&pod(1), Instant::now() + 10 * POD_ANSWER_INTERVAL)
                .is_err()
        );
        // A pod that asks and leaves a thousand times has no place in the queue and no answer.
        for _ in 0..1_000 {
            let left = asks(2);
            tokio::task::yield_now().await;
            left.abort();
            let _ = left.await;
        }
        let other = asks(2);
        tokio::task::yield_now().await;
        drop(first);
        assert!(waits.await.unwrap().is_ok());
        assert!(other.await.unwrap().is_ok());
        assert_eq!(fake.made.load(Ordering::SeqCst), 2, "accounts that were made");
        // The interval begins with the answer, not with the query.
        assert!(answers.admit(&pod(1), Instant::now()).is_err());
    }

    #[tokio::test]
    async fn an_answer_that_is_being_made_counts_although_its_caller_has_left() {
        let fake = Arc::new(Fake::default());
        let answers = AccountService::new(fake.clone());
        let asks = answers.clone();
        let left = tokio::spawn(async move { asks.account(request(1, true), || None).await });
        while fake.made.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        left.abort();
        let again = answers.account(request(1, true), || None).await.unwrap_err();
        assert_eq!(again.kind, ErrorKind::Busy);
    }

    #[tokio::test]
    async fn an_account_of_now_waits_for_a_reading_for_a_limited_time() {
        let answers = AccountService::new(Arc::<Fake>::default());
        let now = AccountRequest {
            until_us: None,
            ..request(1, false)
        };
        let before = now_us();
        // No thread makes the reading.
        let answer = answers.account(now, || Some(oneshot::channel().1)).await.unwrap();
        let account: Account = serde_json::from_str(&answer).unwrap();
        assert!(account.until_us >= before);
        let failed = answers.verify(String::new()).await.unwrap_err();
        assert!(failed.text.contains("Input/output error"), "{failed}");
        assert!(!failed.visible_to(&pod(1)).text.contains("/var/lib"));
    }
}
