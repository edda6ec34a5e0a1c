//! Answers to callers and reviews at the cloud, over changes of clock, cloud and restarts.

use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::Instant;
use yurt_runtime::FakeClock;
use yurt_test_support::TestDir;

use super::answers::{ANSWERS_MAX, ANSWERS_PER_CALLER, SETTLED_AFTER};
use super::decision::{ALLOWED_FOR, DENIED_FOR, KEPT_FOR, RENEWED_FROM};
use super::failed::ASKED_AGAIN_AFTER;
use super::peers::REFUSED_FOR;
use super::*;
use crate::proxy::caller::Origin;

/// Behaviour of the cloud for a review.
#[derive(Clone, Copy)]
enum Mood {
    Says(AccessVerdict),
    /// Accepts it and never answers.
    IsSilent,
    Fails,
    /// Answers, without a verdict.
    IsUndecided,
}

/// Counts reviews and answers by its mood.
struct Oracle {
    mood: Mutex<Mood>,
    asked: Mutex<usize>,
}

impl Reviews for Arc<Oracle> {
    fn ask(&self, _: Credential, _: Value) -> BoxFuture<'static, Result<AccessVerdict, NoVerdict>> {
        *self.asked.lock() += 1;
        let mood = *self.mood.lock();
        async move {
            match mood {
                Mood::Says(verdict) => Ok(verdict),
                Mood::IsSilent => {
                    tokio::time::sleep(review::TIMEOUT).await;
                    Err("no answer within 5s".to_owned().into())
                }
                Mood::Fails => Err("500".to_owned().into()),
                Mood::IsUndecided => Err(NoVerdict::Undecided("403".to_owned())),
            }
        }
        .boxed()
    }
}

/// An authorizer in a world controlled by the test. Its time is tokio's, which is paused, and that of a fake clock.
struct World {
    authorizer: Authorizer,
    oracle: Arc<Oracle>,
    reach: watch::Sender<CloudReach>,
    clock: Clock,
    hand: FakeClock,
    tasks: TaskGroup,
    folder: TestDir,
    /// Tokens that the cloud does not accept any more.
    refused: RefusedSet,
}

type RefusedSet = Arc<Mutex<std::collections::BTreeSet<String>>>;

impl World {
    fn new() -> Self {
        let oracle = Arc::new(Oracle {
            mood: Mutex::new(Mood::Says(AccessVerdict::Allowed)),
            asked: Mutex::default(),
        });
        let (reach, tasks, folder) = (watch::Sender::default(), TaskGroup::new(), TestDir::new());
        let (clock, hand) = Clock::fake();
        let refused = RefusedSet::default();
        let authorizer = open(&oracle, &reach, &clock, &tasks, &folder, &refused);
        let world = Self {
            authorizer,
            oracle,
            reach,
            clock,
            hand,
            tasks,
            folder,
            refused,
        };
        world.probed(Some(0));
        world
    }

    /// The same node after a restart.
    fn restarted(mut self) -> Self {
        self.reach = watch::Sender::default();
        let (oracle, reach, tasks) = (&self.oracle, &self.reach, &self.tasks);
        self.authorizer = open(oracle, reach, &self.clock, tasks, &self.folder, &self.refused);
        self
    }

    fn mood(&self, mood: Mood) {
        *self.oracle.mood.lock() = mood;
    }

    fn probed(&self, failed_probes: Option<u32>) {
        self.reach.send_replace(CloudReach { failed_probes });
    }

    /// Returns the code of the answer and the time that it took.
    async fn check(&self, token: &str) -> (u16, Duration) {
        let began = Instant::now();
        let answer = self.authorizer.check(&bearer(token), &list()).await;
        (answer.map_or_else(|status| status.code(), |()| 200), began.elapsed())
    }

    async fn code(&self, token: &str) -> u16 {
        self.check(token).await.0
    }

    /// Returns the number of reviews since the last call; background reviews have ended.
    async fn asked(&self) -> usize {
        while !self.authorizer.0.asked.lock().is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        std::mem::take(&mut *self.oracle.asked.lock())
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join(FILE)
    }
}

