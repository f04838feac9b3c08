//! Policies in configuration files, such as TOML and JSON.
//!
//! A value is validated by the visitor that reads it. Therefore, TOML and JSON report its line.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, mem,
    time::Duration,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        DeserializeSeed, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
        value::{self, MapAccessDeserializer},
    },
    ser::SerializeStruct,
};

use super::{
    Algorithm, Lease, MAX_WINDOW, Policies, Policy, PolicyTable, Rate, Tier,
    length::{LENGTH, length, length_text},
    policies::MAX_PAIRS,
    table::TierEntries,
};
use crate::error::ConfigError;

/// The form of a headroom.
const PERCENTAGE: &str = r#"a whole number of percent, "0%" to "99%""#;
/// The form of a lease.
const LEASE: &str = "a table, such as `{ up-to = 50 }` or `{ up-to = 50, ahead = true }`";
const UNLIMITED: &str = "unlimited";
/// The name of a policy until its name has been read.
const UNNAMED: &str = "?";

#[derive(Clone, Copy)]
enum PolicyField {
    Name,
    Quota,
    Window,
    Algorithm,
    Lease,
    Headroom,
    Hidden,
    Shadow,
}

/// A lease in a file.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct LeaseForm {
    up_to: i64,
    #[serde(default, skip_serializing_if = "is_false")]
    ahead: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The fields of a policy that have been read.
#[derive(Default)]
struct PolicyFields<'a> {
    /// The earlier policies of the same list.
    earlier: &'a [Policy],
    name: Option<String>,
    quota: Option<u32>,
    window: Option<Duration>,
    algorithm: Option<Algorithm>,
    lease: Option<Lease>,
    headroom: Option<u32>,
    is_hidden: bool,
    is_shadow: bool,
}

impl PolicyField {
    const ALL: [Self; 8] = [
        Self::Name,
        Self::Quota,
        Self::Window,
        Self::Algorithm,
        Self::Lease,
        Self::Headroom,
        Self::Hidden,
        Self::Shadow,
    ];
    const NAMES: &[&str] = &["name", "quota", "window", "algorithm", "lease", "headroom", "hidden", "shadow"];

    fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl PolicyFields<'_> {
    /// Returns the policy of these fields. A field that has not been read has a value that is valid with every other one.
    fn policy(&self) -> Result<Policy, ConfigError> {
        let name = self.name.as_deref().unwrap_or(UNNAMED);
        if self.earlier.iter().any(|earlier| earlier.name() == name) && self.name.is_some() {
            return Err(ConfigError::DuplicatePolicy { name: name.to_owned() });
        }
        let (quota, window) = (self.quota.unwrap_or(u32::MAX), self.window.unwrap_or(MAX_WINDOW));
        let mut policy = Policy::new(name, quota, window)?;
        // What a type without a window compares with the quota is known when the quota is.
        let has_fields = |algorithm: &Algorithm| match (algorithm.has_window(), algorithm.has_quota()) {
            (true, _) => self.window.is_some(),
            (false, has_quota) => self.quota.is_some() || !has_quota,
        };
        if let Some(algorithm) = self.algorithm.filter(has_fields) {
            policy = policy.with_algorithm(algorithm)?;
            if let Some(lease) = self.lease {
                policy = policy.leased(lease)?;
            }
        }
        if let (Some(percent), Some(_)) = (self.headroom, self.quota) {
            policy = policy.headroom_percent(percent)?;
        }
        let policy = if self.is_hidden { policy.hidden() } else { policy };
        Ok(if self.is_shadow { policy.shadow() } else { policy })
    }

    fn validate<E: Error>(&self) -> Result<(), E> {
        let Err(error) = self.policy() else { return Ok(()) };
        let (text, unnamed) = (error.to_string(), format!("policy {UNNAMED:?}: "));
        let without_name = text.strip_prefix(&unnamed).filter(|_| self.name.is_none());
        Err(E::custom(without_name.unwrap_or(&text)))
    }

