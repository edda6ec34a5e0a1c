//! Candidate for the pool's lease with the crate kube-leader-election. It tries to acquire the lease repeatedly and
//! prints each outcome on a line: `leads HOLDER` with the holder of the response, `waits`, or `refused WHY`.

use std::time::Duration;

use anyhow::Result;
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};

const PACE: Duration = Duration::from_millis(200);
const TTL: Duration = Duration::from_secs(15);

/// Runs the candidate with this identity until the process ends.
pub async fn run(holder: String) -> Result<()> {
    let params = LeaseLockParams {
        lease_name: "yurthub".to_owned(),
        holder_id: holder,
        lease_ttl: TTL,
    };
    let lock = LeaseLock::new(kube4::Client::try_default().await?, "kube-system", params);
    loop {
        match lock.try_acquire_or_renew().await {
            Ok(LeaseLockResult::Acquired(lease)) => {
                let told = lease.spec.and_then(|spec| spec.holder_identity);
                println!("leads {}", told.unwrap_or_default());
            }
            Ok(LeaseLockResult::NotAcquired(_)) => println!("waits"),
            Err(error) => println!("refused {error}"),
        }
        tokio::time::sleep(PACE).await;
    }
}