fn open(
    oracle: &Arc<Oracle>,
    reach: &watch::Sender<CloudReach>,
    clock: &Clock,
    tasks: &TaskGroup,
    folder: &TestDir,
    refused: &RefusedSet,
) -> Authorizer {
    let (known, forgotten) = (refused.clone(), refused.clone());
    let means = Means {
        reviews: Arc::new(oracle.clone()),
        // Tokens `web/1`, `web/2`, … are of web.
        accounts: Arc::new(move |token| {
            let account = token.split_once('/')?.0.to_owned();
            (!known.lock().contains(token)).then_some(account)
        }),
        refused: Arc::new(move |token| {
            forgotten.lock().insert(token.to_owned());
        }),
        reach: reach.subscribe(),
        wake: Arc::default(),
        clock: clock.clone(),
        tasks: tasks.clone(),
    };
    Authorizer::open(means, folder.path().join(FILE))
}

fn bearer(token: &str) -> Caller {
    Caller {
        component: "pod".to_owned(),
        credential: Credential::Token(token.to_owned()),
        origin: Origin {
            address: [10, 1, 0, 1].into(),
            uid: None,
        },
    }
}

fn node() -> Caller {
    Caller {
        credential: Credential::Node,
        ..bearer("node")
    }
}

fn list() -> RequestInfo {
    RequestInfo::parse("GET", "/api/v1/services", None).unwrap()
}

fn get(name: &str) -> RequestInfo {
    let path = format!("/api/v1/namespaces/shop/services/{name}");
    RequestInfo::parse("GET", &path, None).unwrap()
}

/// Returns a token that expires after `seconds` of the world's clock.
fn ending(world: &World, seconds: i64) -> String {
    claiming(&format!(r#"{{"exp":{}}}"#, world.clock.unix().secs + seconds))
}

fn claiming(claims: &str) -> String {
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
}

#[tokio::test(start_paused = true)]
async fn known_yes_costs_no_time_while_the_cloud_is_silent() {
    let world = World::new();
    assert_eq!(world.code("good").await, 200);
    world.mood(Mood::IsSilent);
    // The probes have not found it yet.
    for _ in 0..ALLOWED_FOR.as_secs() / 10 - 1 {
        world.hand.advance(Duration::from_secs(10));
        assert_eq!(world.check("good").await, (200, Duration::ZERO));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The probes have found it.
    world.probed(Some(1));
    for _ in 0..3 {
        world.hand.advance(KEPT_FOR / 4);
        assert_eq!(world.check("good").await, (200, Duration::ZERO));
    }
    world.probed(None);
    assert_eq!(
        world.check("good").await,
        (200, Duration::ZERO),
        "not probed since the start"
    );
}

#[tokio::test(start_paused = true)]
async fn old_yes_waits_for_the_cloud_or_until_the_probes_give_it_up() {
    let world = World::new();
    assert_eq!(world.code("good").await, 200);
    world.hand.advance(ALLOWED_FOR);
    world.mood(Mood::Says(AccessVerdict::Denied));
    assert_eq!(world.code("good").await, 403, "the cloud was asked first");
    world.mood(Mood::Says(AccessVerdict::Allowed));
    world.hand.advance(DENIED_FOR);
    assert_eq!(world.code("good").await, 200);
    world.hand.advance(ALLOWED_FOR);
    world.mood(Mood::IsSilent);
    let noticed = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.probed(Some(1));
    };
    let (answer, ()) = tokio::join!(world.check("good"), noticed);
    assert_eq!(answer, (200, Duration::from_secs(2)));
}

#[tokio::test(start_paused = true)]
async fn question_is_shared_and_outlives_those_who_asked() {
    let world = World::new();
    world.mood(Mood::IsSilent);
    let (caller, info) = (bearer("new"), list());
    let all = || (0..10).map(|_| world.authorizer.check(&caller, &info));
    let answers = futures_util::future::join_all(all()).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.as_ref().is_err_and(|status| status.code() == 429))
    );
    assert_eq!(world.asked().await, 1);
    world.hand.advance(ASKED_AGAIN_AFTER);
    world.mood(Mood::Says(AccessVerdict::Allowed));
    // All hang up simultaneously.
    let _ = futures_util::future::join_all(all()).now_or_never();
    assert_eq!(world.asked().await, 1);
    world.mood(Mood::Fails);
    assert_eq!(world.code("new").await, 200, "the answer came although nobody waited");
    assert_eq!(world.asked().await, 0);
}

#[tokio::test(start_paused = true)]
async fn used_yes_is_renewed_before_it_ends() {
    let world = World::new();
    world.code("good").await;
    world.hand.advance(RENEWED_FROM - Duration::from_secs(1));
    world.code("good").await;
    assert_eq!(world.asked().await, 1);
    world.hand.advance(Duration::from_secs(1));
    assert_eq!(world.check("good").await, (200, Duration::ZERO));
    assert_eq!(world.asked().await, 1);
    world.code("good").await;
    assert_eq!(world.asked().await, 0, "it is young again");
    world.hand.advance(RENEWED_FROM);
    world.mood(Mood::Says(AccessVerdict::Denied));
    assert_eq!(world.code("good").await, 200, "what the cloud said last");
    assert_eq!(world.asked().await, 1);
    assert_eq!(world.code("good").await, 403, "what it says now");
}

