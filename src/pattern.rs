//! Patterns of routes, in the syntax of axum 0.8.

use crate::error::ConfigError;

/// The largest number of parameters in a pattern.
const MAX_PARAMETERS: usize = 25;

/// A pattern that begins with `/`, has no segment in the syntax of axum 0.7, can match a path, and has not too many parameters.
#[derive(Clone, Copy)]
pub(crate) struct Pattern<'a>(&'a str);

impl<'a> Pattern<'a> {
    pub(crate) fn new(route: &'a str) -> Result<Self, ConfigError> {
        let pattern = Self(route);
        if !route.starts_with('/') {
            return Err(pattern.error("it must begin with `/`"));
        }
        for (mark, syntax) in [(':', "{name}"), ('*', "{*name}")] {
            if let Some(segment) = route.split('/').find(|segment| segment.starts_with(mark)) {
                return Err(pattern
                    .error(format!("segment {segment:?} has the syntax of axum 0.7: write `{syntax}`")));
            }
        }
        if let Some(character) = pattern
            .literals()
            .find(|c| matches!(c, '?' | '#') || c.is_ascii_whitespace() || c.is_ascii_control())
        {
            let reason = match character {
                '?' => "it must be a path without a query, and no path contains `?`".to_owned(),
                other => format!("no path contains {other:?}"),
            };
            return Err(pattern.error(reason));
        }
        if route.replace("{{", "").matches('{').count() != route.replace("}}", "").matches('}').count() {
            return Err(pattern.error("`{` and `}` must come in pairs: to match one of them, write it twice"));
        }
        // `matchit` panics with more.
        if route.replace("{{", "").matches('{').count() > MAX_PARAMETERS {
            return Err(pattern.error(format!("it must have at most {MAX_PARAMETERS} parameters")));
        }
        Ok(pattern)
    }

    /// Returns the characters outside of the names of parameters.
    fn literals(self) -> impl Iterator<Item = char> + use<'a> {
        let mut is_name = false;
        // An escaped `{{` or `}}` changes the state twice.
        self.0.chars().filter(move |c| {
            is_name ^= matches!(c, '{' | '}');
            !is_name
        })
    }

    /// Returns whether the pattern contains `{name}` or `{*name}`.
    pub(crate) fn has_parameter(self, name: &str) -> bool {
        self.0
            .split('/')
            .any(|segment| segment.contains(&format!("{{{name}}}")) || segment == format!("{{*{name}}}"))
    }

    pub(crate) fn insert<T>(self, router: &mut matchit::Router<T>, value: T) -> Result<(), ConfigError> {
        // As text: the type of the router's error is not a part of the interface.
        router.insert(self.0, value).map_err(|error| self.error(error.to_string()))
    }

    pub(crate) fn error(self, reason: impl Into<String>) -> ConfigError {
        ConfigError::InvalidRoute { route: self.0.to_owned(), reason: reason.into() }
    }
}