    /// Returns an error about these fields.
    fn error<E: Error>(&self, text: impl fmt::Display) -> E {
        match &self.name {
            Some(name) => E::custom(format_args!("policy {name:?}: {text}")),
            None => E::custom(text),
        }
    }

    /// Returns an error of a parser with the name of the policy. JSON finds the line in the text. TOML loses the column inside of the value,
    /// so an error without a name stays as it is.
    fn name_in<E: Error>(&self, error: E) -> E {
        match &self.name {
            // TOML adds lines about the place.
            Some(_) => self.error(error.to_string().lines().next().unwrap_or_default()),
            None => error,
        }
    }
}

impl<'de> DeserializeSeed<'de> for PolicyFields<'_> {
    type Value = Policy;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Policy, D::Error> {
        deserializer.deserialize_struct("Policy", PolicyField::NAMES, self)
    }
}

impl<'de> Visitor<'de> for PolicyFields<'_> {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy: `name`, `quota`, `window` (unless it is a token bucket, in flight, a calendar period or a gate), and optional fields")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Policy, A::Error> {
        let mut is_read = [false; PolicyField::NAMES.len()];
        while let Some(field) = map.next_key_seed(FieldName(&self))? {
            if mem::replace(&mut is_read[field as usize], true) {
                return Err(self.error(format_args!("field `{}` occurs twice", field.name())));
            }
            map.next_value_seed(FieldValue { field, fields: &mut self })?;
        }
        // Now the algorithm is known, also if it has not been read. It must be one that can be leased.
        let algorithm = *self.algorithm.get_or_insert_default();
        let (has_quota, has_window) = (algorithm.has_quota(), algorithm.has_window());
        for (field, is_needed) in
            [(PolicyField::Name, true), (PolicyField::Quota, has_quota), (PolicyField::Window, has_window)]
        {
            if is_needed && !is_read[field as usize] {
                return Err(self.error(format_args!("missing field `{}`", field.name())));
            }
        }
        if !has_window && self.window.is_some() {
            let why = match algorithm {
                Algorithm::TokenBucket { .. } => "a token bucket has a rate, and no window",
                Algorithm::InFlight { .. } => "a policy in flight has none",
                #[cfg(feature = "calendar")]
                Algorithm::CalendarPeriod { .. } => "a calendar period has none",
                Algorithm::Gate => "a gate has none",
                _ => "its algorithm has none",
            };
            return Err(self.error(format_args!("field `window`: {why}")));
        }
        for (field, name) in [(self.quota.is_some(), "quota"), (self.headroom.is_some(), "headroom")] {
            if field && !has_quota {
                return Err(self.error(format_args!("field `{name}`: a gate has none")));
            }
        }
        self.policy().map_err(A::Error::custom)
    }
}

/// Reads the name of a field.
struct FieldName<'f, 'a>(&'f PolicyFields<'a>);

impl<'de> DeserializeSeed<'de> for FieldName<'_, '_> {
    type Value = PolicyField;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<PolicyField, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FieldName<'_, '_> {
    type Value = PolicyField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PolicyField, E> {
        let named = PolicyField::ALL.into_iter().find(|field| field.name() == text);
        named.ok_or_else(|| self.0.error(value::Error::unknown_field(text, PolicyField::NAMES)))
    }
}

/// Reads and validates the value of a field.
struct FieldValue<'f, 'a> {
    field: PolicyField,
    fields: &'f mut PolicyFields<'a>,
}

impl<'de> DeserializeSeed<'de> for FieldValue<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.field {
            PolicyField::Name | PolicyField::Window | PolicyField::Headroom => {
                deserializer.deserialize_str(self)
            }
            PolicyField::Quota => deserializer.deserialize_u32(self),
            PolicyField::Hidden | PolicyField::Shadow => deserializer.deserialize_bool(self),
            // A name or a table.
            PolicyField::Algorithm => deserializer.deserialize_any(self),
            PolicyField::Lease => deserializer.deserialize_map(self),
        }
    }
}