#[tokio::test(start_paused = true)]
async fn questions_are_bounded_and_failures_are_not_repeated_at_once() {
    let world = World::new();
    let tokens: Vec<_> = (0..2 * QUESTIONS_MAX).map(|number| format!("token-{number}")).collect();
    for token in &tokens {
        assert_eq!(world.code(token).await, 200);
    }
    world.asked().await;
    world.hand.advance(RENEWED_FROM);
    world.mood(Mood::IsSilent);
    for token in &tokens {
        assert_eq!(world.check(token).await, (200, Duration::ZERO));
    }
    assert_eq!(world.asked().await, BEHIND_MAX);
    for _ in 0..3 {
        assert_eq!(world.code(&tokens[0]).await, 200);
    }
    assert_eq!(world.asked().await, 0, "that one failed a moment ago");
    world.hand.advance(ASKED_AGAIN_AFTER);
    world.code(&tokens[0]).await;
    assert_eq!(world.asked().await, 1);
    let of = |number: usize| Caller {
        origin: Origin {
            address: [10, 2, 0, u8::try_from(number).unwrap()].into(),
            uid: None,
        },
        ..bearer(&format!("new-{number}"))
    };
    let (callers, info): (Vec<_>, _) = ((0..tokens.len()).map(of).collect(), list());
    let all = callers.iter().map(|caller| world.authorizer.check(caller, &info));
    futures_util::future::join_all(all).await;
    assert_eq!(world.asked().await, QUESTIONS_MAX);
}

#[tokio::test(start_paused = true)]
async fn no_is_asked_about_again_and_stays_a_no_without_the_cloud() {
    let world = World::new();
    world.mood(Mood::Says(AccessVerdict::Denied));
    assert_eq!(world.code("bad").await, 403);
    world.hand.advance(DENIED_FOR - Duration::from_secs(1));
    assert_eq!((world.code("bad").await, world.asked().await), (403, 1));
    world.hand.advance(Duration::from_secs(1));
    assert_eq!((world.code("bad").await, world.asked().await), (403, 1));
    world.probed(Some(3));
    world.hand.advance(KEPT_FOR / 2);
    assert_eq!(
        (world.check("bad").await, world.asked().await),
        ((403, Duration::ZERO), 0)
    );
    world.probed(Some(0));
    world.mood(Mood::Says(AccessVerdict::Allowed));
    assert_eq!(world.code("bad").await, 200);
}

