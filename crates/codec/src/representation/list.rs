//! Lists, piece by piece.

use super::pretty_text;
use crate::deflate::{self, Compressor, Deflated, Sum, stored};
use crate::encoding_cache::{self, ItemForm, Run, reach, run_len};
use crate::negotiation::{Format, MetaVersion, Negotiated, TableOptions, Transform};
use crate::schema::{self, Message};
use crate::table::Printer;
use crate::{partial, protobuf, yaml};
use bytes::Bytes;
use yurt_apimachinery::Object;
use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::kind::ResourceKind;
use yurt_apimachinery::list::{ListMeta, PARTIAL_LIST_KIND};
use yurt_apimachinery::time::Time;

/// The pieces of a list, produced on demand. Pieces of plain JSON are the stored bytes themselves.
pub struct ListBody {
    head: Option<Bytes>,
    objects: std::vec::IntoIter<Object>,
    item: Item,
    /// Between two items.
    separator: &'static [u8],
    /// The next item, when its separator was returned before it.
    waiting: Option<Bytes>,
    is_first: bool,
    tail: Option<Bytes>,
}

/// A list as a gzip stream. Neighbours that are listed often are compressed once.
pub struct GzipList {
    list: ListBody,
    form: ItemForm,
    /// Objects that the next run may refer to.
    before: Vec<Object>,
    compressor: Compressor,
    sum: Sum,
    began: bool,
    ended: bool,
}

/// Encoding of one item.
#[derive(Clone, Copy)]
pub(super) enum Item {
    Text { style: Style, look: Look },
    Protobuf { message: Message, look: Look },
}

/// Part of an object that is written.
#[derive(Clone, Copy)]
pub(super) enum Look {
    Whole,
    Metadata(MetaVersion),
    Row(Printer, TableOptions, Time),
}

/// Layout of text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Compact,
    Pretty,
    Yaml,
}

// === impl ListBody ===

impl ListBody {
    /// The list of `objects`, whose items have the bytes of [`Item::len`] together.
    pub(super) fn new(
        how: Negotiated,
        kind: &ResourceKind,
        meta: &ListMeta,
        objects: Vec<Object>,
        items: (Item, usize),
    ) -> Self {
        let (api_version, list_kind) = match how.transform {
            Transform::Table(options) => (options.version.api_version().to_owned(), "Table".to_owned()),
            Transform::None => (kind.api_version(), kind.list_kind.to_string()),
            Transform::PartialObjectMetadata(version) => {
                (version.api_version().to_owned(), PARTIAL_LIST_KIND.to_owned())
            }
        };
        let (item, bytes) = items;
        let Item::Text { style, look } = item else {
            return Self::protobuf(&api_version, &list_kind, meta, objects, item, bytes);
        };
        let meta = serde_json::to_string(meta).expect("list metadata has string keys only, so it must serialize");
        let mut head = vec![
            ("kind", quote(&list_kind)),
            ("apiVersion", quote(&api_version)),
            ("metadata", meta),
        ];
        let items = if let Look::Row(printer, ..) = look {
            head.push(("columnDefinitions", printer.columns().to_string()));
            "rows"
        } else {
            "items"
        };
        Self::text(style, &head, items, objects, item)
    }

    /// The cacheable form of its items, if they have one.
    pub fn plain(&self) -> Option<ItemForm> {
        match self.item {
            Item::Text {
                style: Style::Compact,
                look: Look::Whole,
            } => Some(ItemForm::Json),
            Item::Protobuf {
                message,
                look: Look::Whole,
            } => Some(ItemForm::Protobuf(message)),
            _ => None,
        }
    }

    /// The list as a gzip stream of items in `form`.
    pub fn gzipped(self, form: ItemForm) -> GzipList {
        GzipList {
            list: self,
            form,
            before: Vec::new(),
            compressor: Compressor::default(),
            sum: Sum::default(),
            began: false,
            ended: false,
        }
    }

