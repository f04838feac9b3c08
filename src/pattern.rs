//! Patterns of routes, in the syntax of axum 0.8.

use crate::error::ConfigError;

/// The largest number of parameters in a pattern.
const MAX_PARAMETERS: usize = 25;

/// A pattern that begins with `/`, has no segment in the syntax of axum 0.7, and has not too many parameters.
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
        // `matchit` panics with more.
        if route.replace("{{", "").matches('{').count() > MAX_PARAMETERS {
            return Err(pattern.error(format!("it must have at most {MAX_PARAMETERS} parameters")));
        }
        Ok(pattern)
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
