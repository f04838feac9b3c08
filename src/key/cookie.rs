//! The key in a cookie.

use http::header::COOKIE;
use percent_encoding::percent_decode;

use super::{KeyError, KeyExtractor, PartitionKey, kinds};
use crate::{error::ConfigError, head::Head};

/// The value of a cookie as the key. Returned by [`cookie`].
#[derive(Clone, Debug)]
pub struct Cookie {
    name: Box<str>,
    kind: Box<str>,
}

/// Counts by the value of this cookie (RFC 6265): a session, for example.
///
/// Name and value are percent-decoded, and quotation marks around the value are removed. Parsers of cookies differ in this, so
/// `session=%61lice` and `session="alice"` may be the session `alice` for the service. All of its forms are one key: otherwise, a
/// client could get a new quota for each of them.
///
/// A request without the cookie, or with an empty value, has no key of this kind. A request with several cookies of this name is
/// malformed, because another part of the service might read another one of them.
///
/// **An unverified cookie is not an identity**, as for [`header`](super::header()): the client writes it. Limit by a cookie alone
/// only if an earlier layer rejects wrong values. Otherwise, also limit the address.
///
/// ```
/// use tower_sliding_window::{KeyExtractor, PartitionKey, key::cookie};
///
/// let request = http::Request::get("/").header("cookie", "theme=dark; session=31d4").body(()).unwrap();
/// let session = cookie("session")?.extract(&(&request).into()).unwrap();
/// assert_eq!(session, Some(PartitionKey::new("cookie:session", "31d4")));
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// # Errors
///
/// Returns [`ConfigError::InvalidValue`] unless the name is a token (RFC 9110): one or more ASCII letters, digits and ``!#$%&'*+-.^_`|~``.
pub fn cookie(name: &str) -> Result<Cookie, ConfigError> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(is_token) {
        let valid = "one or more ASCII letters, digits and !#$%&'*+-.^_`|~";
        return Err(ConfigError::invalid_text("cookie name", name, valid));
    }
    Ok(Cookie { name: name.into(), kind: kinds::cookie(name) })
}

impl KeyExtractor for Cookie {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        // HTTP/2 may send each cookie in a line of its own.
        let lines = head.headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let mut values = pairs.filter_map(|pair| {
            let mut parts = pair.splitn(2, |byte| *byte == b'=').map(<[u8]>::trim_ascii);
            let (name, value) = (parts.next()?, parts.next()?);
            let is_name = name == self.name.as_bytes() || percent_decode(name).eq(self.name.bytes());
            is_name.then(|| decoded(value))
        });
        let (first, second) = (values.next(), values.next());
        if second.is_some() {
            let what = format!("cookie {}", self.name);
            return Err(KeyError::malformed(what, "the cookie occurs more than once"));
        }
        Ok(first.filter(|value| !value.is_empty()).map(|value| PartitionKey::new(&self.kind, value)))
    }

    fn missing(&self, _head: &Head<'_>) -> String {
        format!("cookie {:?}", &*self.name)
    }
}

/// Returns a value without its encoding.
fn decoded(value: &[u8]) -> Vec<u8> {
    let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    percent_decode(quoted.unwrap_or(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract(lines: &[&str]) -> Result<Option<PartitionKey>, KeyError> {
        let mut request = http::Request::builder();
        for line in lines {
            request = request.header(COOKIE, *line);
        }
        cookie("id").unwrap().extract(&(&request.body(()).unwrap()).into())
    }

    #[test]
    fn value_of_cookie_is_key() {
        let alice = Ok(Some(PartitionKey::new("cookie:id", "alice")));
        for lines in
            [&["id=alice"][..], &["a=1; id=alice ;b"], &["a=id=bob", " id = alice;"], &["idx=1;id=alice"]]
        {
            assert_eq!(extract(lines), alice, "{lines:?}");
        }
        for lines in [&[][..], &["id"], &["id="], &["ID=alice; xid=alice; id2=alice"], &[""]] {
            assert_eq!(extract(lines), Ok(None), "{lines:?}");
        }
        assert_eq!(extract(&["id=a=b"]), Ok(Some(PartitionKey::new("cookie:id", "a=b"))));
    }

    /// All of these are Alice for some parser of cookies.
    #[test]
    fn every_form_of_cookie_is_one_key() {
        let alice = Ok(Some(PartitionKey::new("cookie:id", "alice")));
        for line in ["id=%61lice", "id=%61%6C%69%63%65", r#"id="alice""#, r#"id="%61lice""#, "%69d=alice"] {
            assert_eq!(extract(&[line]), alice, "{line}");
        }
        for (line, value) in [("id=%", "%"), ("id=a%2", "a%2"), (r#"id="a"#, "\"a"), ("id=%22a%22", "\"a\"")]
        {
            assert_eq!(extract(&[line]), Ok(Some(PartitionKey::new("cookie:id", value))), "{line}");
        }
        assert_eq!(extract(&[r#"id="""#]), Ok(None));
        assert!(extract(&["id=alice; %69d=bob"]).is_err());
    }

    #[test]
    fn repeated_cookie_is_malformed() {
        for lines in [&["id=alice; id=bob"][..], &["id=alice", "id="]] {
            let error = extract(lines).unwrap_err();
            assert_eq!(
                error.to_string(),
                "malformed rate limit key: cookie id: the cookie occurs more than once",
                "{lines:?}"
            );
        }
    }

    #[test]
    fn invalid_cookie_name_is_an_error() {
        for name in ["", "a b", "a=b", "é"] {
            let error = cookie(name).unwrap_err();
            assert!(matches!(error, ConfigError::InvalidValue { .. }), "{error:?}");
        }
    }
}
