//! Policies that are chosen for each request.

use std::sync::Arc;

use super::{Policies, PolicyTable};
use crate::head::Head;

/// Chooses the policies of a request from its [`Head`]: by tier, tenant or route.
///
/// [`PolicyTable::choose_by`](super::PolicyTable::choose_by) returns a selector. [`Policies`] are the same for every request.
/// For a closure, use [`Builder::policies_by`](crate::Builder::policies_by), or [`from_fn`] where a value is needed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose policies",
    label = "expected a policy selector, such as `table.choose_by(|head| ..)` or `Policies`",
    note = "to add one policy for every request, call `.policy(..)`; if the value is a `Result`, add `?`; if it is a closure, call `.policies_by(|head| ..)` instead"
)]
pub trait PolicySelector: Send + Sync + 'static {
    /// Returns the policies of this request, in addition to the policies for all requests, or `None` if there are no others.
    fn select(&self, head: &Head<'_>) -> Option<Policies>;

    /// Returns the table from which this selector chooses. A layer then compares every change of the table with its own policies and
    /// costs: see [`PolicyTable::replace`]. The default is `None`.
    fn table(&self) -> Option<&PolicyTable> {
        None
    }
}

impl PolicySelector for Policies {
    fn select(&self, _head: &Head<'_>) -> Option<Policies> {
        Some(self.clone())
    }
}

#[diagnostic::do_not_recommend]
impl<S: PolicySelector + ?Sized> PolicySelector for Arc<S> {
    fn select(&self, head: &Head<'_>) -> Option<Policies> {
        (**self).select(head)
    }

    fn table(&self) -> Option<&PolicyTable> {
        (**self).table()
    }
}

/// A table, and the closure that returns the name to look up.
struct TableSelector<F> {
    table: PolicyTable,
    name: F,
}

impl<F> PolicySelector for TableSelector<F>
where
    F: for<'a> Fn(&Head<'a>) -> Option<&'a str> + Send + Sync + 'static,
{
    fn select(&self, head: &Head<'_>) -> Option<Policies> {
        let entries = head.look_up(self.table.id(), || self.table.entries());
        self.table.choose(&entries, (self.name)(head)).policies().cloned()
    }

    fn table(&self) -> Option<&PolicyTable> {
        Some(&self.table)
    }
}

impl PolicyTable {
    /// Returns a selector that picks the policies by the name that the closure returns. For an unlimited tier, it selects none.
    ///
    /// `None` has the default tier. A name that is not in the table has it, too, and the layer [logs one
    /// warning](Self#names-that-are-not-in-the-table).
    pub fn choose_by<F>(&self, name: F) -> impl PolicySelector + use<F>
    where
        F: for<'a> Fn(&Head<'a>) -> Option<&'a str> + Send + Sync + 'static,
    {
        TableSelector { table: self.clone(), name }
    }
}

struct SelectorFn<F>(F);

#[diagnostic::do_not_recommend]
impl<F> PolicySelector for SelectorFn<F>
where
    F: Fn(&Head<'_>) -> Option<Policies> + Send + Sync + 'static,
{
    fn select(&self, head: &Head<'_>) -> Option<Policies> {
        (self.0)(head)
    }
}

/// Makes a [`PolicySelector`] from a closure.
pub fn from_fn<F>(choose: F) -> impl PolicySelector
where
    F: Fn(&Head<'_>) -> Option<Policies> + Send + Sync + 'static,
{
    SelectorFn(choose)
}
