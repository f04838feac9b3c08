//! Settlements, which replace a charge by the amount actually used.

// The queue holds no limiter and no response.

mod actual_cost;
mod change;
mod meter;
mod queue;
mod reservation;
mod settled;
mod settling;
mod token;

pub use actual_cost::{ActualCost, actual_cost, by_hand};
pub use meter::{Meter, MeteredBody};
pub(crate) use queue::SettlementQueue;
pub(crate) use reservation::Charged;
pub use reservation::Reservation;
pub use settled::{Settled, Settlement, Unsettled};
pub(crate) use settling::Settling;
pub use token::TokenError;
