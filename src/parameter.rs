//! Traits of parameters that exist for their error messages.

/// A list of texts. Every iterator of texts implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of texts",
    label = "expected a list of texts, such as `[\"..\", \"..\"]`",
    note = "for one text, write a list of one: `[\"..\"]`; write other values as texts: `.map(|value| value.to_string())`"
)]
pub trait TextList: IntoIterator<Item: AsRef<str>> {}

#[diagnostic::do_not_recommend]
impl<L: IntoIterator<Item: AsRef<str>>> TextList for L {}

/// Settings, or `None` to disable what they configure. Everything that becomes an `Option` of these settings implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `{T}`",
    label = "expected a `{T}`, or `None` to disable it"
)]
pub trait IntoOption<T>: Into<Option<T>> {}

#[diagnostic::do_not_recommend]
impl<T, V: Into<Option<T>>> IntoOption<T> for V {}
