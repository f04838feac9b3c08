//! Calendar periods: the days, weeks, months and years of a time zone, from an anchor. They know no policy.

mod anchor;
mod boundaries;
mod zone;

pub use anchor::Anchor;
pub(crate) use anchor::FORM as ANCHOR_FORM;
pub(crate) use boundaries::Boundaries;
pub use zone::Zone;

/// The length of a calendar period. With the feature `serde`, its text is `"day"`, `"week"`, `"month"` or `"year"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Period {
    /// A day of the time zone: 23 to 25 hours.
    Day,
    /// Seven days. By default, they begin on Monday.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}
