//! Numbers of generations and positions: limits for those received from others, and the next number.
//!
//! A generation identifies one history of the cloud. Numbers come in steps: the step counts, and the rest below it is
//! random. The rest distinguishes histories that began at the same step. Coordinators order numbers, so a number
//! without a successor would shut out every later leader.

use yurt_apimachinery::ResourceVersion;

/// Generations are numbered in steps of this size.
const STEP: u64 = 1_000_000;
/// Maximum number of steps by which a new number may exceed the one held. Each restore of a cloud from a backup is one
/// step.
const STEPS_MAX: u64 = 1_000;
/// Exclusive upper bound of generation numbers: 9 billion steps.
pub const GENERATION_END: u64 = 1 << 53;
/// Exclusive upper bound of positions received from others. An etcd that commits a million writes each second gets
/// there in 285 years, and microseconds since 1970 in 2255.
pub const POSITION_END: ResourceVersion = ResourceVersion(1 << 53);

/// Number of a generation after `last`, with a rest from `random`; `None` after the last step. Equal numbers identify
/// one history. Two hubs that detect different rollbacks choose different numbers, except with a chance of one in a
/// million.
#[must_use]
pub fn next(last: u64, random: u64) -> Option<u64> {
    let number = (last / STEP)
        .checked_add(1)?
        .checked_mul(STEP)?
        .checked_add(random % STEP)?;
    (number < GENERATION_END).then_some(number)
}

/// True if a copy of generation `held` may change to generation `told`: it is one of the next steps.
#[must_use]
pub fn may_follow(held: u64, told: u64) -> bool {
    told < GENERATION_END && told / STEP <= (held / STEP).saturating_add(STEPS_MAX)
}

/// True if `told` is of an earlier step than `held`: as a rule, the history of `held` began after that of `told`.
#[must_use]
pub fn is_earlier(told: u64, held: u64) -> bool {
    told / STEP < held / STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_that_began_at_the_same_step_have_no_order() {
        assert!(is_earlier(0, STEP) && is_earlier(2 * STEP - 1, 2 * STEP));
        assert!(!is_earlier(STEP, STEP + 5) && !is_earlier(STEP + 5, STEP) && !is_earlier(STEP, 0));
    }

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
