//! The tests of the example `playground`, as its users see it: a page in a headless browser.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

mod browser;
mod contrast;
mod first_view;
mod outage;
mod page;
mod user_mistakes;

#[path = "../example"]
mod example {
    pub mod process;
}

#[path = "../http"]
mod http {
    pub mod wire;
}

#[path = "../support"]
mod support {
    pub mod server;
}