/// The cloud has accepted the token, so its claim is true.
#[tokio::test(start_paused = true)]
async fn refusal_by_the_cloud_names_the_service_account_of_the_token() {
    let world = World::new();
    world.mood(Mood::Says(AccessVerdict::Denied));
    let token = claiming(r#"{"sub":"system:serviceaccount:shop:web"}"#);
    for (token, user) in [
        (token.as_str(), "system:serviceaccount:shop:web"),
        ("opaque", "the bearer of this token"),
    ] {
        let refused = world.authorizer.check(&bearer(token), &list()).await.unwrap_err();
        let words = format!("services is forbidden: User \"{user}\" cannot list resource \"services\"");
        assert_eq!(refused.code(), 403);
        assert!(refused.message().starts_with(&words), "{}", refused.message());
    }
    world.mood(Mood::Fails);
    world.hand.advance(KEPT_FOR);
    let refused = world.authorizer.check(&bearer(&token), &list()).await.unwrap_err();
    assert_eq!(refused.code(), 429);
    assert!(
        refused.message().starts_with("whether the bearer of this token may"),
        "{}",
        refused.message()
    );
}

#[tokio::test(start_paused = true)]
async fn cloud_that_cannot_decide_takes_no_right_away_and_prolongs_none() {
    let world = World::new();
    assert_eq!(world.code("good").await, 200);
    world.mood(Mood::IsUndecided);
    world.hand.advance(RENEWED_FROM);
    assert_eq!(world.check("good").await, (200, Duration::ZERO));
    assert_eq!(world.asked().await, 2);
    assert_eq!(world.code("good").await, 200, "that was no verdict");
    world.hand.advance(ALLOWED_FOR);
    assert_eq!(
        world.code("good").await,
        429,
        "the cloud is there, and does not allow it any more"
    );
    assert_eq!(world.code("never-asked").await, 429);
    world.probed(Some(1));
    assert_eq!(world.check("good").await, (200, Duration::ZERO));
    world.probed(Some(0));
    world.hand.advance(ASKED_AGAIN_AFTER);
    world.mood(Mood::Says(AccessVerdict::Denied));
    assert_eq!(world.code("good").await, 403);
    world.hand.advance(DENIED_FOR);
    world.mood(Mood::IsUndecided);
    assert_eq!(world.code("good").await, 403, "a no stays");
}

#[tokio::test(start_paused = true)]
async fn review_without_a_verdict_is_not_repeated_by_each_request() {
    let world = World::new();
    assert_eq!(world.code("good").await, 200);
    world.mood(Mood::Says(AccessVerdict::Denied));
    assert_eq!(world.code("bad").await, 403);
    assert_eq!(world.asked().await, 2);
    world.hand.advance(ALLOWED_FOR);
    for (mood, of_good) in [(Mood::Fails, 200), (Mood::IsUndecided, 429)] {
        world.mood(mood);
        for (token, code) in [("new", 429), ("bad", 403), ("good", of_good)] {
            for _ in 0..10 {
                assert_eq!(world.code(token).await, code, "{token}");
            }
            assert_eq!(world.asked().await, 1, "{token}");
        }
        world.hand.advance(ASKED_AGAIN_AFTER);
    }
    world.mood(Mood::Says(AccessVerdict::Allowed));
    assert_eq!(world.code("new").await, 200);
}

/// They wait for their turn, one behind the other.
#[tokio::test(start_paused = true)]
async fn waiting_requests_of_one_peer_share_the_end_of_a_review_without_a_verdict() {
    let world = World::new();
    world.mood(Mood::IsSilent);
    let (other, caller, info) = (bearer("other"), bearer("new"), list());
    let of = |caller| world.authorizer.check(caller, &info);
    let asked = futures_util::future::join4(of(&other), of(&caller), of(&caller), of(&caller)).await;
    assert!([asked.0, asked.1, asked.2, asked.3].iter().all(Result::is_err));
    assert_eq!(world.asked().await, 2);
    let third = bearer("third");
    tokio::select! {
        biased;
        _ = of(&third) => panic!("it waited for another review"),
        answer = of(&caller) => assert!(answer.is_err()),
    }
}

#[tokio::test(start_paused = true)]
async fn token_that_the_cloud_knows_no_more_is_forgotten() {
    let world = World::new();
    assert_eq!(world.code("good").await, 200);
    world.hand.advance(ALLOWED_FOR);
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    assert_eq!(world.code("good").await, 401);
    world.probed(Some(1));
    assert_eq!(world.code("good").await, 429, "the yes is gone");
}

#[tokio::test(start_paused = true)]
async fn made_up_tokens_cost_one_question_a_second_and_no_memory() {
    let world = World::new();
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    let remembered = || world.authorizer.0.answers.lock().each(world.clock.boot()).count();
    for second in 1..=3 {
        assert_eq!(world.code("made-up").await, 401);
        for number in 0..100 {
            assert_eq!(world.code(&format!("made-up-{number}")).await, 429);
        }
        assert_eq!((world.asked().await, remembered()), (1, 0), "second {second}");
        world.hand.advance(REFUSED_FOR);
    }
    // An allowed verdict remains the peer's own, and another peer may review.
    world.mood(Mood::Says(AccessVerdict::Allowed));
    assert_eq!(world.code("good").await, 200);
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    assert_eq!(world.code("made-up").await, 401);
    assert_eq!((world.code("good").await, world.code("new").await), (200, 429));
    let other = Caller {
        origin: Origin {
            address: [10, 1, 0, 2].into(),
            uid: None,
        },
        ..bearer("new")
    };
    let refused = world.authorizer.check(&other, &list()).await.unwrap_err();
    assert_eq!(refused.code(), 401, "asked");
}

#[tokio::test(start_paused = true)]
async fn refused_token_stays_unknown_and_others_of_its_peer_are_asked_about_a_second_later() {
    let world = World::new();
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    for _ in 0..10 {
        assert_eq!(world.code("made-up").await, 401);
    }
    let other = RequestInfo::parse("GET", "/api/v1/pods", None).unwrap();
    let refused = world.authorizer.check(&bearer("made-up"), &other).await.unwrap_err();
    assert_eq!(refused.code(), 401, "it is unknown for any request");
    assert_eq!(world.asked().await, 1);
    world.mood(Mood::Says(AccessVerdict::Allowed));
    let refused = world.authorizer.check(&bearer("good"), &list()).await.unwrap_err();
    assert_eq!((refused.code(), refused.retry_after()), (429, Some(1)));
    world.hand.advance(Duration::from_secs(1));
    assert_eq!((world.code("good").await, world.code("made-up").await), (200, 200));
}

#[tokio::test(start_paused = true)]
async fn verdict_that_is_too_old_does_not_count_while_the_peer_must_wait() {
    let world = World::new();
    assert_eq!((world.code("good").await, world.code("web/1").await), (200, 200));
    world.hand.advance(ALLOWED_FOR);
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    assert_eq!(world.code("made-up").await, 401);
    assert_eq!((world.code("good").await, world.code("web/2").await), (429, 429));
    world.hand.advance(REFUSED_FOR);
    assert_eq!(world.code("good").await, 401);
}

#[tokio::test(start_paused = true)]
async fn token_that_the_cloud_refused_has_no_rights_of_its_account() {
    let world = World::new();
    assert_eq!(world.code("web/1").await, 200);
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    assert_eq!(world.code("web/2").await, 401);
    world.probed(Some(1));
    assert_eq!((world.code("web/2").await, world.code("web/3").await), (429, 200));
}

#[tokio::test(start_paused = true)]
async fn peer_has_one_question_in_flight() {
    let world = World::new();
    world.mood(Mood::IsSilent);
    let of = |peer: u8, token: usize| Caller {
        origin: Origin {
            address: [10, 1, 0, peer].into(),
            uid: None,
        },
        ..bearer(&format!("token-{peer}-{token}"))
    };
    let callers: Vec<_> = (1..=3)
        .flat_map(|peer| (0..10).map(move |token| of(peer, token)))
        .collect();
    let info = list();
    let all = callers.iter().map(|caller| world.authorizer.check(caller, &info));
    // All hang up; the reviews in flight continue.
    let _ = futures_util::future::join_all(all).now_or_never();
    assert_eq!(world.asked().await, 3);
    world.hand.advance(ASKED_AGAIN_AFTER);
    world.mood(Mood::Says(AccessVerdict::Allowed));
    let all = callers.iter().map(|caller| world.authorizer.check(caller, &info));
    let answers = futures_util::future::join_all(all).await;
    assert!(answers.iter().all(Result::is_ok), "one after the other");
    assert_eq!(world.asked().await, callers.len());
}

#[tokio::test(start_paused = true)]
async fn what_was_never_asked_has_to_wait() {
    let world = World::new();
    world.probed(Some(1));
    let refused = world.authorizer.check(&bearer("new"), &list()).await.unwrap_err();
    assert_eq!((refused.code(), refused.retry_after()), (429, Some(RETRY_AFTER)));
    let words = "whether the bearer of this token may list services is not known on this node";
    assert!(refused.message().starts_with(words), "{}", refused.message());
    assert_eq!(world.asked().await, 0, "what is known to be away is not asked");
    world.probed(Some(0));
    world.mood(Mood::Fails);
    let refused = world.authorizer.check(&bearer("new"), &list()).await.unwrap_err();
    assert_eq!(refused.code(), 429);
    assert!(
        refused.message().ends_with("cannot review it: 500"),
        "{}",
        refused.message()
    );
    world.mood(Mood::Says(AccessVerdict::Allowed));
    world.code("good").await;
    world.probed(Some(1));
    world.hand.advance(KEPT_FOR);
    assert_eq!(world.code("good").await, 429, "too old to be worth anything");
}

#[tokio::test(start_paused = true)]
async fn token_is_good_until_its_own_end() {
    let world = World::new();
    let token = ending(&world, 10);
    assert_eq!(world.code(&token).await, 200);
    world.probed(Some(1));
    world.hand.advance(Duration::from_secs(9));
    assert_eq!(world.code(&token).await, 200);
    world.hand.advance(Duration::from_secs(1));
    assert_eq!(world.code(&token).await, 401);
    world.probed(Some(0));
    world.asked().await;
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    assert_eq!(
        (world.code(&token).await, world.asked().await),
        (401, 1),
        "the cloud decides while it is there"
    );
    // The clock here may be wrong.
    world.mood(Mood::Says(AccessVerdict::Allowed));
    world.hand.advance(REFUSED_FOR);
    assert_eq!(world.code(&token).await, 200);
    world.mood(Mood::Fails);
    assert_eq!(world.code(&token).await, 401);
}

#[tokio::test(start_paused = true)]
async fn answers_survive_a_restart() {
    // The file has hashes in base64: short words may occur in them, but none with a hyphen.
    const GOOD: &str = "token-of-good";
    const BAD: &str = "token-of-bad";
    const UNKNOWN: &str = "token-of-unknown";
    let world = World::new();
    let token = ending(&world, 3600);
    assert_eq!((world.code(GOOD).await, world.code(&token).await), (200, 200));
    for (name, verdict, code) in [
        (BAD, AccessVerdict::Denied, 403),
        (UNKNOWN, AccessVerdict::Unauthorized, 401),
    ] {
        world.mood(Mood::Says(verdict));
        assert_eq!(world.code(name).await, code);
    }
    world.authorizer.0.save().await;
    let mode = std::fs::metadata(world.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = std::fs::read_to_string(world.file()).unwrap();
    for credential in [GOOD, BAD, UNKNOWN, &token] {
        let encoded = base64::engine::general_purpose::STANDARD_NO_PAD.encode(credential);
        assert!(
            !text.contains(credential) && !text.contains(&encoded),
            "{credential}: {text}"
        );
    }
    world.hand.advance(Duration::from_secs(3000));
    world.mood(Mood::IsSilent);
    let world = world.restarted();
    assert_eq!(world.check(GOOD).await, (200, Duration::ZERO), "before the first probe");
    world.probed(Some(1));
    assert_eq!(world.check(GOOD).await, (200, Duration::ZERO));
    assert_eq!(world.code(&token).await, 200);
    assert_eq!((world.code(BAD).await, world.code(UNKNOWN).await), (403, 429));
    assert_eq!(world.code("new").await, 429);
    world.hand.advance(Duration::from_secs(600));
    assert_eq!(
        world.code(&token).await,
        401,
        "an expired token is unknown, regardless of the cache"
    );
    world.hand.advance(KEPT_FOR);
    assert_eq!(world.code(GOOD).await, 429);
}

#[tokio::test(start_paused = true)]
async fn damaged_file_costs_what_it_held_and_nothing_else() {
    let world = World::new();
    world.code("good").await;
    world.authorizer.0.save().await;
    std::fs::write(world.file(), "{").unwrap();
    let world = world.restarted();
    world.probed(Some(1));
    assert_eq!(world.code("good").await, 429);
    world.probed(Some(0));
    assert_eq!(world.code("good").await, 200);
    world.authorizer.0.save().await;
    let world = world.restarted();
    world.probed(Some(1));
    assert_eq!(world.code("good").await, 200, "written again");
}

#[tokio::test(start_paused = true)]
async fn file_is_written_behind_for_what_matters_and_seldom() {
    let world = World::new();
    let token = CancellationToken::new();
    let keeping = world.tasks.detached(
        "keep",
        world.authorizer.clone().keep(token.clone(), CancellationToken::new()),
    );
    // Deletes the file, to see whether it is written again.
    let is_written = async |after: Duration| {
        tokio::time::sleep(after + Duration::from_millis(1)).await;
        std::fs::remove_file(world.file()).is_ok()
    };
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    for stranger in 0..10 {
        world.code(&format!("stranger-{stranger}")).await;
    }
    assert!(!is_written(10 * SAVED_EVERY).await, "strangers wear out no disk");
    world.hand.advance(REFUSED_FOR);
    world.mood(Mood::Says(AccessVerdict::Allowed));
    world.code("good").await;
    assert!(is_written(SAVED_AFTER).await);
    world.code("other").await;
    assert!(!is_written(SAVED_EVERY / 2).await, "once a minute is enough");
    assert!(is_written(SAVED_EVERY).await);
    let renew = async |after: Duration| {
        world.hand.advance(after);
        world.code("good").await;
        world.asked().await;
    };
    renew(RENEWED_FROM).await;
    assert!(!is_written(2 * SAVED_EVERY).await, "nothing but ages changed");
    renew(RENEWALS_SAVED_EVERY).await;
    assert!(is_written(2 * SAVED_EVERY).await, "but not for ever");
    world.mood(Mood::Says(AccessVerdict::Denied));
    renew(RENEWED_FROM).await;
    assert!(is_written(2 * SAVED_EVERY).await, "a right that was taken away");
    world.hand.advance(DENIED_FOR);
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    assert_eq!(world.code("last").await, 401);
    token.cancel();
    keeping.await.unwrap();
    assert!(world.file().exists(), "a stop stores the rest");
}

/// A power cut may follow the loss of the cloud at once.
#[tokio::test(start_paused = true)]
async fn loss_of_the_cloud_stores_at_once_what_was_learned_since_the_last_write() {
    let world = World::new();
    let token = CancellationToken::new();
    let keeping = world.authorizer.clone().keep(token.clone(), CancellationToken::new());
    let keeping = world.tasks.detached("keep", keeping);
    let is_written = async |after: Duration| {
        tokio::time::sleep(after + Duration::from_millis(1)).await;
        std::fs::remove_file(world.file()).is_ok()
    };
    world.code("good").await;
    assert!(is_written(SAVED_AFTER).await);
    world.code("late").await;
    assert!(!is_written(SAVED_AT_LOSS_EVERY).await);
    world.probed(Some(1));
    assert!(!is_written(Duration::ZERO).await, "one failed probe is no loss");
    world.probed(Some(2));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(world.file().exists(), "the loss stores it");
    let world = world.restarted();
    world.probed(Some(2));
    assert_eq!(world.code("late").await, 200, "also after a power cut");
    token.cancel();
    keeping.await.unwrap();
}

/// A link that flaps wears out no disk.
#[tokio::test(start_paused = true)]
async fn losses_of_the_cloud_store_what_is_new_and_seldom() {
    let world = World::new();
    let token = CancellationToken::new();
    let keeping = world.authorizer.clone().keep(token.clone(), CancellationToken::new());
    let keeping = world.tasks.detached("keep", keeping);
    let mut writes = 0;
    for flap in 0..60 {
        world.probed(Some(0));
        world.code(&format!("pod-{flap}")).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.probed(Some(2));
        tokio::time::sleep(Duration::from_secs(1)).await;
        writes += u64::from(std::fs::remove_file(world.file()).is_ok());
    }
    let most = 120 / SAVED_AT_LOSS_EVERY.as_secs() + 1;
    assert!((2..=most).contains(&writes), "{writes} writes");
    tokio::time::sleep(SAVED_EVERY).await;
    let _ = std::fs::remove_file(world.file());
    for _ in 0..60 {
        world.probed(Some(0));
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.probed(Some(2));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(!world.file().exists(), "nothing was new");
    token.cancel();
    keeping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn token_without_a_verdict_has_that_of_its_account_while_the_cloud_is_away() {
    let world = World::new();
    assert_eq!(world.code("web/1").await, 200);
    world.probed(Some(1));
    assert_eq!(world.code("web/2").await, 200);
    for other in ["db/1", "stranger"] {
        assert_eq!(world.code(other).await, 429, "{other}");
    }
    world.probed(Some(0));
    world.mood(Mood::Says(AccessVerdict::Denied));
    assert_eq!(world.code("web/2").await, 403, "the cloud is asked while it answers");
    world.probed(Some(1));
    assert_eq!(world.code("web/3").await, 403, "the last verdict counts");
    world.probed(Some(0));
    world.mood(Mood::Says(AccessVerdict::Unauthorized));
    assert_eq!(world.code("web/4").await, 401, "it is no verdict about the account");
    world.probed(Some(1));
    assert_eq!(world.code("web/5").await, 403);
}

/// The cloud denied one token of an account, and has answered it since. Another token of the account was allowed later.
#[tokio::test(start_paused = true)]
async fn success_that_proves_no_right_ends_a_refusal_and_nothing_else() {
    let world = World::new();
    for allowed in [false, true] {
        world.mood(Mood::Says(AccessVerdict::Allowed));
        world.hand.advance(ALLOWED_FOR);
        assert_eq!((world.code("web/1").await, world.code("db/1").await), (200, 200));
        world.authorizer.learn_denied(&bearer("web/1"), &list());
        if allowed {
            world.authorizer.learn_success(&bearer("web/2"), &list(), true);
        }
        for token in ["web/1", "db/1", "new/1"] {
            world.authorizer.learn_success(&bearer(token), &list(), false);
        }
        world.probed(Some(1));
        let of_account = if allowed { 200 } else { 429 };
        assert_eq!(
            (world.code("web/1").await, world.code("web/3").await),
            (of_account, of_account)
        );
        assert_eq!((world.code("db/1").await, world.code("new/1").await), (200, 429));
        world.probed(Some(0));
        world.mood(Mood::Says(AccessVerdict::Denied));
        assert_eq!(world.code("web/1").await, 403, "asked again");
    }
}

#[tokio::test(start_paused = true)]
async fn success_of_the_node_ends_its_refusal() {
    let world = World::new();
    let node = node();
    assert!(world.authorizer.review(&node, &list()).await.is_ok());
    world.authorizer.learn_denied(&node, &list());
    world.authorizer.learn_success(&node, &list(), true);
    assert!(world.authorizer.review(&node, &list()).await.is_ok(), "asked again");
    assert_eq!(world.asked().await, 2);
}

/// A kube-apiserver that has just started may not know a valid token yet.
#[tokio::test(start_paused = true)]
async fn token_that_the_cloud_knows_again_has_the_rights_that_it_had() {
    let world = World::new();
    let (good, list, get) = (bearer("good"), list(), get("web"));
    for info in [&list, &get] {
        world.authorizer.learn_success(&good, info, true);
    }
    let remembered = || [&list, &get].map(|info| world.authorizer.remembers(&good, info));
    world.authorizer.learn_unknown(&good);
    assert_eq!(remembered(), [false; 2]);
    world.probed(Some(1));
    assert_eq!(world.code("good").await, 429, "the cloud may have revoked it");
    world.probed(Some(0));
    assert_eq!((world.code("good").await, world.asked().await), (200, 1));
    assert_eq!(remembered(), [true, false], "another server may have cached the token");
    world.hand.advance(SETTLED_AFTER);
    world.authorizer.learn_success(&good, &list, true);
    assert_eq!(remembered(), [true; 2]);
    world.authorizer.learn_unknown(&good);
    world.authorizer.learn_denied(&good, &list);
    world.hand.advance(SETTLED_AFTER);
    world.authorizer.learn_success(&good, &get, true);
    assert_eq!(remembered(), [false, true], "the cloud refused it since");
    world.authorizer.learn_unknown(&good);
    world.hand.advance(SETTLED_AFTER);
    world.authorizer.learn_success(&good, &list, false);
    assert_eq!(remembered(), [false, true], "any success shows that the cloud knows it");
    world.authorizer.learn_unknown(&good);
    world.authorizer.0.save().await;
    let world = world.restarted();
    world.authorizer.learn_success(&good, &list, true);
    assert!(
        !world.authorizer.remembers(&good, &get),
        "a restart knows the last word alone"
    );
}

/// Tokens of one account are renewed while the cloud answers, and used while it is away.
#[tokio::test(start_paused = true)]
async fn refusal_of_a_read_ends_the_right_of_the_account() {
    let world = World::new();
    assert_eq!(world.code("web/1").await, 200);
    world.probed(Some(1));
    assert_eq!(world.code("web/2").await, 200);
    world.authorizer.learn_denied(&bearer("web/3"), &list());
    for token in ["web/2", "web/3"] {
        assert_eq!(world.code(token).await, 403, "{token}");
    }
}

/// Data that was filled with the rights of a token is shown to the node only with a right of its own.
#[tokio::test(start_paused = true)]
async fn refusal_of_a_read_ends_the_right_of_the_node_to_selections_of_tokens() {
    let world = World::new();
    let node = node();
    assert!(world.authorizer.review(&node, &list()).await.is_ok());
    world.authorizer.learn_denied(&node, &list());
    for failed_probes in [0, 1] {
        world.probed(Some(failed_probes));
        let refused = world.authorizer.review(&node, &list()).await.unwrap_err();
        assert_eq!(refused.code(), 403);
    }
}

#[tokio::test(start_paused = true)]
async fn gets_of_many_names_evict_no_right_to_the_list() {
    let world = World::new();
    assert_eq!((world.code("alone").await, world.code("web/1").await), (200, 200));
    world.hand.advance(Duration::from_secs(1));
    for token in ["alone", "web/1", "web/2"] {
        for number in 0..ANSWERS_PER_CALLER {
            let of = get(&format!("{}-{number}", token.replace('/', "-")));
            world.authorizer.learn_success(&bearer(token), &of, true);
        }
    }
    world.probed(Some(1));
    assert_eq!(world.code("alone").await, 200, "the token's own");
    assert_eq!(world.code("web/3").await, 200, "that of the account");
}

/// Tokens of service accounts are replaced about every 48 minutes.
#[tokio::test(start_paused = true)]
async fn verdicts_about_tokens_that_ended_leave_room_for_those_of_new_tokens() {
    let world = World::new();
    for number in 0..ANSWERS_MAX {
        let token = bearer(&ending(&world, 3600 + number as i64));
        world.authorizer.learn_success(&token, &list(), true);
    }
    world.hand.advance(Duration::from_secs(2 * 3600));
    let new = bearer(&ending(&world, 3600));
    world.authorizer.learn_success(&new, &get("web"), true);
    assert!(world.authorizer.remembers(&new, &get("web")));
}
