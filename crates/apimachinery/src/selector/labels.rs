//! The labels of an object, sorted by key.

use std::cmp::Ordering;
use std::fmt;

/// Labels of one object. Sorted, each key once.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Key, value, key, value, concatenated: a separate allocation for each would take more memory than the text
    /// itself.
    text: Box<str>,
    /// End offset of each of them.
    ends: Box<[u32]>,
}

// === impl Labels ===

impl Labels {
    /// Value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let piece = |at: usize| {
            let start = at.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
            &self.text[start..self.ends[at] as usize]
        };
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match piece(2 * middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some(piece(2 * middle + 1)),
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Every label, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        let mut piece = move |end: u32| {
            let end = end as usize;
            &self.text[std::mem::replace(&mut start, end)..end]
        };
        self.ends
            .chunks_exact(2)
            .map(move |pair| (piece(pair[0]), piece(pair[1])))
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of labels.
    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    /// Bytes of all keys and values.
    pub(crate) fn text_len(&self) -> usize {
        self.text.len()
    }
}

/// A key given twice keeps its last value.
impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut pairs: Vec<(K, V)> = pairs.into_iter().collect();
        // The sort is stable: after the reversal the last of equal keys comes first, and dedup keeps the first.
        pairs.reverse();
        pairs.sort_by(|a, b| a.0.as_ref().cmp(b.0.as_ref()));
        pairs.dedup_by(|a, b| a.0.as_ref() == b.0.as_ref());
        let len = |pair: &(K, V)| pair.0.as_ref().len() + pair.1.as_ref().len();
        let mut text = String::with_capacity(pairs.iter().map(len).sum());
        let mut ends = Vec::with_capacity(2 * pairs.len());
        for piece in pairs.iter().flat_map(|(key, value)| [key.as_ref(), value.as_ref()]) {
            text.push_str(piece);
            ends.push(u32::try_from(text.len()).expect("labels are part of an object, which has no gigabytes"));
        }
        Self {
            text: text.into(),
            ends: ends.into(),
        }
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
