//! Cache of verdicts on disk, for a restart without the cloud.
//!
//! One small JSON file with mode 0600, replaced as a whole. Callers and reviews are keyed hashes, so the file contains
//! no credential. It holds ages and the time of its writing, so a wall clock that went back makes no verdict younger.
//! An unreadable file counts as empty.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Serialize};
use yurt_apimachinery::time::BootTime;
use yurt_runtime::Clock;

use super::answers::Answers;
use super::credential::{Hash, Key, Salt};
use super::decision::AccessVerdict;

/// Layout version of the file; files of other versions are not read.
const VERSION: u32 = 1;
/// 2023-01-01: a wall clock below this was never set.
const SET_FROM: i64 = 1_672_531_200;
/// Maximum size of a file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// State loaded at the start.
pub struct KeptAnswers {
    /// Salt of the keys.
    pub salt: Salt,
    /// Wall clock as far as it can be trusted.
    pub wall: Wall,
    /// Cached verdicts.
    pub answers: Answers,
}

/// Wall clock. While the system clock is not set, it continues from the last known time.
pub struct Wall {
    clock: Clock,
    /// Unix second at `since`.
    floor: i64,
    since: BootTime,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    version: u32,
    salt: String,
    saved_at: i64,
    answers: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    caller: String,
    question: String,
    verdict: AccessVerdict,
    /// Age at `saved_at`, seconds.
    age: u64,
    /// End of the caller's credential, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ends: Option<i64>,
}

// === impl Wall ===

impl Wall {
    fn new(clock: Clock, floor: i64) -> Self {
        let since = clock.boot();
        Self { clock, floor, since }
    }

    /// Returns the Unix time, seconds.
    #[must_use]
    pub fn now(&self) -> i64 {
        let passed = self.clock.boot().since(self.since).as_secs();
        match self.clock.unix().secs {
            shown if shown >= SET_FROM => shown,
            shown => shown.max(self.floor.saturating_add_unsigned(passed)),
        }
    }
}

// === impl KeptAnswers ===

impl KeptAnswers {
    /// Loads the file at `path`. Returns an empty state with a new salt if the file is unreadable, and logs the reason.
    #[must_use]
    pub fn load(path: &Path, clock: &Clock) -> Self {
        let why = match read(path).and_then(|text| Self::parse(&text, clock)) {
            Ok(kept) => return kept,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(error),
        };
        if let Some(error) = why {
            let path = path.display();
            tracing::warn!(%path, %error, "Failed to read cached authorizations; starting with an empty cache");
        }
        Self::nothing(clock)
    }