impl FieldValue<'_, '_> {
    fn quota<E: Error>(self, given: impl Copy + fmt::Display + TryInto<u32>) -> Result<(), E> {
        let Ok(quota) = given.try_into() else {
            let max = u32::MAX;
            return Err(self.fields.error(format_args!("quota {given}: it must be 1 to {max} quota units")));
        };
        self.fields.quota = Some(quota);
        self.fields.validate()
    }
}

impl<'de> Visitor<'de> for FieldValue<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            PolicyField::Hidden | PolicyField::Shadow => write!(f, "the field `{}`", self.field.name())?,
            field => write!(f, "the {}", field.name())?,
        }
        if let Some(name) = &self.fields.name {
            write!(f, " of policy {name:?}")?;
        }
        f.write_str(": ")?;
        match self.field {
            PolicyField::Name => f.write_str("1 to 64 printable ASCII characters"),
            PolicyField::Quota => write!(f, "1 to {} quota units", u32::MAX),
            PolicyField::Window => f.write_str(LENGTH),
            PolicyField::Algorithm => f.write_str(
                "a name, or a table for `sliding-buckets`, `token-bucket`, `in-flight` and `calendar-period`",
            ),
            PolicyField::Lease => f.write_str(LEASE),
            PolicyField::Headroom => f.write_str(PERCENTAGE),
            PolicyField::Hidden | PolicyField::Shadow => f.write_str("true or false"),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let Self { field, fields } = self;
        match field {
            PolicyField::Name => fields.name = Some(text.to_owned()),
            PolicyField::Window => {
                let invalid = |reason| fields.error(format_args!("window {text:?}: {reason}"));
                fields.window = Some(length(text).map_err(invalid)?);
            }
            PolicyField::Headroom => {
                let invalid = || fields.error(format_args!("headroom {text:?}: it must be {PERCENTAGE}"));
                fields.headroom = Some(percentage(text).ok_or_else(invalid)?);
            }
            PolicyField::Algorithm => {
                let read = Algorithm::deserialize(text.into_deserializer()).map_err(|error: value::Error| {
                    match error.to_string() {
                        // The name of an algorithm with fields.
                        text_of_error if text_of_error.starts_with("invalid type") => fields.error(format_args!(
                            "algorithm {text:?}: it must be a table with its fields, such as `{{ {text} = {{ .. }} }}`"
                        )),
                        _ => fields.error(with_feature(error)),
                    }
                });
                fields.algorithm = Some(read?);
            }
            PolicyField::Quota | PolicyField::Lease | PolicyField::Hidden | PolicyField::Shadow => {
                return Err(E::invalid_type(Unexpected::Str(text), &Self { field, fields }));
            }
        }
        fields.validate()
    }

    fn visit_i64<E: Error>(self, given: i64) -> Result<(), E> {
        match self.field {
            PolicyField::Quota => self.quota(given),
            _ => Err(E::invalid_type(Unexpected::Signed(given), &self)),
        }
    }

    fn visit_u64<E: Error>(self, given: u64) -> Result<(), E> {
        match self.field {
            PolicyField::Quota => self.quota(given),
            _ => Err(E::invalid_type(Unexpected::Unsigned(given), &self)),
        }
    }

    fn visit_bool<E: Error>(self, given: bool) -> Result<(), E> {
        match self.field {
            PolicyField::Hidden => self.fields.is_hidden = given,
            PolicyField::Shadow => self.fields.is_shadow = given,
            _ => return Err(E::invalid_type(Unexpected::Bool(given), &self)),
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        match self.field {
            PolicyField::Algorithm => {
                let read = Algorithm::deserialize(MapAccessDeserializer::new(&mut map));
                self.fields.algorithm = Some(read.map_err(|error| self.fields.name_in(with_feature(error)))?);
                if let Some(second) = map.next_key::<String>()? {
                    return Err(self.fields.error(format_args!(
                        "algorithm with a second name, {second:?}: it must be one algorithm"
                    )));
                }
            }
            PolicyField::Lease => {
                let form = LeaseForm::deserialize(MapAccessDeserializer::new(&mut map));
                let form = form.map_err(|error| self.fields.name_in(error))?;
                let Ok(units) = form.up_to.try_into() else {
                    let (given, max) = (form.up_to, u32::MAX);
                    let error = self
                        .fields
                        .error(format_args!("lease of {given} units: it must be 1 to {max} quota units"));
                    return Err(error);
                };
                let lease = Lease::up_to(units);
                self.fields.lease = Some(if form.ahead { lease.ahead() } else { lease });
            }
            _ => return Err(A::Error::invalid_type(Unexpected::Map, &self)),
        }
        self.fields.validate()
    }
}

