//! Tests of the layer and the limiter in the web frameworks of Rust. In each file, a server on the loopback address admits one
//! request of a client in a minute, and rejects the second.

#![cfg(test)]

#[cfg(feature = "actix-web")]
mod actix_web;
#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "leptos")]
mod leptos;
#[cfg(feature = "loco")]
mod loco;
#[cfg(feature = "poem")]
mod poem;
#[cfg(feature = "salvo")]
mod salvo;
#[cfg(feature = "tonic")]
mod tonic;

#[allow(dead_code, reason = "some features need only a part")]
mod support;
