//! Lines of JSON.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{instant, shortened};

/// A line: an object with any fields.
pub(super) struct JsonLine(Map<String, Value>);

impl JsonLine {
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map(Self).map_err(|error| format!("invalid JSON: {error}"))
    }

    /// Returns the value of a field by its name, or by the names of objects and a field, such as `request.method`.
    fn value(&self, name: &str) -> Option<&Value> {
        if let Some(value) = self.0.get(name) {
            return Some(value).filter(|value| !value.is_null());
        }
        let mut names = name.split('.');
        let first = self.0.get(names.next()?)?;
        names.try_fold(first, |value, name| value.get(name)).filter(|value| !value.is_null())
    }

    pub(super) fn field(&self, name: &str) -> Result<Option<Cow<'_, str>>, String> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.into())),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(Some(value.to_string().into())),
            Some(_) => Err(format!("field {name:?}: it must be a string, a number, true or false")),
        }
    }

    /// Returns the instant in a field, in microseconds of Unix time.
    pub(super) fn instant(&self, name: &str) -> Result<u64, String> {
        match self.value(name) {
            Some(Value::String(text)) => instant::from_text(text),
            Some(Value::Number(number)) => instant::from_number(number),
            Some(_) => Err(format!("field {name:?}: it must be a time, as a string or a number")),
            None => Err(format!("no field {:?}: `[fields]` names the time of a line", shortened(name))),
        }
    }
}
