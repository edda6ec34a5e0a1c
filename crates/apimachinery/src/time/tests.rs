//! Both formats, parsed and written.

use proptest::prelude::*;

use super::*;

#[test]
fn known_moments() {
    for (secs, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_795_168_800, "2026-11-20T10:00:00Z"),
        (253_402_300_799, "9999-12-31T23:59:59Z"),
        (-62_167_219_200, "0000-01-01T00:00:00Z"),
    ] {
        assert_eq!(Time::from_unix(secs).to_string(), text);
        assert_eq!(Time::parse(text), Ok(Time::from_unix(secs)));
    }
    assert_eq!(Time::from_unix(i64::MAX), Time::from_unix(253_402_300_799));
    assert_eq!(MicroTime::from_unix(i64::MIN, 0).unix(), (-62_167_219_200, 0));
}

/// Conformance: 3.E17
#[test]
fn micro_time_wants_six_digits() {
    let moment = MicroTime::from_unix(1_795_168_800, 123_456_789);
    assert_eq!(moment.to_string(), "2026-11-20T10:00:00.123456Z");
    assert_eq!(MicroTime::parse("2026-11-20T10:00:00.123456Z"), Ok(moment));
    assert_eq!(MicroTime::parse("2026-11-20T11:30:00.123456+01:30"), Ok(moment));
    assert_eq!(MicroTime::parse("2026-11-20T07:00:00.123456-03:00"), Ok(moment));
    for bad in [
        "2026-11-20T10:00:00Z",
        "2026-11-20T10:00:00.12345Z",
        "2026-11-20T10:00:00.123456789Z",
        "2026-11-20T10:00:00.123456",
        "2026-11-20T10:00:00.123456z",
        "2026-11-20T10:00:00.123456Z ",
        "2026-11-20 10:00:00.123456Z",
        "",
    ] {
        assert!(MicroTime::parse(bad).is_err(), "{bad}");
    }
    let error = MicroTime::parse("x").unwrap_err().to_string();
    assert_eq!(
        error,
        "parsing time \"x\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse"
    );
}

/// Conformance: 3.E17
#[test]
fn time_drops_fractions() {
    assert_eq!(Time::parse("1970-01-01T00:00:01.999999999Z"), Ok(Time::from_unix(1)));
    for bad in [
        "1970-01-01T00:00:01.Z",
        "1970-02-30T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "1970-13-01T00:00:00Z",
        "1970-01-01T24:00:00Z",
        "1970-01-01T00:00:60Z",
        "1970-01-01T00:00:00+24:00",
        "0000-01-01T00:00:00+01:00",
    ] {
        assert!(Time::parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn moments_round_trip(secs in RANGE, nanos in 0_u32..1_000_000_000) {
        let moment = MicroTime::from_unix(secs, nanos);
        prop_assert_eq!(MicroTime::parse(&moment.to_string()), Ok(moment));
        prop_assert_eq!(Time::parse(&Time::from_unix(secs).to_string()), Ok(Time::from_unix(secs)));
    }

    #[test]
    fn text_sorts_like_time(a in 0_i64..4_000_000_000, b in 0_i64..4_000_000_000) {
        let text = |secs| Time::from_unix(secs).to_string();
        prop_assert_eq!(text(a).cmp(&text(b)), a.cmp(&b));
    }

    #[test]
    fn any_text_is_survived(text in "[0-9TZ:+.é-]{0,40}") {
        let _ = (Time::parse(&text), MicroTime::parse(&text));
    }
}
