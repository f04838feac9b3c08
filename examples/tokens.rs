//! How does a gateway to a language model charge requests, tokens and cents, also for streamed answers?
//!
//! Requests, input tokens, output tokens and cents are policies of one check. A streamed answer is charged by the tokens that the model has
//! produced, also if the client disconnects.
//!
//! ```text
//! cargo run --example tokens
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example tokens
//! ```
//!
//! Expected output:
//!
//! ```text
//! listening on http://127.0.0.1:3000
//!   curl -i -H 'x-api-key: bob' -H 'x-max-tokens: 5' -d 'three words only' http://127.0.0.1:3000/chat
//!   curl -i -H 'x-api-key: bob' -m 0.5 -d 'the client disconnects after half a second' http://127.0.0.1:3000/chat
//!   curl -H 'x-api-key: bob' http://127.0.0.1:3000/usage
//! ```
//!
//! Type next:
//!
//! ```text
//! curl -i -H 'x-api-key: bob' -H 'x-max-tokens: 5' -d 'three words only' http://127.0.0.1:3000/chat
//! curl -H 'x-api-key: bob' http://127.0.0.1:3000/usage    # output-tokens: 195 of 200 left
//! curl -i -H 'x-api-key: bob' -m 0.5 -d 'the client disconnects after half a second' http://127.0.0.1:3000/chat
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/listen.rs"]
mod listen;
#[path = "common/redis.rs"]
mod redis;
#[path = "common/stop.rs"]
mod stop;

use std::{convert::Infallible, error::Error, io::Write, process::ExitCode, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::sse::{Event, Sse},
    routing::{get, post},
};
use exit::exit;
use futures_util::{Stream, StreamExt, stream};
use listen::listen;
use redis::redis;
use stop::stop;
use tokio::time::sleep;
use tower_sliding_window::{
    Costs, Head, Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer, Reservation,
    backend::Backend,
    header,
    settle::{Meter, by_hand},
};

/// Returns the amounts of a number of tokens. An input token costs one cent, and an output token three.
fn price(input: u32, output: u32) -> Costs {
    let cents = input.saturating_add(output.saturating_mul(3));
    Costs::new().policy("input-tokens", input).policy("output-tokens", output).policy("cents", cents)
}

/// The most output tokens of one answer. A clamped estimate does not bound them.
const MAX_OUTPUT: u32 = 1_000;

/// Returns the most output tokens that the client wants.
fn max_tokens(headers: &HeaderMap) -> u32 {
    let given = headers.get("x-max-tokens").and_then(|tokens| tokens.to_str().ok()?.parse().ok());
    given.unwrap_or(100).min(MAX_OUTPUT)
}

/// Returns the estimate that the layer reserves: the most that the request may use, at least one token of each kind, and one
/// request.
fn estimate(head: &Head<'_>) -> Costs {
    let bytes: Option<u32> = head.header("content-length").and_then(|bytes| bytes.parse().ok());
    // A word and the space behind it have at least two bytes.
    price(bytes.unwrap_or(1_000).div_ceil(2).max(1), max_tokens(head.headers).max(1))
}

/// The model: it repeats the words of the prompt. Each word is a token, and takes 10 ms.
fn model(prompt: &str, tokens: u32) -> impl Stream<Item = String> + use<> {
    let words: Vec<String> = prompt.split_whitespace().map(str::to_owned).collect();
    stream::iter(words.into_iter().cycle().take(tokens as usize)).then(|word| async {
        sleep(Duration::from_millis(10)).await;
        word
    })
}

/// Streams the answer. The meter moves into the stream, and settles when the stream is dropped.
async fn chat(
    reservation: Reservation,
    headers: HeaderMap,
    prompt: String,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let printed = Printed { meter: reservation.meter(), key: key_of(&headers) };
    // The model has read the prompt, and has produced no token yet.
    printed.meter.add(price(prompt.split_whitespace().count() as u32, 0));
    Sse::new(model(&prompt, max_tokens(&headers)).map(move |token| {
        printed.meter.add(price(0, 1));
        Ok(Event::default().data(token))
    }))
}

/// Streams the answer of a model that reports no tokens. Without a meter, the estimate stays.
async fn unmetered(headers: HeaderMap, prompt: String) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(model(&prompt, max_tokens(&headers)).map(|token| Ok(Event::default().data(token))))
}

/// A meter that prints its sums when it is dropped.
struct Printed {
    meter: Meter,
    key: String,
}

impl Drop for Printed {
    fn drop(&mut self) {
        let added = |policy| self.meter.added(policy).unwrap_or(0);
        let (input, output, cents) = (added("input-tokens"), added("output-tokens"), added("cents"));
        print_text(format_args!("{}: {input} input and {output} output tokens, {cents} cents", self.key));
    }
}

/// Returns what is left of every quota.
async fn usage(State(limiter): State<Limiter>, headers: HeaderMap) -> Result<String, StatusCode> {
    let key = PartitionKey::header("x-api-key", key_of(&headers));
    let decision = limiter.peek((key, 0)).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let statuses = decision.statuses().iter();
    Ok(statuses
        .map(|status| {
            let quota = status.quota().unwrap_or_default();
            format!("{}: {} of {quota} left\n", status.policy().name(), status.remaining())
        })
        .collect())
}

fn key_of(headers: &HeaderMap) -> String {
    headers
        .get("x-api-key")
        .map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned())
        .unwrap_or_default()
}

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    match redis().await? {
        Some(backend) => serve(backend).await,
        None => serve(MemoryBackend::new()).await,
    }
}

async fn serve(backend: impl Backend) -> Result<(), Box<dyn Error>> {
    let (minute, day) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));
    let limits = RateLimitLayer::builder(backend)
        .policy(Policy::new("requests", 60, minute)?)
        .policy(Policy::new("input-tokens", 1_000, minute)?)
        .policy(Policy::new("output-tokens", 200, minute)?)
        .policy(Policy::new("cents", 10_000, day)?)
        // A real gateway verifies the key in an outer layer.
        .key(header("x-api-key")?)
        .cost_by(estimate)
        // A client that wants 500 tokens, with a quota of 200, is admitted if it has used none.
        .clamp_estimates()
        .settle_by(by_hand)
        .build()?;
    let limiter = limits.limiter().clone();

    let app = Router::new()
        .route("/chat", post(chat))
        .route("/unmetered", post(unmetered))
        .layer(limits)
        .route("/usage", get(usage))
        .with_state(limiter.clone());

    let listener = listen().await?;
    let address = listener.local_addr()?;
    // A signal may arrive as soon as the lines below are printed.
    let stop = stop()?;
    print_text(format_args!(
        "listening on http://{address}\n  \
         curl -i -H 'x-api-key: bob' -H 'x-max-tokens: 5' -d 'three words only' http://{address}/chat\n  \
         curl -i -H 'x-api-key: bob' -m 0.5 -d 'the client disconnects after half a second' http://{address}/chat\n  \
         curl -H 'x-api-key: bob' http://{address}/usage"
    ));
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    // In memory, no settlement is pending. On Redis, this waits for the last settlements.
    limiter.drain().await;
    Ok(())
}

/// Prints a text. Ignores the error if standard output is closed.
fn print_text(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
