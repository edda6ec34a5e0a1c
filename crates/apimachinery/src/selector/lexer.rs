//! Tokens of label selectors.

/// One token, with the text it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scanned {
    pub(super) token: Token,
    pub(super) text: String,
}

/// Kinds of tokens.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Error,
    End,
    ClosedParenthesis,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    GreaterThan,
    Identifier,
    In,
    LessThan,
    NotEquals,
    NotIn,
    OpenParenthesis,
}

/// Splits a selector into tokens; the last one is [`Token::End`].
pub(super) fn scan(text: &str) -> Vec<Scanned> {
    let mut rest = text;
    let mut tokens = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let Some(first) = rest.chars().next() else {
            tokens.push(Scanned {
                token: Token::End,
                text: String::new(),
            });
            return tokens;
        };
        let (scanned, len) = if is_symbol(first) {
            scan_symbol(rest)
        } else {
            scan_word(rest)
        };
        tokens.push(scanned);
        rest = &rest[len..];
    }
}

fn is_symbol(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn scan_word(text: &str) -> (Scanned, usize) {
    let len = text.find(|c| is_symbol(c) || is_blank(c)).unwrap_or(text.len());
    let word = &text[..len];
    let token = match word {
        "in" => Token::In,
        "notin" => Token::NotIn,
        _ => Token::Identifier,
    };
    (
        Scanned {
            token,
            text: word.to_owned(),
        },
        len,
    )
}

/// The longest operator at the front of a text that starts with a symbol. Every single symbol is an operator.
fn scan_symbol(text: &str) -> (Scanned, usize) {
    let longest = [2, 1].into_iter().filter_map(|len| text.get(..len));
    for candidate in longest {
        if let Some(token) = symbol(candidate) {
            return (
                Scanned {
                    token,
                    text: candidate.to_owned(),
                },
                candidate.len(),
            );
        }
    }
    (
        Scanned {
            token: Token::Error,
            text: text.to_owned(),
        },
        text.len(),
    )
}

fn symbol(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::ClosedParenthesis,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::GreaterThan,
        "<" => Token::LessThan,
        "!=" => Token::NotEquals,
        "(" => Token::OpenParenthesis,
        _ => return None,
    })
}
