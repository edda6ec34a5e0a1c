//! The coordinators' own data: ConfigMaps that are written all the time, at any coordinator. Acknowledged writes stay,
//! resourceVersions never go back, and temporary refusals have a `Retry-After`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use yurt_runtime::TaskGroup;
use yurt_testbed::api::{Api, Refused, key_and_version};
use yurt_testbed::wait_for::wait_for;
use yurt_workspace::Stopwatch;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Objects that are written in turn.
const NAMES: usize = 8;
/// Pause between two exchanges.
const PACE: Duration = Duration::from_millis(50);
/// A coordinator that is paused does not answer; then the next one is tried.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);

/// Acknowledged writes, and violations. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct LocalWrites(Arc<Mutex<Written>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Written {
    /// Last acknowledged state of each object.
    acknowledged: [Option<Stand>; NAMES],
    /// The highest resourceVersion of an acknowledged write.
    highest: u64,
    count: u64,
    refused: u64,
    longest: Duration,
    violations: Vec<String>,
}

/// An object as it was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stand {
    /// The number of the write.
    mark: u64,
    version: u64,
}

/// Totals for the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Writes that were acknowledged.
    pub(super) count: u64,
    /// Exchanges that failed.
    pub(super) refused: u64,
    /// The longest time from one acknowledged write to the next.
    pub(super) longest: Duration,
    pub(super) violations: Vec<String>,
}

// === impl LocalWrites ===

impl LocalWrites {
    /// Starts to write. `apis` are the coordinators; together they are one server.
    pub(super) fn start(tasks: &TaskGroup, apis: Vec<Api>) -> Self {
        let this = Self::default();
        let (writer, token) = (this.clone(), tasks.token());
        tasks.spawn("local writes", async move {
            let _ = token.run_until_cancelled(writer.write(&apis)).await;
        });
        this
    }

    /// Forgets acknowledged writes after the coordinator lost its data; only later ones have to stay.
    pub(super) fn forget(&self) {
        let mut written = self.lock();
        written.acknowledged = Default::default();
        written.highest = 0;
    }

    /// Waits until one more write is acknowledged.
    pub(super) async fn goes_on(&self, limit: Duration) -> Result<()> {
        let before = self.lock().count;
        let more = async || {
            ensure!(self.lock().count > before, "none was acknowledged");
            Ok(())
        };
        wait_for(limit, "local writes go on", more).await.map(drop)
    }

    pub(super) fn totals(&self) -> Totals {
        let written = self.lock();
        Totals {
            count: written.count,
            refused: written.refused,
            longest: written.longest,
            violations: written.violations.clone(),
        }
    }

