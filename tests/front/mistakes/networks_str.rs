//! One network in place of a list.

use tower_sliding_window::{ConfigError, key::TrustedProxies};

fn mistake() -> Result<(), ConfigError> {
    let proxies = TrustedProxies::networks("10.0.0.0/8")?; //~ `&str` is not a list of texts
    //~ note: for one text, write a list of one: `[".."]`
    drop(proxies);
    Ok(())
}

fn main() {}
