//! Accounts and verdicts, made of the files and off every thread that has other work. Operators' one at a time, and pods' likewise: of
//! those each pod has one question at most, and is answered once in ten seconds. So as many wait as there are pods, in the order in which
//! they came; one whose caller has left gives its place up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use stelia_api::{Error, ErrorKind};
use stelia_kubelet::PodUid;
use stelia_ledger::account::Account;
use stelia_ledger::entry::Entry;
use stelia_ledger::verdict::Verdict;
use tokio::sync::{Semaphore, oneshot};

use super::restrict;
use crate::engine::{AccountRequest, now_us};

/// The shortest time between two answers to a pod.
const EVERY: Duration = Duration::from_secs(10);
/// How long a fresh look is waited for: the disk may be slow, and what is there is an answer too.
const FRESH: Duration = Duration::from_secs(2);

/// What entries are read from.
pub(crate) trait Shelf: Send + Sync {
    /// The accounts of one VM, or of all, by pod UID, and of a time, microseconds since the epoch. `now` comes behind what is there.
    /// Blocks.
    ///
    /// # Errors
    /// What cannot be read, and why.
    fn accounts(
        &self,
        pod: Option<&PodUid>,
        since_us: u64,
        until_us: u64,
        now: Option<Entry>,
    ) -> Result<Vec<Account>, String>;

    /// `key`: the public key in use, base64; where it is empty heads are those of any key. Blocks.
    ///
    /// # Errors
    /// As above.
    fn verify(&self, key: &str) -> Result<Verdict, String>;
}

#[derive(Clone)]
pub(super) struct Answers {
    shelf: Arc<dyn Shelf>,
    pods: Arc<Semaphore>,
    operators: Arc<Semaphore>,
    asked: Arc<Mutex<BTreeMap<PodUid, Asked>>>,
}

/// What became of a pod's last question.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// It waits, or is answered now.
    Waits,
    Answered(Instant),
}

/// A pod's one question. If it is dropped before the answer is begun, it counts as not asked.
struct Admitted {
    asked: Arc<Mutex<BTreeMap<PodUid, Asked>>>,
    pod: PodUid,
    /// The answer is being made. It counts even if nobody waits for it any more, because it costs the same.
    is_made: bool,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match self.is_made {
            true => asked.insert(self.pod.clone(), Asked::Answered(Instant::now())),
            false => asked.remove(&self.pod),
        };
    }
}

impl Answers {
    pub(super) fn new(shelf: Arc<dyn Shelf>) -> Self {
        let one = || Arc::new(Semaphore::new(1));
        Self {
            shelf,
            pods: one(),
            operators: one(),
            asked: Arc::default(),
        }
    }

    /// `look` has the counters read first. Whoever drops this before its turn comes has given the turn up.
    ///
    /// # Errors
    /// `Busy` for a pod that asks again too soon; `Failed` with what could not be read.
    pub(super) async fn account(
        &self,
        request: AccountRequest,
        look: impl FnOnce() -> Option<oneshot::Receiver<Option<Entry>>>,
    ) -> Result<String, Error> {
        let (queue, mut admitted) = match (&request.pod, request.by_pod) {
            (Some(pod), true) => (&self.pods, Some(self.admit(pod, Instant::now())?)),
            _ => (&self.operators, None),
        };
        let turn = queue.clone().acquire_owned().await;
        let turn = turn.map_err(ErrorKind::Failed.context("the ledger"))?;
        let taken = request.until_us.is_none().then(look).flatten();
        let now = match taken {
            // In time or not: the files have what was read before.
            Some(taken) => tokio::time::timeout(FRESH, taken)
                .await
                .ok()
                .and_then(Result::ok)
                .flatten(),
            None => None,
        };
        let shelf = self.shelf.clone();
        if let Some(admitted) = &mut admitted {
            admitted.is_made = true;
        }
        let made = tokio::task::spawn_blocking(move || {
            // Held here and not by the caller, who may leave before.
            let (_turn, _admitted) = (turn, admitted);
            let until_us = request.until_us.unwrap_or_else(now_us);
            let accounts = shelf.accounts(request.pod.as_ref(), request.since_us, until_us, now);
            let accounts = accounts.map_err(ErrorKind::Failed.context("the ledger"))?;
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
            json(&if request.by_pod { restrict::for_pod(own) } else { own })
        });
        made.await.map_err(ErrorKind::Failed.context("the ledger"))?
    }

