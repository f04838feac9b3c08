//! Addresses in place of texts.

use std::net::IpAddr;

use tower_sliding_window::{ConfigError, key::TrustedProxies};

fn mistake(proxies: Vec<IpAddr>) -> Result<(), ConfigError> {
    let proxies = TrustedProxies::networks(proxies)?; //~ `Vec<IpAddr>` is not a list of texts
    //~ note: write other values as texts: `.map(|value| value.to_string())`
    drop(proxies);
    Ok(())
}

fn main() {}
