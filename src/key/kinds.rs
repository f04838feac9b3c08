//! The kinds of the built-in keys.

pub(super) const PEER_IP: &str = "peer-ip";
pub(super) const CLIENT_IP: &str = "client-ip";
pub(super) const METHOD: &str = "method";
pub(super) const ROUTE: &str = "route";

pub(super) fn header(name: &str) -> Box<str> {
    format!("header:{name}").into()
}

pub(super) fn cookie(name: &str) -> Box<str> {
    format!("cookie:{name}").into()
}

pub(super) fn path_param(name: &str) -> Box<str> {
    format!("path:{name}").into()
}
