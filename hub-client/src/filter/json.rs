//! JSON text of an object: access to single values, and edits that copy every other value byte for byte.
//!
//! No tree is built: order, unknown members and the notation of numbers stay. Text that is no JSON has no members.

use std::borrow::Cow;

use bytes::Bytes;
use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::json_text::scan::{skip_blank, skip_value};
use yurt_apimachinery::{Object, ResourceKind};

use super::Verdict;

/// Text of one JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Json<'a>(&'a [u8]);

/// Change of a member or an item.
pub(crate) enum Edit {
    Keep,
    /// Another value.
    Set(Vec<u8>),
    Remove,
}

/// A value has another type than its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongType;

/// Values between the brackets of a list, or names and values between those of an object.
struct Inside<'a> {
    text: &'a [u8],
    at: usize,
}

/// A member or item with its change; the name of an item is empty.
struct Part<'a> {
    name: &'a [u8],
    value: &'a [u8],
    edit: Edit,
}

// === impl Json ===

impl<'a> Json<'a> {
    /// The value that `text` is, such as a whole object.
    pub(crate) fn of(text: &'a [u8]) -> Self {
        Json(text)
    }

    /// The text.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// True if the member of that name is `true`.
    pub(crate) fn is_true(self, name: &str) -> bool {
        self.member(name).is_some_and(|value| value.0 == b"true")
    }

    fn is_null(self) -> bool {
        self.0 == b"null"
    }

