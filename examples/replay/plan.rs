//! The file: whose usage is counted, the policies, and the costs by route.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};
use toml::Spanned;
use tower_sliding_window::{MemoryBackend, Policies, Policy, RateLimitLayer, key::constant};

use crate::costs::{Amounts, CostTable, Mistake};

/// What to replay.
pub(crate) struct Plan {
    /// The fields of a line whose values are the partition key.
    pub(crate) key: Vec<String>,
    pub(crate) policies: Vec<Policy>,
    pub(crate) costs: CostTable,
    pub(crate) fields: FieldNames,
}

/// The names of fields in lines of JSON.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FieldNames {
    pub(crate) time: String,
    pub(crate) method: String,
    pub(crate) path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanForm {
    key: KeyFields,
    policies: Policies,
    #[serde(default)]
    costs: BTreeMap<Spanned<String>, Spanned<Amounts>>,
    #[serde(default)]
    fields: FieldNames,
}

/// One field, or a list of different ones.
struct KeyFields(Vec<String>);

impl Default for FieldNames {
    fn default() -> Self {
        let [time, method, path] = ["time", "method", "path"].map(str::to_owned);
        Self { time, method, path }
    }
}

impl Plan {
    /// Reads a file. An error names the line.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        Self::parse(&text).map_err(|Mistake { span, text: mistake }| match span {
            Some(span) => {
                let before = text.as_bytes().iter().take(span.start);
                let line = before.filter(|byte| **byte == b'\n').count() + 1;
                format!("{}: line {line}: {mistake}", file.display())
            }
            None => format!("{}: {mistake}", file.display()),
        })
    }

    fn parse(text: &str) -> Result<Self, Mistake> {
        let form: PlanForm = toml::from_str(text).map_err(|error| Mistake {
            span: error.span(),
            // Some texts of the parser have several lines.
            text: error.message().lines().collect::<Vec<_>>().join(", "),
        })?;
        let policies = form.policies.as_slice().to_vec();
        // The summary compares the use of a window with a quota.
        if let Some(policy) = policies.iter().find(|policy| policy.window().is_none()) {
            let name = policy.name();
            let text = format!(
                "policy {name:?}: its type has no window: it must be a sliding log, sliding buckets, a sliding counter or a fixed window"
            );
            return Err(Mistake { span: None, text });
        }
        let costs = CostTable::new(form.costs, &policies)?;
        // The service would not start with what this rejects.
        let layer = RateLimitLayer::builder(MemoryBackend::new()).key(constant("replay", ""));
        let layer = policies.iter().cloned().fold(layer, |layer, policy| layer.policy(policy));
        let built = layer.cost(costs.by_route()).build();
        built.map_err(|error| Mistake { span: None, text: error.to_string() })?;
        Ok(Self { key: form.key.0, policies, costs, fields: form.fields })
    }
}

struct KeyFieldsVisitor;

impl<'de> Visitor<'de> for KeyFieldsVisitor {
    type Value = KeyFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"the key: a field of the log, such as "address", or a list of different fields"#)
    }

    fn visit_str<E: Error>(self, field: &str) -> Result<KeyFields, E> {
        Ok(KeyFields(vec![field.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<KeyFields, A::Error> {
        let mut fields: Vec<String> = Vec::new();
        while let Some(field) = list.next_element()? {
            if fields.contains(&field) {
                return Err(A::Error::custom(format_args!("key: field {field:?} occurs twice")));
            }
            fields.push(field);
        }
        if fields.is_empty() {
            return Err(A::Error::custom("key: an empty list: it must have 1 field or more"));
        }
        Ok(KeyFields(fields))
    }
}

impl<'de> Deserialize<'de> for KeyFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeyFieldsVisitor)
    }
}