    /// Returns an empty state with a new salt.
    #[must_use]
    pub fn nothing(clock: &Clock) -> Self {
        let mut salt = Hash::default();
        salt[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        salt[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        Self {
            salt: Salt::new(salt),
            wall: Wall::new(clock.clone(), i64::MIN),
            answers: Answers::default(),
        }
    }

    fn parse(text: &[u8], clock: &Clock) -> io::Result<Self> {
        let document: Document = serde_json::from_slice(text)?;
        if document.version != VERSION {
            let why = format!("version {} is not {VERSION}", document.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let wall = Wall::new(clock.clone(), document.saved_at);
        let away = Duration::from_secs(u64::try_from(wall.now().saturating_sub(document.saved_at)).unwrap_or(0));
        let mut answers = Answers::default();
        for row in document.answers {
            let key = Key::from((hash(&row.caller)?, hash(&row.question)?));
            let age = Duration::from_secs(row.age).saturating_add(away);
            // Earlier versions stored tokens that the cloud did not know.
            if row.verdict != AccessVerdict::Unauthorized {
                answers.learn(key, row.ends, row.verdict, age, clock.boot());
            }
        }
        Ok(Self {
            salt: Salt::new(hash(&document.salt)?),
            wall,
            answers,
        })
    }
}

/// Encodes the file.
#[must_use]
pub fn encode(salt: &Salt, answers: &Answers, wall: &Wall, now: BootTime) -> Vec<u8> {
    let row = |(key, verdict, age, ends): (&Key, AccessVerdict, Duration, Option<i64>)| Row {
        caller: STANDARD_NO_PAD.encode(key.caller),
        question: STANDARD_NO_PAD.encode(key.question),
        verdict,
        age: age.as_secs(),
        ends,
    };
    let document = Document {
        version: VERSION,
        salt: STANDARD_NO_PAD.encode(salt.bytes()),
        saved_at: wall.now(),
        answers: answers.each(now).map(row).collect(),
    };
    serde_json::to_vec(&document).unwrap_or_default()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let why = format!("more than {FILE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(text)
}

fn hash(text: &str) -> io::Result<Hash> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let bytes = STANDARD_NO_PAD
        .decode(text)
        .map_err(|error| invalid(error.to_string()))?;
    bytes
        .try_into()
        .map_err(|_| invalid("a hash has the wrong length".to_owned()))
}

#[cfg(test)]
mod tests {
    use yurt_runtime::UnixTime;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::proxy::authorize::answers::ANSWERS_MAX;
    use crate::proxy::authorize::decision::KEPT_FOR;

    const DAY: Duration = Duration::from_secs(86_400);

    fn key(number: usize) -> Key {
        let mut hash = Hash::default();
        hash[..8].copy_from_slice(&number.to_be_bytes());
        Key::from((hash, hash))
    }

    fn one_yes(clock: &Clock) -> Vec<u8> {
        let mut kept = KeptAnswers::nothing(clock);
        kept.answers.learn(
            key(1),
            None,
            AccessVerdict::Allowed,
            Duration::from_secs(60),
            clock.boot(),
        );
        encode(&kept.salt, &kept.answers, &kept.wall, clock.boot())
    }

    #[test]
    fn end_of_a_credential_comes_back() {
        let (clock, _hand) = Clock::fake();
        let mut kept = KeptAnswers::nothing(&clock);
        let now = clock.boot();
        for (number, ends) in [None, Some(100)].into_iter().enumerate() {
            kept.answers
                .learn(key(number), ends, AccessVerdict::Allowed, Duration::ZERO, now);
        }
        let text = encode(&kept.salt, &kept.answers, &kept.wall, now);
        let again = KeptAnswers::parse(&text, &clock).unwrap();
        let ends: Vec<_> = again.answers.each(now).map(|(.., ends)| ends).collect();
        assert_eq!(ends, [None, Some(100)]);
    }

    #[test]
    fn everything_comes_back_older_by_the_time_between() {
        let (clock, hand) = Clock::fake();
        let mut kept = KeptAnswers::nothing(&clock);
        for (number, verdict) in [AccessVerdict::Allowed, AccessVerdict::Denied].into_iter().enumerate() {
            kept.answers
                .learn(key(number), None, verdict, Duration::from_secs(60), clock.boot());
        }
        let text = encode(&kept.salt, &kept.answers, &kept.wall, clock.boot());
        hand.advance(DAY);
        let again = KeptAnswers::parse(&text, &clock).unwrap();
        assert_eq!(again.salt.bytes(), kept.salt.bytes());
        for (number, verdict) in [AccessVerdict::Allowed, AccessVerdict::Denied].into_iter().enumerate() {
            let known = again.answers.known(&key(number), clock.boot()).unwrap();
            assert_eq!((known.verdict, known.age), (verdict, DAY + Duration::from_secs(60)));
        }
    }

    #[test]
    fn answers_that_are_too_old_are_not_written() {
        let (clock, hand) = Clock::fake();
        let mut kept = KeptAnswers::nothing(&clock);
        kept.answers
            .learn(key(1), None, AccessVerdict::Allowed, Duration::ZERO, clock.boot());
        hand.advance(KEPT_FOR);
        let text = encode(&kept.salt, &kept.answers, &kept.wall, clock.boot());
        assert_eq!(
            KeptAnswers::parse(&text, &clock)
                .unwrap()
                .answers
                .each(clock.boot())
                .count(),
            0
        );
    }

    #[test]
    fn clock_that_went_back_makes_nothing_younger() {
        let (clock, hand) = Clock::fake();
        let mut text = one_yes(&clock);
        let before = clock.unix().secs;
        for days in 1..=3 {
            // A board without a battery: every boot begins in 1970.
            hand.set_unix(UnixTime::default());
            let kept = KeptAnswers::parse(&text, &clock).unwrap();
            assert!(kept.wall.now() >= before, "a token that had ended has not come back");
            hand.advance(DAY);
            let known = kept.answers.known(&key(1), clock.boot()).unwrap();
            assert_eq!(known.age, days * DAY + Duration::from_secs(60));
            text = encode(&kept.salt, &kept.answers, &kept.wall, clock.boot());
        }
    }

    #[test]
    fn clock_that_was_ahead_once_ends_nothing_for_good() {
        let (clock, hand) = Clock::fake();
        let right = clock.unix();
        hand.set_unix(right + 20_000 * DAY);
        let text = one_yes(&clock);
        hand.set_unix(right);
        let kept = KeptAnswers::parse(&text, &clock).unwrap();
        assert_eq!(kept.wall.now(), right.secs, "tokens end when they say so");
        let known = kept.answers.known(&key(1), clock.boot()).unwrap();
        assert_eq!(known.age, Duration::from_secs(60));
    }

    #[test]
    fn damaged_file_is_taken_as_none() {
        let (folder, (clock, _)) = (TestDir::new(), Clock::fake());
        let path = folder.path().join("authorizations");
        let text = String::from_utf8(one_yes(&clock)).unwrap();
        std::fs::write(&path, &text).unwrap();
        assert_eq!(KeptAnswers::load(&path, &clock).answers.each(clock.boot()).count(), 1);
        for damaged in [
            String::new(),
            text[..text.len() / 2].to_owned(),
            text.replace("\"version\":1", "\"version\":2"),
            text.replace("allowed", "perhaps"),
            text.replace("\"caller\":\"", "\"caller\":\"!"),
            text.replace("\"salt\":\"", "\"salt\":\"AAAA"),
            format!("{text}{}", " ".repeat(1 << 20)),
        ] {
            std::fs::write(&path, &damaged).unwrap();
            let kept = KeptAnswers::load(&path, &clock);
            assert_eq!(kept.answers.each(clock.boot()).count(), 0, "{damaged:.80}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(KeptAnswers::load(&path, &clock).answers.each(clock.boot()).count(), 0);
    }

    #[test]
    fn full_file_is_one_that_is_read() {
        let (clock, _) = Clock::fake();
        let mut kept = KeptAnswers::nothing(&clock);
        for number in 0..ANSWERS_MAX {
            let age = Duration::from_secs(KEPT_FOR.as_secs() - 1);
            kept.answers
                .learn(key(number), None, AccessVerdict::Denied, age, clock.boot());
        }
        let text = encode(&kept.salt, &kept.answers, &kept.wall, clock.boot());
        assert!(text.len() as u64 <= FILE_BYTES_MAX, "{}", text.len());
        assert_eq!(
            KeptAnswers::parse(&text, &clock)
                .unwrap()
                .answers
                .each(clock.boot())
                .count(),
            ANSWERS_MAX
        );
    }
}
