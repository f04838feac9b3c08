//! The costs by route of a file.

use std::{collections::BTreeMap, fmt, ops::Range};

use http::{Method, Request};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Unexpected, Visitor},
};
use toml::Spanned;
use tower_sliding_window::{CostFunction, Costs, Policy, RouteCosts};

/// The name of the cost of all other routes.
const OTHERWISE: &str = "otherwise";

/// The costs of requests, by their method and path.
pub(crate) struct CostTable {
    costs: RouteCosts,
    /// Whether a cost depends on the path.
    pub(crate) has_routes: bool,
    /// Whether a cost depends on the method.
    pub(crate) has_methods: bool,
}

/// A cost in a file: one number of units for all policies, or one for each of some policies.
pub(crate) struct Amounts {
    costs: Costs,
    policies: Vec<String>,
}

/// A mistake, and where it is in the file, if that is known.
pub(crate) struct Mistake {
    pub(crate) span: Option<Range<usize>>,
    pub(crate) text: String,
}

impl CostTable {
    pub(crate) fn new(
        table: BTreeMap<Spanned<String>, Spanned<Amounts>>,
        policies: &[Policy],
    ) -> Result<Self, Mistake> {
        let mut all = Self { costs: RouteCosts::new(), has_routes: false, has_methods: false };
        for (route, amounts) in table {
            let span = amounts.span();
            let amounts = amounts.into_inner();
            amounts.validate(policies).map_err(|text| Mistake { span: Some(span), text })?;
            let span = Some(route.span());
            all = all.with(route.get_ref(), amounts.costs).map_err(|text| Mistake { span, text })?;
        }
        Ok(all)
    }

    fn with(self, route: &str, costs: Costs) -> Result<Self, String> {
        let Self { costs: all, has_routes, has_methods } = self;
        if route == OTHERWISE {
            return Ok(Self { costs: all.otherwise(costs), has_routes, has_methods });
        }
        let (method, path) = match route.split_once(' ') {
            Some((method, path)) => (Some(method), path.trim_start()),
            None => (None, route),
        };
        let all = match method {
            None => all.route(path, costs),
            Some(text) => {
                let is_upper = text.bytes().all(|byte| !byte.is_ascii_lowercase());
                let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| is_upper);
                let method = method.ok_or_else(|| {
                    format!("method {text:?} of {route:?}: it must be an HTTP method, such as \"POST\"")
                })?;
                all.method(method, path, costs)
            }
        };
        let costs = all.map_err(|error| error.to_string())?;
        Ok(Self { costs, has_routes: true, has_methods: has_methods || method.is_some() })
    }

    /// Returns the cost function of a layer.
    pub(crate) fn by_route(&self) -> RouteCosts {
        self.costs.clone()
    }

    /// Returns the cost of a request, as the layer computes it.
    pub(crate) fn cost(&self, request: &Request<()>) -> Costs {
        self.costs.cost(&request.into())
    }
}

impl Amounts {
    fn validate(&self, policies: &[Policy]) -> Result<(), String> {
        let names = || policies.iter().map(Policy::name).collect::<Vec<_>>().join(", ");
        if let Some(name) =
            self.policies.iter().find(|name| policies.iter().all(|other| other.name() != **name))
        {
            return Err(format!("cost of policy {name:?}: it must be one of the policies {}", names()));
        }
        for policy in policies {
            let (cost, quota) = (units(&self.costs, policy), policy.quota().unwrap_or(u32::MAX));
            if cost > quota {
                let name = policy.name();
                return Err(format!(
                    "cost {cost} of policy {name:?}: it must be at most the quota of {quota} units"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the units that a request of these costs charges to a policy.
pub(crate) fn units(costs: &Costs, policy: &Policy) -> u32 {
    costs.amount(policy.name()).unwrap_or(1)
}

/// A number of quota units.
struct Units(u32);

struct UnitsVisitor;

impl Visitor<'_> for UnitsVisitor {
    type Value = Units;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a cost of 0 to {} quota units", u32::MAX)
    }

    fn visit_i64<E: Error>(self, given: i64) -> Result<Units, E> {
        u32::try_from(given).map(Units).map_err(|_| E::invalid_value(Unexpected::Signed(given), &self))
    }

    fn visit_u64<E: Error>(self, given: u64) -> Result<Units, E> {
        u32::try_from(given).map(Units).map_err(|_| E::invalid_value(Unexpected::Unsigned(given), &self))
    }
}

impl<'de> Deserialize<'de> for Units {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u32(UnitsVisitor)
    }
}

struct AmountsVisitor;

impl<'de> Visitor<'de> for AmountsVisitor {
    type Value = Amounts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a cost of 0 to {} quota units, or a table of such costs by policy", u32::MAX)
    }

    fn visit_i64<E: Error>(self, given: i64) -> Result<Amounts, E> {
        let Units(units) = UnitsVisitor.visit_i64(given)?;
        Ok(Amounts { costs: units.into(), policies: Vec::new() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Amounts, A::Error> {
        let mut amounts = Amounts { costs: Costs::new(), policies: Vec::new() };
        while let Some((name, Units(units))) = map.next_entry::<String, Units>()? {
            amounts.costs = amounts.costs.policy(name.clone(), units);
            amounts.policies.push(name);
        }
        Ok(amounts)
    }
}

impl<'de> Deserialize<'de> for Amounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AmountsVisitor)
    }
}
