//! The clauses of header `Accept`.

/// One clause.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Clause {
    /// `type/subtype`, lower case.
    pub(super) media_type: String,
    quality: f32,
    parameters: Vec<(String, String)>,
}

/// The clauses in the order in which they are tried: by descending quality, then wildcards after types, else as given.
pub(super) fn parse(header: &str) -> Vec<Clause> {
    let mut clauses: Vec<Clause> = header.split(',').filter_map(Clause::parse).collect();
    clauses.sort_by(|a, b| {
        b.quality
            .total_cmp(&a.quality)
            .then_with(|| a.is_wildcard().cmp(&b.is_wildcard()))
    });
    clauses
}

impl Clause {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts
            .next()
            .filter(|media_type| !media_type.is_empty())?
            .to_ascii_lowercase();
        // Some HTTP libraries send a bare star.
        let media_type = if media_type == "*" {
            "*/*".to_owned()
        } else {
            media_type
        };
        let mut clause = Self {
            media_type,
            quality: 1.0,
            parameters: Vec::new(),
        };
        for part in parts.filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
            if name == "q" {
                clause.quality = value
                    .parse()
                    .ok()
                    .filter(|quality: &f32| quality.is_finite())
                    .unwrap_or(1.0);
            } else {
                clause.parameters.push((name, value.to_owned()));
            }
        }
        Some(clause)
    }

    /// A parameter other than the quality.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(candidate, _)| candidate == name)
            .map(|(_, value)| value.as_str())
    }

    /// True if JSON answers the clause.
    pub(super) fn matches_json(&self) -> bool {
        self.matches("application/json")
    }

    /// True if a media type answers the clause.
    pub(super) fn matches(&self, media_type: &str) -> bool {
        matches!(self.media_type.as_str(), "application/*" | "*/*") || self.media_type == media_type
    }

    fn is_wildcard(&self) -> bool {
        self.media_type.ends_with("/*")
    }
}
