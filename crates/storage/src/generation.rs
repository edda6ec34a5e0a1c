//! Numbers of generations and positions: which are taken from others, and which comes next.
//!
//! A generation stands for one history of the cloud. Numbers come in steps: the step counts, the rest below it is drawn by chance
//! and tells histories apart that began at the same step. Coordinators order numbers, so one that nothing could follow would shut
//! out every later leader.

use yurt_apimachinery::ResourceVersion;

/// Generations are numbered in steps of this.
const STEP: u64 = 1_000_000;
/// Steps that a new number may be above the one held: each time that a cloud comes back from a backup is one.
const STEPS_MAX: u64 = 1_000;
/// Numbers of generations are below this: 9 billion steps.
pub const GENERATION_END: u64 = 1 << 53;
/// Positions that are taken from others are below this. An etcd that commits a million writes each second gets there in 285
/// years, and microseconds since 1970 in 2255.
pub const POSITION_END: ResourceVersion = ResourceVersion(1 << 53);

/// Number of a generation after `last`, with a rest by `random`; `None` after the last step. Two hubs that notice different
/// rollbacks choose different numbers, but for one chance in a million: equal numbers stand for one history.
#[must_use]
pub fn next(last: u64, random: u64) -> Option<u64> {
    let number = (last / STEP)
        .checked_add(1)?
        .checked_mul(STEP)?
        .checked_add(random % STEP)?;
    (number < GENERATION_END).then_some(number)
}

/// Whether a copy of generation `held` may go over to generation `told`: it is one of the next steps.
#[must_use]
pub fn may_follow(held: u64, told: u64) -> bool {
    told < GENERATION_END && told / STEP <= (held / STEP).saturating_add(STEPS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_number_is_above_the_last_one_until_there_is_none() {
        for last in [0, 1, STEP - 1, STEP, 7 * STEP + 3, GENERATION_END - 3 * STEP] {
            for random in [0, 1, STEP, u64::MAX] {
                let next = next(last, random).expect("there are steps left");
                assert!(next > last && may_follow(last, next), "{next} after {last}");
                assert_eq!(next / STEP, last / STEP + 1);
            }
        }
        for last in [GENERATION_END - 1, GENERATION_END, u64::MAX - STEP, u64::MAX] {
            assert_eq!(next(last, 7), None, "after {last}");
        }
    }

    #[test]
    fn numbers_that_leap_are_not_taken() {
        for (held, told, is_taken) in [
            (0, 0, true),
            (0, STEPS_MAX * STEP + STEP - 1, true),
            (0, STEPS_MAX * STEP + STEP, false),
            (5 * STEP, (5 + STEPS_MAX) * STEP, true),
            (5 * STEP, (6 + STEPS_MAX) * STEP, false),
            (u64::MAX, 3, true),
            (u64::MAX, u64::MAX, false),
            (GENERATION_END - 1, GENERATION_END, false),
        ] {
            assert_eq!(may_follow(held, told), is_taken, "{told} after {held}");
        }
    }
}
