//! The access log: its lines, and what a line says about a request.

mod common;
mod instant;
mod json;
mod lines;

use std::borrow::Cow;

use common::CommonLine;
use http::{Method, Request, Uri};
pub(crate) use instant::text as time_text;
use json::JsonLine;
pub(crate) use lines::Lines;
use tower_sliding_window::PartitionKey;

use crate::plan::Plan;

/// A line of one of the formats.
enum Entry<'a> {
    Common(CommonLine<'a>),
    Json(JsonLine),
}

/// What the replay needs to know of a request.
pub(crate) struct Logged {
    pub(crate) at_micros: u64,
    /// `None` if the line has no value for a field of the key.
    pub(crate) key: Option<PartitionKey>,
}

/// Reads a line, and sets the method and the path of `request` if a cost depends on them. The error states why it is no request.
pub(crate) fn read(line: &str, plan: &Plan, request: &mut Request<()>) -> Result<Logged, String> {
    let entry = match line.trim_start().starts_with('{') {
        true => Entry::Json(JsonLine::parse(line)?),
        false => Entry::Common(CommonLine::parse(line)?),
    };
    let at_micros = match &entry {
        Entry::Common(line) => instant::from_text(line.time),
        Entry::Json(line) => line.instant(&plan.fields.time),
    }?;
    let mut key: Option<PartitionKey> = None;
    let mut has_key = true;
    for field in &plan.key {
        match entry.field(field)? {
            Some(value) => {
                let part = part(field, &value);
                key = Some(key.map_or(part.clone(), |key| key.and(&part)));
            }
            None => has_key = false,
        }
    }
    if plan.costs.has_methods {
        let method = entry.required(&plan.fields.method, "method")?;
        *request.method_mut() = Method::from_bytes(method.as_bytes())
            .map_err(|_| format!("method {:?}: it must be an HTTP method", shortened(&method)))?;
    }
    if plan.costs.has_routes {
        let target = entry.required(&plan.fields.path, "path")?;
        let path = target.split('?').next().unwrap_or_default();
        *request.uri_mut() =
            Uri::try_from(path).map_err(|error| format!("path {:?}: {error}", shortened(path)))?;
    }
    Ok(Logged { at_micros, key: key.filter(|_| has_key) })
}

/// Returns a part of the key. An address counts as that of a peer in a service, such as IPv6 by its /64 network.
fn part(field: &str, value: &str) -> PartitionKey {
    let Ok(address) = value.parse() else { return PartitionKey::new(field, value) };
    let peer = PartitionKey::peer_ip(address);
    let group: Vec<u8> = peer.parts().flat_map(|(_, value)| value).copied().collect();
    PartitionKey::new(field, group)
}

impl Entry<'_> {
    /// Returns the value of a field, or `None` if the line has none.
    fn field(&self, name: &str) -> Result<Option<Cow<'_, str>>, String> {
        match self {
            Self::Common(line) => line.field(name),
            Self::Json(line) => line.field(name),
        }
    }

    /// Returns the value of a field that has a name of its own in JSON.
    fn required(&self, in_json: &str, in_common: &str) -> Result<Cow<'_, str>, String> {
        let name = match self {
            Self::Common(_) => in_common,
            Self::Json(_) => in_json,
        };
        self.field(name)?.ok_or_else(|| format!("no value of field {name:?}"))
    }
}

/// Returns the beginning of a text, for a message.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}
