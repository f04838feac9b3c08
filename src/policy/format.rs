//! Policies in configuration files, such as TOML and JSON.
//!
//! A value is validated by the visitor that reads it. Therefore, TOML and JSON report its line.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::Duration,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        DeserializeSeed, Error, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
        value::MapAccessDeserializer,
    },
    ser::SerializeStruct,
};

use super::{Algorithm, Lease, MAX_WINDOW, Policies, Policy, PolicyTable, Tier, table::Entries};
use crate::{check::MAX_PAIRS, error::ConfigError};

/// The form of a length of time.
const LENGTH: &str = r#"a number and a unit, such as "500ms", "90s", "15m", "1h" or "30d""#;
/// The form of a headroom.
const PERCENTAGE: &str = r#"a whole number of percent, "0%" to "99%""#;
/// The form of a lease.
const LEASE: &str = "a table, such as `{ up-to = 50 }`";
const UNLIMITED: &str = "unlimited";
/// The name of a policy until its name has been read.
const UNNAMED: &str = "?";

#[derive(Clone, Copy, Deserialize)]
#[serde(field_identifier, rename_all = "kebab-case")]
enum Field {
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
    up_to: u32,
}

/// The fields of a policy that have been read.
struct Fields<'a> {
    /// The earlier policies of the same list.
    earlier: &'a [Policy],
    name: Option<String>,
    quota: Option<u32>,
    window: Option<Duration>,
    algorithm: Option<Algorithm>,
    lease: Option<Lease>,
    headroom: Option<u32>,
    hidden: Option<bool>,
    shadow: Option<bool>,
}

impl Field {
    const NAMES: &[&str] = &["name", "quota", "window", "algorithm", "lease", "headroom", "hidden", "shadow"];

    fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Quota => "quota",
            Self::Window => "window",
            Self::Algorithm => "algorithm",
            Self::Lease => "lease",
            Self::Headroom => "headroom",
            Self::Hidden => "hidden",
            Self::Shadow => "shadow",
        }
    }
}

impl Fields<'_> {
    fn contains(&self, field: Field) -> bool {
        match field {
            Field::Name => self.name.is_some(),
            Field::Quota => self.quota.is_some(),
            Field::Window => self.window.is_some(),
            Field::Algorithm => self.algorithm.is_some(),
            Field::Lease => self.lease.is_some(),
            Field::Headroom => self.headroom.is_some(),
            Field::Hidden => self.hidden.is_some(),
            Field::Shadow => self.shadow.is_some(),
        }
    }

    /// Returns the policy of these fields. A field that has not been read has a value that is valid with every other one.
    fn policy(&self) -> Result<Policy, ConfigError> {
        let name = self.name.as_deref().unwrap_or(UNNAMED);
        if self.earlier.iter().any(|earlier| earlier.name() == name) && self.name.is_some() {
            return Err(ConfigError::DuplicatePolicy { name: name.to_owned() });
        }
        let (quota, window) = (self.quota.unwrap_or(u32::MAX), self.window.unwrap_or(MAX_WINDOW));
        let mut policy = Policy::new(name, quota, window)?;
        if let (Some(algorithm), Some(_)) = (self.algorithm, self.window) {
            policy = policy.with_algorithm(algorithm)?;
            if let Some(lease) = self.lease {
                policy = policy.leased(lease)?;
            }
        }
        if let (Some(percent), Some(_)) = (self.headroom, self.quota) {
            policy = policy.headroom(percent)?;
        }
        let policy = if self.hidden == Some(true) { policy.hidden() } else { policy };
        Ok(if self.shadow == Some(true) { policy.shadow() } else { policy })
    }

    fn validate<E: Error>(&self) -> Result<(), E> {
        match self.policy() {
            Ok(_) => Ok(()),
            Err(error) => {
                let text = error.to_string();
                let of_unnamed = format!("policy {UNNAMED:?}: ");
                let text =
                    if self.name.is_none() { text.strip_prefix(&of_unnamed) } else { None }.unwrap_or(&text);
                Err(E::custom(text))
            }
        }
    }

    /// Returns an error about these fields.
    fn error<E: Error>(&self, text: impl fmt::Display) -> E {
        match &self.name {
            Some(name) => E::custom(format_args!("policy {name:?}: {text}")),
            None => E::custom(text),
        }
    }
}

/// Reads one policy of a list.
struct PolicySeed<'a> {
    earlier: &'a [Policy],
}