    /// The text of a string; `None` for another type.
    pub(crate) fn text(self) -> Option<Cow<'a, str>> {
        let inner = self.0.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        if inner.contains(&b'\\') {
            return serde_json::from_slice(self.0).ok().map(Cow::Owned);
        }
        std::str::from_utf8(inner).ok().map(Cow::Borrowed)
    }

    /// The items of a list; null is an empty list.
    pub(crate) fn items(self) -> Result<impl Iterator<Item = Json<'a>>, WrongType> {
        let text = match self.0.first() {
            Some(b'[') => self.0,
            _ if self.is_null() => b"",
            _ => return Err(WrongType),
        };
        let mut inside = Inside { text, at: 1 };
        Ok(std::iter::from_fn(move || inside.value()).map(Json))
    }

    /// The last member of that name, which is the one that counts. `None` if there is none, or this is no object.
    pub(crate) fn member(self, name: &str) -> Option<Json<'a>> {
        let named = self.members().filter(|(quoted, _)| is_name(quoted, name)).last();
        named.map(|(_, value)| value)
    }

    /// The member that `path` leads to; `None` if it or an object on the way is absent or null.
    ///
    /// # Errors
    /// A value on the way is no object.
    pub(crate) fn at(self, path: &[&str]) -> Result<Option<Json<'a>>, WrongType> {
        let mut value = self;
        for name in path {
            if !value.is_object() {
                return Err(WrongType);
            }
            match value.member(name) {
                Some(member) if !member.is_null() => value = member,
                _ => return Ok(None),
            }
        }
        Ok(Some(value))
    }

    /// The text that `path` leads to, empty if it is absent or null.
    ///
    /// # Errors
    /// The value is no text, or a value on the way is no object.
    pub(crate) fn text_at(self, path: &[&str]) -> Result<Cow<'a, str>, WrongType> {
        match self.at(path)? {
            Some(value) => value.text().ok_or(WrongType),
            None => Ok(Cow::Borrowed("")),
        }
    }

    /// The text of this object without those items of the list in member `list` whose last member `name` is not to
    /// `keep`; `None` if that is all of them. Reads the text in one pass.
    ///
    /// # Errors
    /// There is not exactly one such list, or it has items that are no objects.
    pub(crate) fn retain_items(
        self,
        list: &str,
        name: &str,
        keep: impl Fn(Option<Json<'a>>) -> bool,
    ) -> Result<Option<Vec<u8>>, WrongType> {
        self.retained(list, |items| items.retain_objects(name, &keep))
            .ok_or(WrongType)
    }

    /// Edits the one member `list` by `edit`; outer `None` if there is not one, or it cannot be read.
    fn retained(
        self,
        list: &str,
        edit: impl Fn(&mut Inside<'a>) -> Option<Option<Vec<u8>>>,
    ) -> Option<Option<Vec<u8>>> {
        let mut object = Inside::begin(self.0, 0, b'{')?;
        let mut edited = None;
        while let Some(key) = object.name() {
            if !is_name(key, list) {
                object.value()?;
                continue;
            }
            let before = edit(&mut object)?.map(|text| (text, object.at));
            if edited.replace(before).is_some() {
                return None;
            }
        }
        object.end(b'}')?;
        let whole = |(mut text, end): (Vec<u8>, usize)| {
            text.extend_from_slice(&self.0[end..]);
            text
        };
        edited.map(|edited| edited.map(whole))
    }

    /// Edits the items of a list; `None` if nothing changes, or this is no list.
    pub(crate) fn edit_items(self, mut edit: impl FnMut(Json<'a>) -> Edit) -> Option<Vec<u8>> {
        let items = self.items().ok()?;
        let parts = items.map(|item| Part::new(b"", item, edit(item)));
        joined([b'[', b']'], parts.collect())
    }

    /// Edits the members of an object; `None` if nothing changes, or this is no object.
    pub(crate) fn edit_members(self, mut edit: impl FnMut(&str, Json<'a>) -> Edit) -> Option<Vec<u8>> {
        let parts = self.members().map(|(name, value)| {
            let text = Json(name).text().unwrap_or_default();
            Part::new(name, value, edit(&text, value))
        });
        joined([b'{', b'}'], parts.collect())
    }

    /// Edits the value that `path` leads to; `None` if nothing changes or there is no such value.
    pub(crate) fn edit_at(self, path: &[&str], edit: &dyn Fn(Json<'a>) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        let Some((first, rest)) = path.split_first() else {
            return edit(self);
        };
        self.edit_members(|name, value| {
            let edited = (name == *first).then(|| value.edit_at(rest, edit)).flatten();
            edited.map_or(Edit::Keep, Edit::Set)
        })
    }

    /// Sets members of an object, the new ones at its end; `None` if nothing changes, or this is no object.
    pub(crate) fn with(self, members: &[(&str, &[u8])]) -> Option<Vec<u8>> {
        if !self.is_object() {
            return None;
        }
        let value_of = |name: &[u8]| members.iter().find(|(new, _)| is_name(name, new));
        let mut parts: Vec<Part<'_>> = self
            .members()
            .map(|(name, value)| {
                let edit = value_of(name).map_or(Edit::Keep, |(_, text)| Edit::Set(text.to_vec()));
                Part::new(name, value, edit)
            })
            .collect();
        let is_absent = |(name, _): &&(&str, &[u8])| self.member(name).is_none();
        let absent: Vec<(String, &[u8])> = members
            .iter()
            .filter(is_absent)
            .map(|(name, text)| (quote(name), *text))
            .collect();
        for (name, text) in &absent {
            parts.push(Part::new(name.as_bytes(), Json(b""), Edit::Set(text.to_vec())));
        }
        joined([b'{', b'}'], parts)
    }

    fn is_object(self) -> bool {
        self.0.first() == Some(&b'{')
    }

    /// Names with their quotes, and values.
    fn members(self) -> impl Iterator<Item = (&'a [u8], Json<'a>)> {
        let text = if self.is_object() { self.0 } else { b"" };
        let mut inside = Inside { text, at: 1 };
        std::iter::from_fn(move || inside.member())
    }
}

/// True if a name with its quotes is `name`.
fn is_name(quoted: &[u8], name: &str) -> bool {
    match quoted.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) {
        Some(plain) if !plain.contains(&b'\\') => plain == name.as_bytes(),
        _ => Json(quoted).text().is_some_and(|text| text == name),
    }
}

/// The text of an edited list or object; `None` if nothing changes.
fn joined(brackets: [u8; 2], parts: Vec<Part<'_>>) -> Option<Vec<u8>> {
    if parts.iter().all(|part| matches!(part.edit, Edit::Keep)) {
        return None;
    }
    let room = |part: &Part<'_>| {
        let value = match &part.edit {
            Edit::Keep => part.value.len(),
            Edit::Set(text) => text.len(),
            Edit::Remove => 0,
        };
        part.name.len() + value + 2
    };
    let mut out = Vec::with_capacity(parts.iter().map(room).sum::<usize>() + 2);
    out.push(brackets[0]);
    for part in &parts {
        let value = match &part.edit {
            Edit::Keep => part.value,
            Edit::Set(text) => text,
            Edit::Remove => continue,
        };
        if out.len() > 1 {
            out.push(b',');
        }
        if !part.name.is_empty() {
            out.extend_from_slice(part.name);
            out.push(b':');
        }
        out.extend_from_slice(value);
    }
    out.push(brackets[1]);
    Some(out)
}

/// The verdict on an object whose text was edited; `None` is an edit that changes nothing.
pub(super) fn verdict(kind: &ResourceKind, edited: Option<Vec<u8>>) -> Verdict {
    match edited {
        None => Verdict::Keep,
        // An object that was readable is readable with the edits of a filter.
        Some(text) => Object::parse(Bytes::from(text), kind).map_or(Verdict::Drop, Verdict::Replace),
    }
}

// === impl Part ===

impl<'a> Part<'a> {
    fn new(name: &'a [u8], value: Json<'a>, edit: Edit) -> Self {
        let edit = match edit {
            Edit::Set(text) if text == value.0 => Edit::Keep,
            edit => edit,
        };
        Part {
            name,
            value: value.0,
            edit,
        }
    }
}

// === impl Inside ===

impl<'a> Inside<'a> {
    /// Enters the list or object that begins at `at` with `bracket`.
    fn begin(text: &'a [u8], at: usize, bracket: u8) -> Option<Self> {
        let at = skip_blank(text, at);
        (text.get(at) == Some(&bracket)).then_some(Self { text, at: at + 1 })
    }

    /// The position after `bracket`, which has to come next.
    fn end(&self, bracket: u8) -> Option<usize> {
        let at = skip_blank(self.text, self.at);
        (self.text.get(at) == Some(&bracket)).then_some(at + 1)
    }

    /// Goes to the next value, past a comma.
    fn next(&mut self) {
        self.at = skip_blank(self.text, self.at);
        if self.text.get(self.at) == Some(&b',') {
            self.at = skip_blank(self.text, self.at + 1);
        }
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        self.next();
        let start = self.at;
        self.at = skip_value(self.text, start)?;
        self.text.get(start..self.at)
    }

    /// The name of the next member, whose value comes next.
    fn name(&mut self) -> Option<&'a [u8]> {
        let name = self.value()?;
        let colon = skip_blank(self.text, self.at);
        if self.text.get(colon) != Some(&b':') {
            return None;
        }
        self.at = colon + 1;
        Some(name)
    }

    fn member(&mut self) -> Option<(&'a [u8], Json<'a>)> {
        Some((self.name()?, Json(self.value()?)))
    }

    /// Passes the list of objects that comes next. Returns the text up to its end without the items whose member `name`
    /// is not to `keep`; inner `None` if that is all of them.
    fn retain_objects(&mut self, name: &str, keep: &impl Fn(Option<Json<'a>>) -> bool) -> Option<Option<Vec<u8>>> {
        let mut list = Self::begin(self.text, self.at, b'[')?;
        let mut edited: Option<Vec<u8>> = None;
        // End of the last item that is kept, and whether there is one.
        let (mut kept_to, mut has_kept) = (list.at, false);
        loop {
            list.next();
            if list.text.get(list.at) == Some(&b']') {
                break;
            }
            let (start, mut member) = (list.at, None);
            let mut item = Self::begin(list.text, start, b'{')?;
            while let Some((key, value)) = item.member() {
                if is_name(key, name) {
                    member = Some(value);
                }
            }
            list.at = item.end(b'}')?;
            match (keep(member), &mut edited) {
                (true, None) => kept_to = list.at,
                (true, Some(text)) => {
                    text.extend_from_slice(if has_kept { b"," } else { b"" });
                    text.extend_from_slice(&self.text[start..list.at]);
                }
                (false, Some(_)) => continue,
                (false, None) => {
                    let mut text = Vec::with_capacity(self.text.len());
                    text.extend_from_slice(&self.text[..kept_to]);
                    edited = Some(text);
                    continue;
                }
            }
            has_kept = true;
        }
        self.at = list.at + 1;
        if let Some(text) = &mut edited {
            text.push(b']');
        }
        Some(edited)
    }
}

#[cfg(test)]
mod tests;
