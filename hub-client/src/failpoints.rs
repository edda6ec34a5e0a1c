//! Failpoints of the hub: guards that a build with feature `failpoints` can switch off, to prove that the pool's other
//! guards catch the fault. `YURT_FAILPOINTS=leader-clock-check=off` permits two leaders.

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("feature failpoints is for test builds: use profile dev or quick");

/// Failpoint that lets a leader act past the end of its lease.
#[cfg(feature = "failpoints")]
const LEADER_CLOCK_CHECK: &str = "leader-clock-check";

/// Names of the hub's failpoints in this build.
#[cfg(feature = "failpoints")]
pub const NAMES: &[&str] = &[LEADER_CLOCK_CHECK];
/// Names of the hub's failpoints in this build: none.
#[cfg(not(feature = "failpoints"))]
pub const NAMES: &[&str] = &[];

/// True if the leader must not check its own clock.
#[cfg(feature = "failpoints")]
pub(crate) fn is_leader_clock_check_off() -> bool {
    yurt_runtime::failpoints::value(LEADER_CLOCK_CHECK).is_some_and(|value| value == "off")
}

/// False: this build has no failpoints.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn is_leader_clock_check_off() -> bool {
    false
}
