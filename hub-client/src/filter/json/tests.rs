//! Reading and editing agree with the tree, and leave the notation of everything else.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn value(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

fn texts(text: &str) -> Vec<String> {
    let items = Json(text.as_bytes()).items().unwrap();
    items.map(|item| String::from_utf8(item.0.to_vec()).unwrap()).collect()
}

#[test]
fn items_are_the_values_as_written() {
    assert_eq!(
        texts(r#"[ 1.50 , {"a":[1, 2]},"]", null ]"#),
        ["1.50", r#"{"a":[1, 2]}"#, r#""]""#, "null"]
    );
    assert_eq!(texts("null"), Vec::<String>::new());
    assert!(Json(b"{}").items().is_err());
}

#[test]
fn last_member_counts_and_escaped_names_are_found() {
    let json = Json(br#"{"a":1, "b" : {"a":2}, "\u0061":3}"#);
    assert_eq!(json.member("a"), Some(Json(b"3")));
    assert_eq!(json.at(&["b", "a"]), Ok(Some(Json(b"2"))));
    assert_eq!(json.at(&["b", "c"]), Ok(None));
    assert_eq!(json.at(&["a", "c"]), Err(WrongType));
    assert_eq!(json.text_at(&["a"]), Err(WrongType));
    assert_eq!(json.text_at(&["c"]).as_deref(), Ok(""));
}

#[test]
fn edits_leave_the_notation_of_everything_else() {
    let json = Json(br#"{"z":1.50,"a":[{"x":1e2},2],"m":{"k":"\u00e9"}}"#);
    let edited = json.edit_at(&["m"], &|m| m.with(&[("new", b"true")]));
    assert_eq!(
        edited.unwrap(),
        br#"{"z":1.50,"a":[{"x":1e2},2],"m":{"k":"\u00e9","new":true}}"#
    );
    let edited = json.edit_at(&["a"], &|a| {
        a.edit_items(|item| if item.0 == b"2" { Edit::Remove } else { Edit::Keep })
    });
    assert_eq!(edited.unwrap(), br#"{"z":1.50,"a":[{"x":1e2}],"m":{"k":"\u00e9"}}"#);
    assert_eq!(json.with(&[("z", b"1.50")]), None, "the same value is no change");
    assert_eq!(Json(b"7").with(&[("z", b"1")]), None);
}

/// `text` without the items of `list` whose member `n` is not `want`, read in one pass; `None` if that is not possible.
fn one_pass(text: &str, want: &str) -> Option<Option<String>> {
    let is_kept = |member: Option<Json<'_>>| member.and_then(Json::text).as_deref() == Some(want);
    let retained = Json(text.as_bytes()).retain_items("list", "n", is_kept);
    let text = |text: Vec<u8>| String::from_utf8(text).unwrap();
    retained.ok().map(|retained| retained.map(text))
}

#[test]
fn items_of_a_list_are_read_in_one_pass_with_a_member() {
    let text =
        r#"{"a":[{"n":"x"}],"list":[{"n":"x","m":1.50},{"n":"y"},{"n":"y","\u006e":"x"},{},{"m":{"n":"x"}}],"z":{}}"#;
    let want = r#"{"a":[{"n":"x"}],"list":[{"n":"x","m":1.50},{"n":"y","\u006e":"x"}],"z":{}}"#;
    assert_eq!(one_pass(text, "x"), Some(Some(want.to_owned())));
    assert_eq!(one_pass(r#"{"list": [ {"n" : "x"} , {"n":"x"} ] }"#, "x"), Some(None));
    let spaced = r#"{"list": [ {"n" : "y"} , {"n":"x"} ] }"#;
    assert_eq!(
        one_pass(spaced, "x"),
        Some(Some(r#"{"list": [{"n":"x"}] }"#.to_owned()))
    );
    assert_eq!(one_pass(r#"{"list":[]}"#, "x"), Some(None));
    assert_eq!(
        one_pass(r#"{"list":[{}]}"#, "x"),
        Some(Some(r#"{"list":[]}"#.to_owned()))
    );
    let others = [
        "{}",
        "[]",
        "",
        r#"{"list":null}"#,
        r#"{"list":{}}"#,
        r#"{"list":[1]}"#,
        r#"{"list":[{}],"list":[{}]}"#,
        r#"{"list":[{}"#,
        r#"{"list":[{}]"#,
        r#"{"list":[{"n"]}"#,
    ];
    for text in others {
        assert_eq!(one_pass(text, "x"), None, "{text}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a\"\\\\\\]},é\n]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[ab\"\\\\]{1,2}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    /// One pass leaves what reading value by value does.
    #[test]
    fn one_pass_agrees_with_single_values(
        list in prop::collection::vec(prop::collection::btree_map("[nm]", prop_oneof![Just(json!("x")), any_json()], 0..3), 0..6),
        other in any_json(),
    ) {
        let object = json!({"a": other, "list": list, "z": other});
        let text = object.to_string();
        let is_far = |item: Json<'_>| item.member("n").and_then(Json::text).as_deref() != Some("x");
        let items = Json(text.as_bytes()).member("list").unwrap();
        let near = items.edit_items(|item| if is_far(item) { Edit::Remove } else { Edit::Keep });
        let want = near.and_then(|near| Json(text.as_bytes()).with(&[("list", &near)]));
        prop_assert_eq!(one_pass(&text, "x"), Some(want.map(|want| String::from_utf8(want).unwrap())));
    }

    #[test]
    fn reading_and_editing_agree_with_the_tree(json in any_json(), is_pretty: bool, at in 0..4_usize) {
        let text = if is_pretty { serde_json::to_vec_pretty(&json) } else { serde_json::to_vec(&json) }.unwrap();
        let read = Json(&text);
        if let Value::String(text) = &json {
            prop_assert_eq!(read.text(), Some(Cow::Borrowed(&**text)));
        }
        if let Value::Array(items) = &json {
            let found: Vec<Value> = read.items().unwrap().map(|item| value(item.0)).collect();
            prop_assert_eq!(&found, items);
            let mut index = 0;
            let edited = read.edit_items(|_| {
                index += 1;
                if index == at + 1 { Edit::Remove } else { Edit::Keep }
            });
            let mut expected = items.clone();
            let is_removed = at < expected.len();
            if is_removed {
                expected.remove(at);
            }
            prop_assert_eq!(edited.map(|text| value(&text)), is_removed.then(|| expected.into()));
        }
        if let Value::Object(members) = &json {
            for (name, member) in members {
                prop_assert_eq!(read.member(name).map(|found| value(found.0)), Some(member.clone()));
                let edited = read.edit_members(|found, _| if found == name { Edit::Remove } else { Edit::Keep });
                let mut expected = members.clone();
                expected.remove(name);
                prop_assert_eq!(edited.map(|text| value(&text)), Some(expected.into()));
            }
            let mut expected = members.clone();
            expected.insert("ab".to_owned(), json!("new"));
            let edited = read.with(&[("ab", b"\"new\"")]).unwrap_or(text.clone());
            prop_assert_eq!(value(&edited), Value::Object(expected));
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(prop::sample::select(b"[]{},:\" \\a1n".to_vec()), 0..24)) {
        let json = Json(&bytes);
        let _ = json.text();
        let _ = json.items().map(Iterator::count);
        let _ = json.at(&["a", "a"]);
        let _ = json.edit_items(|_| Edit::Remove);
        let _ = json.with(&[("a", b"1")]);
    }
}