    /// # Errors
    /// `Failed` with what could not be read.
    pub(super) async fn verify(&self, key: String) -> Result<String, Error> {
        let turn = self.operators.clone().acquire_owned().await;
        let turn = turn.map_err(ErrorKind::Failed.context("the ledger"))?;
        let shelf = self.shelf.clone();
        let made = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            json(&shelf.verify(&key).map_err(ErrorKind::Failed.context("the ledger"))?)
        });
        made.await.map_err(ErrorKind::Failed.context("the ledger"))?
    }

    fn admit(&self, pod: &PodUid, now: Instant) -> Result<Admitted, Error> {
        // Each call changes it once.
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|_, what| match what {
            Asked::Waits => true,
            Asked::Answered(at) => now.saturating_duration_since(*at) < EVERY,
        });
        if asked.contains_key(pod) {
            let seconds = EVERY.as_secs();
            let text = format!("the account of a VM is answered once in {seconds} s, and one question at a time");
            return Err(ErrorKind::Busy.because(text));
        }
        asked.insert(pod.clone(), Asked::Waits);
        Ok(Admitted {
            asked: self.asked.clone(),
            pod: pod.clone(),
            is_made: false,
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
        now: AtomicUsize,
        most: AtomicUsize,
        all: AtomicUsize,
    }

    impl Shelf for Fake {
        fn accounts(
            &self,
            pod: Option<&PodUid>,
            since_us: u64,
            until_us: u64,
            _: Option<Entry>,
        ) -> Result<Vec<Account>, String> {
            self.all.fetch_add(1, Ordering::SeqCst);
            self.most
                .fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            self.now.fetch_sub(1, Ordering::SeqCst);
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
        let answers = Answers::new(fake.clone());
        let asked = (1..=3).map(|number| answers.account(request(number, true), || None));
        for answer in futures_util::future::join_all(asked).await {
            assert!(!answer.unwrap().contains("nvme0"));
        }
        assert_eq!(fake.most.load(Ordering::SeqCst), 1, "pods at a time");
        let again = answers.account(request(1, true), || None).await.unwrap_err();
        assert_eq!(again.kind, ErrorKind::Busy);
        assert!(again.visible_to(&pod(1)).text.contains("10 s"), "its pod is told why");
        drop(answers.admit(&pod(1), Instant::now() + EVERY).unwrap());
        // An operator waits for no pod, and asks as often as he likes.
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

    /// As many questions as are answered one after the other, until the test says so.
    fn blocked(answers: &Answers) -> tokio::sync::OwnedSemaphorePermit {
        answers.pods.clone().try_acquire_owned().unwrap()
    }

    #[tokio::test]
    async fn a_pod_has_one_question_in_the_queue_however_often_it_asks_and_leaves() {
        let fake = Arc::new(Fake::default());
        let answers = Answers::new(fake.clone());
        let first = blocked(&answers);
        let asks = |number| {
            let answers = answers.clone();
            tokio::spawn(async move { answers.account(request(number, true), || None).await })
        };
        let waits = asks(1);
        tokio::task::yield_now().await;
        // It waits for long, and is not answered: that no time passes is not what keeps a second one out.
        let again = answers.account(request(1, true), || None).await.unwrap_err();
        assert_eq!(again.kind, ErrorKind::Busy);
        assert!(answers.admit(&pod(1), Instant::now() + 10 * EVERY).is_err());
        // Another pod that asks and leaves a thousand times takes no place and no time.
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
        assert_eq!(fake.all.load(Ordering::SeqCst), 2, "accounts that were made");
        // From the answer on it is counted, not from the question.
        assert!(answers.admit(&pod(1), Instant::now()).is_err());
    }

    #[tokio::test]
    async fn an_answer_that_is_being_made_counts_although_its_caller_has_left() {
        let fake = Arc::new(Fake::default());
        let answers = Answers::new(fake.clone());
        let asks = answers.clone();
        let left = tokio::spawn(async move { asks.account(request(1, true), || None).await });
        while fake.all.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        left.abort();
        let again = answers.account(request(1, true), || None).await.unwrap_err();
        assert_eq!(again.kind, ErrorKind::Busy);
    }

    #[tokio::test]
    async fn an_account_of_now_is_made_after_a_fresh_look_and_without_one_in_time_too() {
        let answers = Answers::new(Arc::<Fake>::default());
        let now = AccountRequest {
            until_us: None,
            ..request(1, false)
        };
        let before = now_us();
        // Nobody takes it.
        let answer = answers.account(now, || Some(oneshot::channel().1)).await.unwrap();
        let account: Account = serde_json::from_str(&answer).unwrap();
        assert!(account.until_us >= before);
        let failed = answers.verify(String::new()).await.unwrap_err();
        assert!(failed.text.contains("Input/output error"), "{failed}");
        assert!(!failed.visible_to(&pod(1)).text.contains("/var/lib"));
    }
}
