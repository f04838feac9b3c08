//! The body of a request as JSON, and numbers in it. An error names the value, what is allowed, and what to do.

use std::ops::RangeInclusive;

use axum::{
    Json,
    extract::{FromRequest, Request, rejection::JsonRejection},
    http::StatusCode,
};
use serde::de::{DeserializeOwned, Error};
use serde_json::Value;

/// A body of this type. `axum::Json` would state types of Rust in its errors.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = (StatusCode, String);

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let Json(value) = Json::<Value>::from_request(request, state).await.map_err(|error| {
            let text = match &error {
                // A page of another host cannot set its content type.
                JsonRejection::MissingJsonContentType(_) => {
                    "the content type is not application/json: send JSON of this content type"
                }
                JsonRejection::BytesRejection(_) => {
                    "the body did not arrive, or is too large: send at most 2 MB"
                }
                _ => "the body is not JSON: send JSON",
            };
            (error.status(), text.to_owned())
        })?;
        serde_json::from_value(value).map(Self).map_err(|error| {
            // The word of serde for one of several names.
            let text = error.to_string().replace("unknown variant", "unknown name");
            (StatusCode::BAD_REQUEST, text)
        })
    }
}

/// Returns a whole number of this range, or an error of serde.
pub(crate) fn whole<E: Error>(name: &str, given: &Value, range: RangeInclusive<u32>) -> Result<u32, E> {
    let number = given.as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        E::custom(format!("{name} {given}: enter a whole number from {} to {}", range.start(), range.end()))
    })
}