/// Returns this error about an algorithm. If the algorithm exists with a feature that this build lacks, the error names the feature.
fn with_feature<E: Error>(error: E) -> E {
    match error.to_string() {
        text if text.starts_with("unknown variant `calendar-period`") => E::custom(
            "algorithm \"calendar-period\": it needs the feature `calendar` of tower-sliding-window",
        ),
        _ => error,
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PolicyFields::default().deserialize(deserializer)
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let has_algorithm = self.algorithm() != Algorithm::default();
        let lease =
            self.lease().map(|lease| LeaseForm { up_to: lease.units().into(), ahead: lease.is_ahead() });
        // A gate is always hidden.
        let is_hidden = self.is_hidden() && self.quota().is_some();
        let (quota, window, is_shadow) = (self.quota(), self.window().map(length_text), self.is_shadow());
        let optional =
            [quota.is_some(), window.is_some(), has_algorithm, lease.is_some(), is_hidden, is_shadow];
        let fields = 1 + optional.into_iter().filter(|has| *has).count();
        let mut policy = serializer.serialize_struct("Policy", fields)?;
        policy.serialize_field("name", self.name())?;
        if let Some(quota) = quota {
            policy.serialize_field("quota", &quota)?;
        }
        if let Some(window) = window {
            policy.serialize_field("window", &window)?;
        }
        if has_algorithm {
            policy.serialize_field("algorithm", &self.algorithm())?;
        }
        if let Some(lease) = lease {
            policy.serialize_field("lease", &lease)?;
        }
        if is_hidden {
            policy.serialize_field("hidden", &true)?;
        }
        if is_shadow {
            policy.serialize_field("shadow", &true)?;
        }
        policy.end()
    }
}

struct PoliciesVisitor;

impl<'de> Visitor<'de> for PoliciesVisitor {
    type Value = Policies;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of policies")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Policies, A::Error> {
        let mut policies = Vec::new();
        while let Some(policy) =
            list.next_element_seed(PolicyFields { earlier: &policies, ..PolicyFields::default() })?
        {
            policies.push(policy);
        }
        if policies.is_empty() {
            return Err(A::Error::custom(format_args!(
                "an empty list: it must have 1 to {MAX_PAIRS} policies"
            )));
        }
        Policies::new(policies).map_err(A::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PoliciesVisitor)
    }
}

impl Serialize for Policies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.as_slice())
    }
}

struct TierVisitor;

impl<'de> Visitor<'de> for TierVisitor {
    type Value = Tier;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{UNLIMITED:?}, a list of policies, or one policy")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Tier, E> {
        match text {
            UNLIMITED => Ok(Tier::Unlimited),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Tier, A::Error> {
        PoliciesVisitor.visit_seq(list).map(Tier::Limited)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Tier, A::Error> {
        PolicyFields::default().visit_map(map).map(Tier::from)
    }
}

impl<'de> Deserialize<'de> for Tier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TierVisitor)
    }
}