impl<'de> DeserializeSeed<'de> for PolicySeed<'_> {
    type Value = Policy;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Policy, D::Error> {
        deserializer.deserialize_struct("Policy", Field::NAMES, self)
    }
}

impl<'de> Visitor<'de> for PolicySeed<'_> {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy: `name`, `quota`, `window`, and optional fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Policy, A::Error> {
        let mut fields = Fields {
            earlier: self.earlier,
            name: None,
            quota: None,
            window: None,
            algorithm: None,
            lease: None,
            headroom: None,
            hidden: None,
            shadow: None,
        };
        while let Some(field) = map.next_key::<Field>()? {
            if fields.contains(field) {
                return Err(fields.error(format_args!("field `{}` occurs twice", field.name())));
            }
            map.next_value_seed(FieldValue { field, fields: &mut fields })?;
        }
        for field in [Field::Name, Field::Quota, Field::Window] {
            if !fields.contains(field) {
                return Err(fields.error(format_args!("missing field `{}`", field.name())));
            }
        }
        // Now the algorithm is known, also if it has not been read. It must be one that can be leased.
        fields.algorithm.get_or_insert_default();
        fields.policy().map_err(A::Error::custom)
    }
}

/// Reads and validates the value of a field.
struct FieldValue<'f, 'a> {
    field: Field,
    fields: &'f mut Fields<'a>,
}

impl<'de> DeserializeSeed<'de> for FieldValue<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.field {
            Field::Name | Field::Window | Field::Headroom => deserializer.deserialize_str(self),
            Field::Quota => deserializer.deserialize_u32(self),
            Field::Hidden | Field::Shadow => deserializer.deserialize_bool(self),
            // A name or a table.
            Field::Algorithm => deserializer.deserialize_any(self),
            Field::Lease => deserializer.deserialize_map(self),
        }
    }
}

impl FieldValue<'_, '_> {
    fn quota<E: Error>(self, given: impl Copy + fmt::Display + TryInto<u32>) -> Result<(), E> {
        match given.try_into() {
            Ok(quota) => self.fields.quota = Some(quota),
            Err(_) => {
                return Err(self
                    .fields
                    .error(format_args!("quota {given}: it must be 1 to {} quota units", u32::MAX)));
            }
        }
        self.fields.validate()
    }
}

