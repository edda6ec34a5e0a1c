//! Environment variables that select an HTTP proxy. Programs in Go use them, OpenYurt's hub too; this hub connects
//! directly.

/// The variables for servers with https, as Go's `ProxyFromEnvironment` reads them.
const VARIABLES: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];

/// Returns the variables that are set and have no effect.
pub fn set(value_of: impl Fn(&str) -> Option<String>) -> Vec<&'static str> {
    let is_set = |name: &&str| value_of(name).is_some_and(|value| !value.is_empty());
    VARIABLES.into_iter().filter(is_set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_with_a_proxy_are_named() {
        let named = |variables: &[(&str, &str)]| {
            set(|name| {
                let mut values = variables.iter().filter(|(variable, _)| *variable == name);
                values.next().map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(named(&[("https_proxy", "http://proxy:3128")]), ["https_proxy"]);
        assert!(named(&[("HTTPS_PROXY", ""), ("NO_PROXY", "10.0.0.0/8")]).is_empty());
    }
}
