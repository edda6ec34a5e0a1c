//! The grammar of label selectors, with kube-apiserver's errors.
//!
//! ```text
//! selector    ::= requirement | requirement "," selector
//! requirement ::= [!] KEY [ ("in"|"notin") "(" values ")" | ("="|"=="|"!="|">"|"<") VALUE ]
//! values      ::= VALUE | VALUE "," values
//! ```

use super::label::{LabelOperator, LabelRequirement};
use super::lexer::{Scanned, Token, scan};
use crate::meta::{label_key_errors, label_value_errors};
use crate::status::FieldError;

struct Parser {
    tokens: Vec<Scanned>,
    at: usize,
}

const BINARY_OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

/// Reads a selector; requirements come in the order of the text.
pub(super) fn parse(text: &str) -> Result<Vec<LabelRequirement>, String> {
    let mut parser = Parser {
        tokens: scan(text),
        at: 0,
    };
    let mut requirements = Vec::new();
    loop {
        let (token, text) = parser.peek();
        match token {
            Token::End => return Ok(requirements),
            Token::Identifier | Token::Not => {}
            _ => return Err(format!("found '{text}', expected: !, identifier, or 'end of string'")),
        }
        let requirement = parser
            .requirement()
            .map_err(|error| format!("unable to parse requirement: {error}"))?;
        requirements.push(requirement);
        let (token, text) = parser.take();
        match token {
            Token::End => return Ok(requirements),
            Token::Comma if matches!(parser.peek().0, Token::Identifier | Token::Not) => {}
            Token::Comma => return Err(format!("found '{}', expected: identifier after ','", parser.peek().1)),
            _ => return Err(format!("found '{text}', expected: ',' or 'end of string'")),
        }
    }
}

impl Parser {
    /// The next token, where keywords count as identifiers.
    fn peek(&self) -> (Token, String) {
        let end = || (Token::End, String::new());
        self.tokens
            .get(self.at)
            .map_or_else(end, |scanned| (as_value(scanned.token), scanned.text.clone()))
    }

    fn take(&mut self) -> (Token, String) {
        let next = self.peek();
        self.at += 1;
        next
    }

    fn requirement(&mut self) -> Result<LabelRequirement, String> {
        let (mut token, mut key) = self.take();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.take();
        }
        if token != Token::Identifier {
            return Err(format!("found '{key}', expected: identifier"));
        }
        check_key(&key)?;
        if matches!(self.peek().0, Token::End | Token::Comma) {
            let operator = if negated {
                LabelOperator::DoesNotExist
            } else {
                LabelOperator::Exists
            };
            return Ok(LabelRequirement {
                key,
                operator,
                values: Vec::new(),
            });
        }
        if negated {
            // Go reads `!k in (a)` as existence and then trips over the rest.
            return Ok(LabelRequirement {
                key,
                operator: LabelOperator::DoesNotExist,
                values: Vec::new(),
            });
        }
        let operator = self.operator()?;
        let mut values = match operator {
            LabelOperator::In | LabelOperator::NotIn => self.values()?,
            _ => vec![self.value()?],
        };
        values.sort_unstable();
        values.dedup();
        check_values(&key, operator, &values)?;
        Ok(LabelRequirement { key, operator, values })
    }

    fn operator(&mut self) -> Result<LabelOperator, String> {
        let scanned = self.tokens.get(self.at).cloned();
        self.at += 1;
        let (token, text) = scanned.map_or((Token::End, String::new()), |scanned| (scanned.token, scanned.text));
        Ok(match token {
            Token::In => LabelOperator::In,
            Token::NotIn => LabelOperator::NotIn,
            Token::Equals => LabelOperator::Equals,
            Token::DoubleEquals => LabelOperator::DoubleEquals,
            Token::NotEquals => LabelOperator::NotEquals,
            Token::GreaterThan => LabelOperator::GreaterThan,
            Token::LessThan => LabelOperator::LessThan,
            _ => return Err(format!("found '{text}', expected: {BINARY_OPERATORS}")),
        })
    }

    /// `(a,,b)`: missing values are empty strings.
    fn values(&mut self) -> Result<Vec<String>, String> {
        let (token, text) = self.take();
        if token != Token::OpenParenthesis {
            return Err(format!("found '{text}' expected: '('"));
        }
        let mut values = Vec::new();
        let mut current = None;
        loop {
            let (token, text) = self.take();
            match token {
                Token::Identifier if current.is_none() => current = Some(text),
                Token::Identifier => return Err(format!("found '{text}', expected: ',' or ')'")),
                Token::Comma => values.push(current.take().unwrap_or_default()),
                Token::ClosedParenthesis => {
                    values.push(current.unwrap_or_default());
                    return Ok(values);
                }
                _ => {
                    let expected = match (&current, values.is_empty()) {
                        (Some(_), _) => "',' or ')'",
                        (None, true) => "',', ')' or identifier",
                        (None, false) => "',', or identifier",
                    };
                    return Err(format!("found '{text}', expected: {expected}"));
                }
            }
        }
    }

    /// The value of a comparison; nothing is the empty string.
    fn value(&mut self) -> Result<String, String> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.take() {
            (Token::Identifier, text) => Ok(text),
            (_, text) => Err(format!("found '{text}', expected: identifier")),
        }
    }
}

fn as_value(token: Token) -> Token {
    if matches!(token, Token::In | Token::NotIn) {
        Token::Identifier
    } else {
        token
    }
}

fn check_key(key: &str) -> Result<(), String> {
    let faults = label_key_errors(key);
    // kube-apiserver prints its nil field path as is.
    if faults.is_empty() {
        Ok(())
    } else {
        Err(FieldError::invalid("<nil>", key, &faults.join("; ")).to_string())
    }
}

fn check_values(key: &str, operator: LabelOperator, values: &[String]) -> Result<(), String> {
    let mut errors = Vec::new();
    for (at, value) in values.iter().enumerate() {
        if matches!(operator, LabelOperator::GreaterThan | LabelOperator::LessThan) && value.parse::<i64>().is_err() {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            errors.push(FieldError::invalid(format!("values[{at}]"), value.as_str(), why).to_string());
        }
        let faults = label_value_errors(value);
        if !faults.is_empty() {
            let field = format!("values[{at}][{key}]");
            errors.push(FieldError::invalid(field, value.as_str(), &faults.join("; ")).to_string());
        }
    }
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}