impl<'de> Visitor<'de> for FieldValue<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {}", self.field.name())?;
        if let Some(name) = &self.fields.name {
            write!(f, " of policy {name:?}")?;
        }
        f.write_str(": ")?;
        match self.field {
            Field::Name => f.write_str("1 to 64 printable ASCII characters"),
            Field::Quota => write!(f, "1 to {} quota units", u32::MAX),
            Field::Window => f.write_str(LENGTH),
            Field::Algorithm => f.write_str("a name, or a table for `sliding-buckets`"),
            Field::Lease => f.write_str(LEASE),
            Field::Headroom => f.write_str(PERCENTAGE),
            Field::Hidden | Field::Shadow => f.write_str("true or false"),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let Self { field, fields } = self;
        match field {
            Field::Name => fields.name = Some(text.to_owned()),
            Field::Window => match length(text) {
                Ok(window) => fields.window = Some(window),
                Err(reason) => return Err(fields.error(format_args!("window {text:?}: {reason}"))),
            },
            Field::Headroom => match percentage(text) {
                Some(percent) => fields.headroom = Some(percent),
                None => {
                    return Err(fields.error(format_args!("headroom {text:?}: it must be {PERCENTAGE}")));
                }
            },
            Field::Algorithm => {
                fields.algorithm = Some(Algorithm::deserialize(text.into_deserializer())?);
            }
            Field::Quota | Field::Lease | Field::Hidden | Field::Shadow => {
                return Err(E::invalid_type(Unexpected::Str(text), &Self { field, fields }));
            }
        }
        fields.validate()
    }

    fn visit_i64<E: Error>(self, given: i64) -> Result<(), E> {
        match self.field {
            Field::Quota => self.quota(given),
            _ => Err(E::invalid_type(Unexpected::Signed(given), &self)),
        }
    }

    fn visit_u64<E: Error>(self, given: u64) -> Result<(), E> {
        match self.field {
            Field::Quota => self.quota(given),
            _ => Err(E::invalid_type(Unexpected::Unsigned(given), &self)),
        }
    }

    fn visit_bool<E: Error>(self, given: bool) -> Result<(), E> {
        match self.field {
            Field::Hidden => {
                self.fields.hidden = Some(given);
                Ok(())
            }
            Field::Shadow => {
                self.fields.shadow = Some(given);
                Ok(())
            }
            _ => Err(E::invalid_type(Unexpected::Bool(given), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        match self.field {
            Field::Algorithm => {
                self.fields.algorithm = Some(Algorithm::deserialize(MapAccessDeserializer::new(&mut map))?);
                if map.next_key::<IgnoredAny>()?.is_some() {
                    return Err(self.fields.error("algorithm: it must be one algorithm"));
                }
                self.fields.validate()
            }
            Field::Lease => {
                let form = LeaseForm::deserialize(MapAccessDeserializer::new(&mut map))?;
                self.fields.lease = Some(Lease::up_to(form.up_to));
                self.fields.validate()
            }
            _ => Err(A::Error::invalid_type(Unexpected::Map, &self)),
        }
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PolicySeed { earlier: &[] }.deserialize(deserializer)
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let has_algorithm = self.algorithm() != Algorithm::default();
        let lease = self.lease().map(|lease| LeaseForm { up_to: lease.units() });
        let optional = [has_algorithm, lease.is_some(), self.is_hidden(), self.is_shadow()];
        let fields = 3 + optional.into_iter().filter(|has| *has).count();
        let mut policy = serializer.serialize_struct("Policy", fields)?;
        policy.serialize_field("name", self.name())?;
        policy.serialize_field("quota", &self.quota())?;
        policy.serialize_field("window", &length_text(self.window()))?;
        if has_algorithm {
            policy.serialize_field("algorithm", &self.algorithm())?;
        }
        if let Some(lease) = lease {
            policy.serialize_field("lease", &lease)?;
        }
        if self.is_hidden() {
            policy.serialize_field("hidden", &true)?;
        }
        if self.is_shadow() {
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
        while let Some(policy) = list.next_element_seed(PolicySeed { earlier: &policies })? {
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
        if text == UNLIMITED {
            Ok(Tier::Unlimited)
        } else {
            Err(E::invalid_value(Unexpected::Str(text), &self))
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Tier, A::Error> {
        PoliciesVisitor.visit_seq(list).map(Tier::Limited)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Tier, A::Error> {
        PolicySeed { earlier: &[] }.visit_map(map).map(Tier::from)
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
    tiers: Named,
}

/// The tiers by name, each at most once.
#[derive(Default)]
struct Named(HashMap<String, Tier>);

impl<'de> Visitor<'de> for Named {
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

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Deserialize<'de> for PolicyTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let TableForm { default, tiers: Named(named) } = TableForm::deserialize(deserializer)?;
        Ok(Self::of(Entries { default, named }))
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

/// The precision of sliding buckets.
pub(super) mod precision {
    use super::{Deserializer, Duration, Error, LENGTH, Serializer, Visitor, fmt, length, length_text};

    struct Precision;

    impl Visitor<'_> for Precision {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the precision: {LENGTH}")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            length(text).map_err(|reason| E::custom(format_args!("precision {text:?}: {reason}")))
        }
    }

    pub(in crate::policy) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        deserializer.deserialize_str(Precision)
    }

    pub(in crate::policy) fn serialize<S: Serializer>(
        precision: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&length_text(*precision))
    }
}

/// Reads a length of time. The error is what is allowed.
fn length(text: &str) -> Result<Duration, String> {
    let mut units = text.split(|c: char| !c.is_alphabetic());
    // Such a month has 30.44 days, and `1M` is easily taken for a minute.
    if units.any(|unit| unit == "M" || unit.starts_with("mo") || unit.starts_with('y')) {
        return Err(r#"months and years differ in length: use days, such as "30d""#.to_owned());
    }
    humantime::parse_duration(text).map_err(|_| format!("it must be {LENGTH}"))
}

/// Returns the text of a length of whole microseconds, in its largest unit.
fn length_text(length: Duration) -> String {
    const UNITS: [(u128, &str); 5] =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    let micros = length.as_micros();
    let unit = UNITS.iter().find(|(unit, _)| micros.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or(&(1, "us"));
    format!("{}{name}", micros / unit)
}

fn percentage(text: &str) -> Option<u32> {
    text.strip_suffix('%')?.trim_end().parse().ok().filter(|percent| *percent <= 99)
}
