//! The scenarios whose instructions are counted.

use crate::scripts::Design;

/// The number of keys where the table of times has 10,000.
const MANY_KEYS: usize = 100;

/// A scenario.
#[derive(Clone, Copy)]
pub struct Row {
    pub verdict: Verdict,
    pub quota: u32,
    pub cost: u32,
    pub keys: usize,
    /// The pairs of a check.
    pub policies: usize,
    pub purpose: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Seven tenths of the quota are in use, or two charges for each of many keys. One charge leaves for each charge that enters.
    Admitted,
    /// The key holds nothing.
    AdmittedByEmpty,
    /// The quota is used up, by charges of one unit, by ten charges for each of many keys, or by 60 buckets.
    Denied,
}

pub const ROWS: [Row; 19] = [
    Row::new(Verdict::Admitted, 100, 1),
    Row::new(Verdict::Admitted, 10_000, 1),
    Row::new(Verdict::Admitted, 10_000, 100),
    Row::new(Verdict::AdmittedByEmpty, 100, 100),
    Row::new(Verdict::Denied, 100, 1),
    Row::new(Verdict::Denied, 100, 100),
    Row::new(Verdict::Denied, 10_000, 1),
    Row::new(Verdict::Denied, 10_000, 100),
    Row::new(Verdict::Admitted, 100, 1).of_many_keys(),
    Row::new(Verdict::Admitted, 10_000, 1).of_many_keys(),
    Row::new(Verdict::Admitted, 10_000, 100).of_many_keys(),
    Row::new(Verdict::Denied, 100, 1).of_many_keys(),
    Row::new(Verdict::Denied, 100, 100).of_many_keys(),
    Row::new(Verdict::Denied, 10_000, 1).of_many_keys(),
    Row::new(Verdict::Denied, 10_000, 100).of_many_keys(),
    Row::new(Verdict::Admitted, 100, 1).with_policies(3),
    Row::new(Verdict::Denied, 100, 1).with_policies(3),
    Row::new(Verdict::Admitted, 100, 1).with_purpose("r"),
    Row::new(Verdict::Admitted, 100, 1).with_purpose("p"),
];

impl Row {
    pub const fn new(verdict: Verdict, quota: u32, cost: u32) -> Self {
        Self { verdict, quota, cost, keys: 1, policies: 1, purpose: "" }
    }

    const fn of_many_keys(self) -> Self {
        Self { keys: MANY_KEYS, ..self }
    }

    const fn with_policies(self, policies: usize) -> Self {
        Self { policies, ..self }
    }

    const fn with_purpose(self, purpose: &'static str) -> Self {
        Self { purpose, ..self }
    }

    pub fn name(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Admitted => "admitted",
            Verdict::AdmittedByEmpty => "admitted, key empty",
            Verdict::Denied => "denied",
        };
        let quota = if self.quota == 10_000 { "10,000" } else { "100" };
        let purpose = match self.purpose {
            "r" => "reserve, ",
            "p" => "peek, ",
            _ => "",
        };
        let keys = if self.keys > 1 { format!(", {} keys", self.keys) } else { String::new() };
        let policies =
            if self.policies > 1 { format!(", {} policies", self.policies) } else { String::new() };
        format!("{purpose}{verdict}, quota {quota}, cost {}{keys}{policies}", self.cost)
    }

    pub fn is_measured(&self, design: Design) -> bool {
        design.is_of_crate() || self.policies == 1 && self.purpose.is_empty()
    }

    /// Returns the number of charges in use where one charge leaves for each charge that enters.
    pub fn charges_in_use(&self) -> u64 {
        if self.keys == 1 { u64::from(self.quota / self.cost) * 7 / 10 } else { 2 * self.keys as u64 }
    }
}
