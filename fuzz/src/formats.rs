//! Bodies in formats other than JSON.

use serde_json::Value;
use yurt_codec::protobuf::{Envelope, decode, encode};
use yurt_codec::schema::{self, Message};
use yurt_codec::yaml;

/// The first byte chooses a kind, the rest is a message of it. The decoded result is JSON, and survives another round.
pub(crate) fn protobuf_decode(data: &[u8]) {
    let Some((message, bytes)) = chosen(data) else { return };
    let Ok(json) = decode(message, bytes) else { return };
    serde_json::from_slice::<serde_json::Value>(&json).expect("what is decoded must be JSON");
    let Ok(encoded) = encode(message, &json) else { return };
    let again = decode(message, &encoded.bytes).expect("our own message must be readable");
    assert_eq!(without_nulls(&again), without_nulls(&json), "{message:?}");
}

/// Removes nulls: a time that is set and zero is null in JSON, as in Go; null and absent are equal in protobuf.
fn without_nulls(json: &[u8]) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.retain(|_, member| !member.is_null());
                members.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut value = serde_json::from_slice(json).expect("what is decoded must be JSON");
    strip(&mut value);
    value
}

/// The first byte chooses a kind, the rest is JSON. The encoded result can be decoded.
pub(crate) fn protobuf_encode(data: &[u8]) {
    let Some((message, json)) = chosen(data) else { return };
    if serde_json::from_slice::<serde_json::Value>(json).is_err() {
        return;
    }
    if let Ok(encoded) = encode(message, json) {
        decode(message, &encoded.bytes).expect("our own message must be readable");
    }
}

/// A whole body.
pub(crate) fn envelope(data: &[u8]) {
    if let Ok(envelope) = Envelope::parse(data)
        && let Some(message) = envelope.message()
    {
        let _ = decode(message, envelope.raw);
    }
}

/// A value keeps its meaning when it is read, written and read again.
pub(crate) fn yaml_body(data: &[u8]) {
    let Ok(json) = yaml::to_json(data) else { return };
    let written = yaml::from_json(&json);
    let again = yaml::to_json(&written).expect("our own YAML must be readable");
    let value = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).ok();
    assert_eq!(value(&again), value(&json));
}

fn chosen(data: &[u8]) -> Option<(Message, &[u8])> {
    let (choice, rest) = data.split_first()?;
    let kinds: Vec<Message> = schema::roots().map(|root| root.3).collect();
    kinds
        .get(usize::from(*choice) % kinds.len())
        .map(|message| (*message, rest))
}
