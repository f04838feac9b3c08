//! The cost of a request by the size of its body.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};

use super::{CostFunction, Costs};
use crate::{error::ConfigError, head::Head};

/// A cost by the length of the body. Returned by [`by_content_length`].
#[derive(Clone, Copy, Debug)]
pub struct ByContentLength {
    bytes_per_unit: u64,
    otherwise: u32,
}

/// Costs one unit of every policy for each started block of this many bytes of the body, at least 1 unit and at most 2^32-1.
/// The size is that of the header `Content-Length`, unless the request has `Transfer-Encoding`: then a server reads the body without
/// regard to the length (RFC 9112, section 6.3).
///
/// A request without the length costs 1 unit, unless [`otherwise`](ByContentLength::otherwise) sets another cost. **A client can
/// omit the header**: over HTTP/1.1 with `transfer-encoding: chunked`, and over HTTP/2. Set a larger cost for routes where every
/// request has a body, or reject such requests with 411.
///
/// ```
/// use tower_sliding_window::{CostFunction, cost::by_content_length};
///
/// let by_size = by_content_length(1024)?.otherwise(64);
/// let cost = |length: &str| {
///     let request = http::Request::post("/").header("content-length", length).body(()).unwrap();
///     by_size.cost(&(&request).into())
/// };
/// assert_eq!([cost("0"), cost("1024"), cost("1025"), cost("")], [1, 1, 2, 64].map(Into::into));
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// # Errors
///
/// Returns [`ConfigError::InvalidValue`] for 0 bytes.
pub fn by_content_length(bytes_per_unit: u64) -> Result<ByContentLength, ConfigError> {
    if bytes_per_unit == 0 {
        let range = format!("1 to {}", u64::MAX);
        return Err(ConfigError::invalid_value("cost by content length:", "0 bytes per quota unit", range));
    }
    Ok(ByContentLength { bytes_per_unit, otherwise: 1 })
}

impl ByContentLength {
    /// Sets the cost of a request without a valid `Content-Length`, or with `Transfer-Encoding`, in quota units, 0 to 2^32-1. The
    /// default is 1.
    #[must_use]
    pub fn otherwise(self, units: u32) -> Self {
        Self { otherwise: units, ..self }
    }
}

impl CostFunction for ByContentLength {
    fn cost(&self, head: &Head<'_>) -> Costs {
        // hyper before 1.11 may keep the length of a chunked request. It says nothing of the body.
        let length =
            head.headers.get(CONTENT_LENGTH).filter(|_| !head.headers.contains_key(TRANSFER_ENCODING));
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let units =
            |bytes: u64| u32::try_from(bytes.div_ceil(self.bytes_per_unit)).unwrap_or(u32::MAX).max(1);
        length.map_or(self.otherwise, units).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_encoding_overrides_length() {
        let by_size = by_content_length(1024).unwrap().otherwise(64);
        let chunked =
            http::Request::post("/").header(CONTENT_LENGTH, "1").header(TRANSFER_ENCODING, "chunked");
        assert_eq!(by_size.cost(&(&chunked.body(()).unwrap()).into()), 64.into());
    }

    #[test]
    fn cost_saturates_at_largest_amount() {
        let request = http::Request::post("/").header(CONTENT_LENGTH, u64::MAX.to_string()).body(()).unwrap();
        assert_eq!(by_content_length(1).unwrap().cost(&(&request).into()), u32::MAX.into());
        assert_eq!(
            by_content_length(0).unwrap_err().to_string(),
            "cost by content length: 0 bytes per quota unit: it must be 1 to 18446744073709551615"
        );
    }
}