    /// Reads at one coordinator and writes at the next, endlessly.
    async fn write(&self, apis: &[Api]) {
        let mut since = Stopwatch::start();
        for mark in 1.. {
            let turn = usize::try_from(mark).unwrap_or(0);
            let (name, at, then) = (turn % NAMES, &apis[turn % apis.len()], &apis[(turn + 1) % apis.len()]);
            let exchange = async {
                let present = self.read(at, name).await?;
                self.replace(then, name, mark, present).await
            };
            match tokio::time::timeout(ANSWER_LIMIT, exchange)
                .await
                .context("no answer")
                .flatten()
            {
                Ok(()) => {
                    let mut written = self.lock();
                    written.longest = written.longest.max(since.elapsed());
                    since = Stopwatch::start();
                }
                Err(error) => self.lock().refusal(&error),
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Reads the object; `None` if there is none.
    async fn read(&self, api: &Api, name: usize) -> Result<Option<Value>> {
        // Writes acknowledged before the request must be in the answer.
        let before = self.lock().acknowledged[name];
        let found = match api.get(&path(name)).await {
            Ok(object) => Some(object),
            Err(error) if yurt_testbed::api::refusal(&error) == Some(404) => None,
            Err(error) => return Err(error),
        };
        let stand = found.as_ref().map_or_else(Stand::default, Stand::of);
        self.lock().read(name, before, stand);
        Ok(found)
    }

    async fn replace(&self, api: &Api, name: usize, mark: u64, present: Option<Value>) -> Result<()> {
        let data = json!({"mark": mark.to_string()});
        let answer = match present {
            // With its resourceVersion: a late write of an earlier attempt must not come after a later one.
            Some(mut object) => {
                object["data"] = data;
                api.replace(&path(name), &object).await?
            }
            None => {
                let metadata = json!({"name": name_of(name)});
                let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
                api.create(MAPS, &object).await?
            }
        };
        self.lock().acknowledge(name, Stand::of(&answer));
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name_of(name: usize) -> String {
    format!("chaos-local-{name}")
}

fn path(name: usize) -> String {
    format!("{MAPS}/{}", name_of(name))
}

// === impl Written ===

impl Written {
    fn acknowledge(&mut self, name: usize, stand: Stand) {
        if stand.version <= self.highest {
            let highest = self.highest;
            let violation = format!("a local write got resourceVersion {} after {highest}", stand.version);
            self.violations.push(violation);
        }
        self.highest = stand.version;
        self.acknowledged[name] = Some(stand);
        self.count += 1;
    }

    /// Checks a read: `before` was acknowledged before the request, and `stand` is the answer.
    fn read(&mut self, name: usize, before: Option<Stand>, stand: Stand) {
        // The coordinator may have lost it in the meantime.
        let acknowledged = self.acknowledged[name].and(before);
        if let Some(acknowledged) = acknowledged
            && (stand.mark < acknowledged.mark || stand.version < acknowledged.version)
        {
            let object = name_of(name);
            self.violations.push(format!(
                "{object}: {acknowledged:?} was acknowledged, {stand:?} was read"
            ));
        }
    }

    /// Checks a refusal. A temporary one needs a `Retry-After`; a conflict is the late write of an earlier attempt.
    fn refusal(&mut self, error: &anyhow::Error) {
        self.refused += 1;
        let Some(refused) = error.downcast_ref::<Refused>() else {
            return;
        };
        let is_told = match refused.code {
            409 => true,
            429 | 500.. => refused.retry_after,
            _ => false,
        };
        if !is_told {
            self.violations.push(format!(
                "refused with an unexpected status, or without Retry-After: {refused}"
            ));
        }
    }
}

// === impl Stand ===

impl Stand {
    fn of(object: &Value) -> Self {
        let mark = object["data"]["mark"].as_str().and_then(|mark| mark.parse().ok());
        Self {
            mark: mark.unwrap_or(0),
            version: key_and_version(object).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand(mark: u64, version: u64) -> Stand {
        Stand { mark, version }
    }

    #[test]
    fn what_was_acknowledged_has_to_stay_until_the_disk_is_lost() {
        let local_writes = LocalWrites::default();
        local_writes.lock().acknowledge(0, stand(1, 10));
        let before = local_writes.lock().acknowledged[0];
        // The late write of an attempt without an answer.
        local_writes.lock().read(0, before, stand(2, 11));
        assert_eq!(local_writes.totals().violations, [""; 0]);
        local_writes.lock().read(0, before, Stand::default());
        local_writes.lock().acknowledge(1, stand(3, 9));
        assert_eq!(local_writes.totals().violations.len(), 2, "lost, and backwards");
        local_writes.forget();
        local_writes.lock().read(0, before, Stand::default());
        local_writes.lock().acknowledge(1, stand(4, 5));
        assert_eq!(local_writes.totals().violations.len(), 2);
    }

    #[test]
    fn refusals_say_when_to_come_again() {
        let mut written = Written::default();
        let mut refuse = |code, retry_after| {
            written.refusal(&Refused::sample(code, retry_after).into());
            written.violations.len()
        };
        assert_eq!(refuse(503, true), 0);
        assert_eq!(refuse(409, false), 0);
        assert_eq!(refuse(503, false), 1);
        assert_eq!(refuse(403, false), 2);
        written.refusal(&anyhow::anyhow!("connection refused"));
        assert_eq!((written.refused, written.violations.len()), (5, 2));
    }
}
