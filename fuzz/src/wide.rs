//! Wide bodies: any list or map of any built-in kind, with any number of entries. Inputs of some kilobytes cannot show
//! work that grows with the square of a body; a few bytes that describe a megabyte can.

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use yurt_codec::schema::{self, Field, FieldType, Message};
use yurt_patch::apply_strategic_merge_patch;

/// Entries for each step of an input's second byte.
const STEP: usize = 50;
/// CPU time below which work is never too much, in seconds.
const SECONDS_LEAST: f64 = 0.3;
/// Maximum growth of the work when the entries grow fourfold, as a factor.
const GROWTH_MAX: f64 = 10.0;
/// Measurements of each size before work counts as too much. The least one counts: the rest of the machine only adds to
/// the CPU time of the same work.
const MEASUREMENTS: usize = 3;
/// Maximum length of a rejection, in bytes.
const REFUSAL_BYTES_MAX: usize = 1 << 20;
/// Most fields on the path to the list.
const DEPTH_MAX: usize = 8;

/// Place and form of the entries.
struct Shape<'a> {
    root: (&'static str, &'static str, &'static str, Message),
    /// Each byte chooses a field on the path.
    steps: &'a [u8],
    /// Bit 0: booleans are true; bit 1: all entries are equal; bit 2: strings are empty.
    sort: u8,
}

/// Measures and checks a write with a wide body. The first byte chooses the kind, the second the number of entries, the
/// third their form. The rest is the path to the list or map that has them.
pub(crate) fn write(data: &[u8]) {
    let Some((&[kind, size, sort], steps)) = data.split_first_chunk::<3>() else {
        return;
    };
    let roots: Vec<_> = schema::roots().collect();
    let root = roots[usize::from(kind) % roots.len()];
    let shape = Shape { root, steps, sort };
    let entries = STEP * (usize::from(size) + 1);
    if shape.run(entries) > SECONDS_LEAST {
        let least = |entries| (0..MEASUREMENTS).map(|_| shape.run(entries)).fold(f64::MAX, f64::min);
        let (seconds, of_a_quarter) = (least(entries), least(entries / 4));
        assert!(
            seconds < GROWTH_MAX * of_a_quarter,
            "{entries} entries are {seconds} s of work, a quarter of them {of_a_quarter} s: {} {:?}",
            root.2,
            shape.body(2)
        );
    }
}

// === impl Shape ===

impl Shape<'_> {
    /// CPU time of a body with so many entries, in seconds.
    fn run(&self, entries: usize) -> f64 {
        let body = self.body(entries);
        let before = cpu_seconds();
        let (group, version, kind, message) = self.root;
        let refusal = yurt_coordinator::fuzzing::write(group, version, kind, &body.to_string());
        assert!(
            refusal < REFUSAL_BYTES_MAX,
            "{refusal} bytes of refusal: {kind} {:?}",
            self.body(2)
        );
        if let Value::Object(patch) = &body {
            let mut document = body.clone();
            let _ = apply_strategic_merge_patch(&mut document, patch.clone(), message);
        }
        cpu_seconds() - before
    }

    fn body(&self, entries: usize) -> Value {
        let (group, version, kind, message) = self.root;
        let mut body = self.members(message, 0, entries);
        let metadata = body.as_object_mut().map(|body| {
            let version = if group.is_empty() {
                version.to_owned()
            } else {
                format!("{group}/{version}")
            };
            body.insert("apiVersion".to_owned(), version.into());
            body.insert("kind".to_owned(), kind.into());
            body.entry("metadata").or_insert_with(|| json!({}))
        });
        if let Some(metadata) = metadata.and_then(Value::as_object_mut) {
            metadata.insert("name".to_owned(), "wide".into());
            metadata.insert("namespace".to_owned(), "default".into());
        }
        body
    }

    /// A structure with the one field on the path.
    fn members(&self, message: Message, depth: usize, entries: usize) -> Value {
        let step = self.steps.get(depth).filter(|_| depth < DEPTH_MAX);
        let goes_on = |field: &Field| field.is_list() || field.is_map() || field.message().is_some();
        let fields: Vec<Field> = message.fields().filter(goes_on).collect();
        let Some(field) = step.and_then(|step| fields.get(usize::from(*step) % fields.len().max(1))) else {
            return json!({});
        };
        let is_last = depth + 1 >= self.steps.len().min(DEPTH_MAX);
        let below = |field: &Field| field.message().map(|inner| self.members(inner, depth + 1, entries));
        let value = match (field.is_list(), field.is_map()) {
            (true, _) if is_last || field.message().is_none() => (0..entries).map(|at| self.entry(field, at)).collect(),
            (true, _) => {
                let mut one = self.entry(field, 0);
                if let (Some(one), Some(Value::Object(below))) = (one.as_object_mut(), below(field)) {
                    one.extend(below);
                }
                json!([one])
            }
            (_, true) => {
                let entry = |at: usize| (format!("k{at}"), self.entry(field, at));
                Value::Object((0..entries).map(entry).collect())
            }
            _ => below(field).unwrap_or_default(),
        };
        json!({ field.name(): value })
    }

    /// One entry of a list or map: every scalar is set.
    fn entry(&self, field: &Field, at: usize) -> Value {
        let Some(message) = field.message() else {
            return self.scalar(field.ty(), at);
        };
        let scalars = message
            .fields()
            .filter(|field| !field.is_list() && !field.is_map() && field.message().is_none());
        let members: Map<String, Value> = scalars
            .map(|field| (field.name().to_owned(), self.scalar(field.ty(), at)))
            .collect();
        Value::Object(members)
    }

    fn scalar(&self, ty: FieldType, at: usize) -> Value {
        let is = |bit: u8| self.sort & (1 << bit) != 0;
        let at = if is(1) { 1 } else { at };
        match ty {
            FieldType::Bool => is(0).into(),
            FieldType::Int32 | FieldType::Int64 | FieldType::IntOrString => at.into(),
            FieldType::Quantity => at.to_string().into(),
            FieldType::String if is(2) => "".into(),
            FieldType::String => format!("e{at}").into(),
            _ => Value::Null,
        }
    }
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
