//! The usage of one pair, for every algorithm.

use super::{
    count::{Count, Reading},
    log::{self, Log},
    windows::{self, Windows},
};
use crate::{
    backend::generation::Generations,
    check::Receipt,
    policy::{Algorithm, Policy},
};

/// The usage of one partition key under one policy. An empty one means the same as none.
pub(super) enum Usage {
    Log(Log),
    Windows(Windows),
}

/// The usage at one instant.
pub(super) enum UsageReading<'a> {
    Log(log::Reading<'a>),
    Windows(windows::Reading),
}

impl Usage {
    /// Returns an empty usage for a policy.
    #[inline]
    pub(super) fn new(policy: &Policy) -> Self {
        match policy.algorithm() {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => Self::Log(Log::EMPTY),
            Algorithm::SlidingCounter | Algorithm::FixedWindow => Self::Windows(Windows::EMPTY),
        }
    }

    /// Returns a shared empty usage for a policy.
    pub(super) fn empty(policy: &Policy) -> &'static Self {
        static LOG: Usage = Usage::Log(Log::EMPTY);
        static WINDOWS: Usage = Usage::Windows(Windows::EMPTY);
        match Self::new(policy) {
            Self::Log(_) => &LOG,
            Self::Windows(_) => &WINDOWS,
        }
    }

    /// Reads the usage at `clock`, in microseconds.
    pub(super) fn read(&self, clock: u64, policy: &Policy) -> UsageReading<'_> {
        match self {
            Self::Log(log) => UsageReading::Log(log.read(clock, policy)),
            Self::Windows(windows) => UsageReading::Windows(windows.read(clock, policy)),
        }
    }

    /// Charges a cost at `clock`. Returns the receipt.
    pub(super) fn charge(
        &mut self,
        clock: u64,
        policy: &Policy,
        cost: u32,
        generations: &Generations,
    ) -> Receipt {
        fn charge<C: Count>(
            count: &mut C,
            clock: u64,
            policy: &Policy,
            cost: u32,
            generations: &Generations,
        ) -> Receipt {
            let instant = C::instant(&count.read(clock, policy));
            count.charge(instant, policy, cost, generations);
            count.receipt(instant, policy)
        }
        match self {
            Self::Log(log) => charge(log, clock, policy, cost, generations),
            Self::Windows(windows) => charge(windows, clock, policy, cost, generations),
        }
    }

    /// Refunds units of a charge, if the charge still counts.
    pub(super) fn refund(&mut self, clock: u64, policy: &Policy, receipt: Receipt, units: u32) {
        match self {
            Self::Log(log) => log.refund(clock, policy, receipt, units),
            Self::Windows(windows) => windows.refund(clock, policy, receipt, units),
        }
    }

    /// Returns the instant from which on no charge counts.
    pub(super) fn idle_at(&self, policy: &Policy) -> u64 {
        match self {
            Self::Log(log) => log.idle_at(policy),
            Self::Windows(windows) => windows.idle_at(policy),
        }
    }
}

impl UsageReading<'_> {
    /// Returns the reading of the algorithm.
    pub(super) fn inner(&self) -> &dyn Reading {
        match self {
            Self::Log(log) => log,
            Self::Windows(windows) => windows,
        }
    }
}