    /// True if its objects are longer than so many bytes.
    pub fn is_longer(&self, bytes: u64) -> bool {
        let mut left = bytes;
        let len = |object: &Object| match self.item {
            Item::Text { .. } => object.bytes_len() as u64,
            item @ Item::Protobuf { .. } => item.len(object) as u64,
        };
        let mut lens = self.objects.as_slice().iter().map(len);
        lens.any(|len| {
            let fits = left >= len;
            left = left.saturating_sub(len);
            !fits
        })
    }

    fn text(style: Style, head: &[(&str, String)], list: &str, objects: Vec<Object>, item: Item) -> Self {
        let (head, separator, tail) = style.around(head, list, objects.is_empty());
        Self {
            head: Some(head),
            objects: objects.into_iter(),
            item,
            separator,
            waiting: None,
            is_first: true,
            tail: Some(tail),
        }
    }

    /// The length of the whole list comes first, so every item was measured before. It is encoded on demand.
    fn protobuf(
        api_version: &str,
        kind: &str,
        meta: &ListMeta,
        objects: Vec<Object>,
        item: Item,
        items: usize,
    ) -> Self {
        let meta_json = serde_json::to_vec(meta).unwrap_or_default();
        let meta = schema::find("meta.k8s.io", "v1", "ListMeta")
            .and_then(|message| protobuf::encode(message, &meta_json).ok());
        let mut first = Vec::new();
        protobuf::put_field(&mut first, 1, &meta.unwrap_or_default().bytes);
        let mut head = protobuf::envelope_head(api_version, kind, first.len() + items);
        head.extend_from_slice(&first);
        Self {
            head: Some(head.into()),
            objects: objects.into_iter(),
            item,
            separator: b"",
            waiting: None,
            is_first: true,
            tail: None,
        }
    }
}

impl Iterator for ListBody {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if let Some(piece) = self.head.take().or_else(|| self.waiting.take()) {
            return Some(piece);
        }
        let Some(object) = self.objects.next() else {
            return self.tail.take();
        };
        let item = self.item.write(&object);
        if std::mem::take(&mut self.is_first) || self.separator.is_empty() {
            return Some(item);
        }
        self.waiting = Some(item);
        Some(Bytes::from_static(self.separator))
    }
}

// === impl GzipList ===

impl GzipList {
    fn next_piece(&mut self) -> Option<Bytes> {
        let Self {
            list, compressor, sum, ..
        } = self;
        let mut put = |piece: &Deflated| {
            sum.add(piece);
            piece.blocks.clone()
        };
        if let Some(head) = list.head.take() {
            return Some(put(&stored(&head)));
        }
        let len = run_len(list.objects.as_slice());
        let objects: Vec<Object> = list.objects.by_ref().take(len).collect();
        let run = Run {
            objects: &objects,
            before: &self.before,
            separator: list.separator,
            form: self.form,
        };
        let Some(piece) = run.deflated(compressor, &mut put) else {
            return list.tail.take().map(|tail| put(&stored(&tail)));
        };
        self.before = reach(&objects).to_vec();
        Some(piece)
    }
}

impl Iterator for GzipList {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.began, true) {
            return Some(Bytes::from_static(&deflate::HEAD));
        }
        if let Some(piece) = self.next_piece() {
            return Some(piece);
        }
        let ended = std::mem::replace(&mut self.ended, true);
        (!ended).then(|| self.sum.end())
    }
}

// === impl Item ===

impl Item {
    pub(super) fn of(how: Negotiated, kind: &ResourceKind, now: Time) -> Self {
        let look = match how.transform {
            Transform::None => Look::Whole,
            Transform::PartialObjectMetadata(version) => Look::Metadata(version),
            Transform::Table(options) => Look::Row(Printer::of(kind), options, now),
        };
        let message = match how.transform {
            Transform::PartialObjectMetadata(_) => schema::find("meta.k8s.io", "v1", partial::KIND),
            _ => protobuf::message(&kind.api_version(), &kind.kind),
        };
        if let (Format::Protobuf, Some(message)) = (how.format, message) {
            return Self::Protobuf { message, look };
        }
        let style = match (how.format, how.pretty) {
            (Format::Yaml, _) => Style::Yaml,
            (_, true) => Style::Pretty,
            _ => Style::Compact,
        };
        Self::Text { style, look }
    }

