//! The key in a header.

use http::{HeaderName, Request};

use super::{KeyError, KeyExtractor, PartitionKey};
use crate::error::ConfigError;

/// The value of a header as the key; made by [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    kind: Box<str>,
}

/// Counts by the value of this header, byte for byte: an API key, for example.
///
/// A request without the header, or with an empty value, has no key of this kind. A request with several values is
/// malformed: whichever were taken, another part of the service might take another one.
///
/// The client writes the header. Count by it alone only where a wrong value gets nobody in; for a user that an earlier
/// layer has verified, see [`extension`](crate::extension).
///
/// # Errors
///
/// [`ConfigError::HeaderName`] if no header can have this name.
pub fn header(name: &str) -> Result<Header, ConfigError> {
    let name = HeaderName::try_from(name)
        .map_err(|source| ConfigError::HeaderName { name: name.to_owned(), source })?;
    let kind = format!("header:{name}").into();
    Ok(Header { name, kind })
}

impl<B> KeyExtractor<Request<B>> for Header {
    fn extract(&self, request: &Request<B>) -> Result<Option<PartitionKey>, KeyError> {
        let mut values = request.headers().get_all(&self.name).iter();
        let (first, second) = (values.next(), values.next());
        if second.is_some() {
            let what = format!("header {}", self.name);
            return Err(KeyError::Malformed { what, why: "it is there more than once".to_owned() });
        }
        let value = first.map(|value| value.as_bytes()).filter(|value| !value.is_empty());
        Ok(value.map(|value| PartitionKey::new(&self.kind, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract(values: &[&str]) -> Result<Option<PartitionKey>, KeyError> {
        let mut request = Request::builder();
        for value in values {
            request = request.header("X-Api-Key", *value);
        }
        header("x-api-key").unwrap().extract(&request.body(()).unwrap())
    }

    #[test]
    fn the_value_is_the_key_and_an_empty_one_is_none() {
        assert_eq!(extract(&["alice"]), Ok(Some(PartitionKey::new("header:x-api-key", "alice"))));
        assert_eq!(extract(&[]), Ok(None));
        assert_eq!(extract(&[""]), Ok(None));
    }

    #[test]
    fn two_values_are_malformed() {
        let error = extract(&["alice", "bob"]).unwrap_err();
        assert_eq!(error.to_string(), "header x-api-key: it is there more than once");
    }

    #[test]
    fn a_name_that_is_none_is_an_error() {
        let error = header("x api key").unwrap_err();
        assert_eq!(error.to_string(), r#"header name "x api key": it is not a valid HTTP field name"#);
    }
}