impl Serialize for Tier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Limited(policies) => policies.serialize(serializer),
            Self::Unlimited => serializer.serialize_str(UNLIMITED),
        }
    }
}

/// The form of a table in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableForm {
    default: Tier,
    #[serde(default)]
    tiers: NamedTiers,
}

struct TableVisitor;

impl<'de> Visitor<'de> for TableVisitor {
    type Value = TableForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy table, with the fields `default` and `tiers`")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TableForm, A::Error> {
        TableForm::deserialize(MapAccessDeserializer::new(map))
    }
}

/// The tiers by name, each at most once.
#[derive(Default)]
struct NamedTiers(HashMap<String, Tier>);

impl<'de> Visitor<'de> for NamedTiers {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tiers by their names")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if self.0.contains_key(&name) {
                return Err(A::Error::custom(format_args!("tier {name:?} occurs twice")));
            }
            self.0.insert(name, map.next_value()?);
        }
        Ok(self)
    }
}

impl<'de> Deserialize<'de> for NamedTiers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Deserialize<'de> for PolicyTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let TableForm { default, tiers: NamedTiers(named) } =
            deserializer.deserialize_struct("PolicyTable", &["default", "tiers"], TableVisitor)?;
        Ok(Self::from_entries(TierEntries { default, named }))
    }
}

impl Serialize for PolicyTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.entries();
        let mut table = serializer.serialize_struct("PolicyTable", 2)?;
        table.serialize_field("default", &entries.default)?;
        table.serialize_field("tiers", &entries.named.iter().collect::<BTreeMap<_, _>>())?;
        table.end()
    }
}

fn percentage(text: &str) -> Option<u32> {
    text.strip_suffix('%')?.trim_end().parse().ok().filter(|percent| *percent <= 99)
}

/// Reads a rate. The error is what is allowed.
fn rate(text: &str) -> Result<Rate, String> {
    let invalid =
        || format!(r#"it must be units and a period, such as "7/s" or "3/10s"; a period is {LENGTH}"#);
    let (units, period) = text.split_once('/').ok_or_else(invalid)?;
    let units: u64 = units.trim().parse().map_err(|_| invalid())?;
    let units = units.try_into().map_err(|_| format!("it must be 1 to {} units", u32::MAX))?;
    let period = period.trim();
    let period =
        if period.starts_with(char::is_alphabetic) { format!("1{period}") } else { period.to_owned() };
    Ok(Rate::new(units, length(&period)?))
}

struct RateVisitor;

impl Visitor<'_> for RateVisitor {
    type Value = Rate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a rate, such as "7/s""#)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Rate, E> {
        rate(text).map_err(|reason| E::custom(format_args!("rate {text:?}: {reason}")))
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(RateVisitor)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let period = length_text(Duration::from_micros(self.period_micros()));
        // A period of one unit of time needs no number.
        let is_one = period.starts_with('1') && !period[1..].starts_with(|c: char| c.is_ascii_digit());
        serializer.collect_str(&format_args!(
            "{}/{}",
            self.units(),
            if is_one { &period[1..] } else { &period }
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The algorithms of a build without the feature `calendar`.
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum KnownAlgorithm {
        Gate,
    }

    #[test]
    fn error_names_feature_of_algorithm() {
        let read = |name: &'static str| -> Result<_, value::Error> {
            KnownAlgorithm::deserialize(name.into_deserializer()).map_err(with_feature)
        };
        assert!(matches!(read("gate"), Ok(KnownAlgorithm::Gate)));
        assert_eq!(
            read("calendar-period").unwrap_err().to_string(),
            r#"algorithm "calendar-period": it needs the feature `calendar` of tower-sliding-window"#
        );
        assert!(read("calendar").unwrap_err().to_string().starts_with("unknown variant `calendar`, "));
    }
}