    fn write(self, object: &Object) -> Bytes {
        match self {
            Self::Text { style, look } => style.item(&look.json(object)),
            Self::Protobuf {
                message,
                look: Look::Whole,
            } => encoding_cache::protobuf_item(object, message),
            Self::Protobuf { message, look } => {
                let encoded = encode(message, object, look);
                let mut out = Vec::with_capacity(encoded.len() + 8);
                protobuf::put_field(&mut out, 2, &encoded);
                out.into()
            }
        }
    }

    /// Bytes of the item in protobuf; 0 in text, where no length comes first.
    pub(super) fn len(self, object: &Object) -> usize {
        match self {
            Self::Text { .. } => 0,
            Self::Protobuf {
                message,
                look: Look::Whole,
            } => encoding_cache::protobuf_item_len(object, message),
            Self::Protobuf { message, look } => protobuf::field_len(2, encode(message, object, look).len()),
        }
    }
}

// === impl Look ===

impl Look {
    fn json(self, object: &Object) -> Bytes {
        match self {
            Self::Whole => object.bytes(),
            Self::Metadata(version) => partial::partial_object_metadata(object, version),
            Self::Row(printer, options, now) => printer.row(options, &object.bytes(), now),
        }
    }
}

fn encode(message: Message, object: &Object, look: Look) -> Vec<u8> {
    protobuf::encode(message, &look.json(object)).unwrap_or_default().bytes
}

// === impl Style ===

impl Style {
    fn item(self, json: &Bytes) -> Bytes {
        match self {
            Self::Compact => json.clone(),
            Self::Pretty => pretty_text(json).map_or_else(|| json.clone(), |text| indent(&text, "    ", "    ").into()),
            Self::Yaml => {
                let text = yaml::from_json(json);
                let text = String::from_utf8_lossy(&text);
                // Other line breaks and spaces at the end may be those of its last text.
                let text = text.strip_suffix('\n').unwrap_or(&text);
                (indent(text, "- ", "  ") + "\n").into()
            }
        }
    }

    /// Text before the items, between them and after them.
    fn around(self, head: &[(&str, String)], list: &str, is_empty: bool) -> (Bytes, &'static [u8], Bytes) {
        match self {
            Self::Compact => {
                let pairs: String = head
                    .iter()
                    .map(|(name, value)| format!("\"{name}\":{value},"))
                    .collect();
                (
                    format!("{{{pairs}\"{list}\":[").into(),
                    b",",
                    Bytes::from_static(b"]}\n"),
                )
            }
            Self::Pretty => {
                let pretty = |json: &str| pretty_text(json.as_bytes()).unwrap_or_default();
                let pair =
                    |(name, json): &(&str, String)| format!("  \"{name}\": {},\n", indent(&pretty(json), "", "  "));
                let pairs: String = head.iter().map(pair).collect();
                let (open, close) = if is_empty { ("", "") } else { ("\n", "\n  ") };
                (
                    format!("{{\n{pairs}  \"{list}\": [{open}").into(),
                    b",\n",
                    format!("{close}]\n}}").into(),
                )
            }
            Self::Yaml => {
                let write = |name: &str, json: &str| {
                    let text = yaml::from_json(format!("{{\"{name}\":{json}}}").as_bytes());
                    String::from_utf8_lossy(&text).into_owned()
                };
                // Members are sorted, as in every YAML body.
                let (mut before, mut after): (Vec<_>, Vec<_>) = head.iter().partition(|pair| pair.0 < list);
                before.sort_unstable_by_key(|pair| pair.0);
                after.sort_unstable_by_key(|pair| pair.0);
                let part =
                    |pairs: Vec<&(&str, String)>| pairs.iter().map(|pair| write(pair.0, &pair.1)).collect::<String>();
                let open = if is_empty { " []\n" } else { "\n" };
                (format!("{}{list}:{open}", part(before)).into(), b"", part(after).into())
            }
        }
    }
}

/// Puts `first` before the first line and `rest` before all others that are not empty.
fn indent(text: &str, first: &str, rest: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if !line.is_empty() {
            out.push_str(if at == 0 { first } else { rest });
        }
        out.push_str(line);
    }
    out
}
