//! The example `reload`: its policies change with its file, while requests go on.

use std::{fs, path::Path, time::Duration};

use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::process::Example;
use crate::http::wire::{Answer, request};

fn policies(quota: &str) -> String {
    format!(
        "[default]\nname = \"requests\"\nquota = {quota}\nwindow = \"1h\"\n\n[tiers]\n\"/health\" = \"unlimited\"\n"
    )
}

/// Replaces the file by renaming a complete one.
fn replace(file: &Path, text: &str) {
    let other = file.with_extension("new");
    fs::write(&other, text).unwrap();
    fs::rename(other, file).unwrap();
}

async fn get(example: &Example) -> Answer {
    request(example.address(), "GET", "/", &[]).await
}

fn field(answer: &Answer) -> &str {
    answer.header("ratelimit-policy").unwrap()
}

/// Sends requests until one has this policy, and returns their number and the last answer.
async fn send_until(example: &Example, policy: &str) -> (usize, Answer) {
    let sending = async {
        for sent in 1.. {
            let answer = get(example).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            if field(&answer) == policy {
                return (sent, answer);
            }
            sleep(Duration::from_millis(10)).await;
        }
        unreachable!()
    };
    timeout(Duration::from_secs(30), sending).await.expect("the new policies")
}

#[tokio::test]
async fn example_reloads_policies_and_keeps_usage() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("policies.toml");
    replace(&file, &policies("1_000_000"));
    let example = Example::with("reload", &[("POLICIES", file.to_str().unwrap())]);
    assert_eq!(field(&get(&example).await), r#""requests";q=1000000;w=3600"#);

    replace(&file, &policies("2_000_000"));
    let (sent, answer) = send_until(&example, r#""requests";q=2000000;w=3600"#).await;
    let left = format!(r#""requests";r={};"#, 2_000_000 - 1 - sent);
    assert!(answer.header("ratelimit").unwrap().starts_with(&left), "{answer:?} after {sent}");

    // A wrong file leaves the policies in force.
    replace(&file, &policies("0"));
    sleep(Duration::from_millis(600)).await;
    assert_eq!(field(&get(&example).await), r#""requests";q=2000000;w=3600"#);
    let health = request(example.address(), "GET", "/health", &[]).await;
    assert_eq!((health.status, health.has_limit_fields()), (200, false));

    let ended = example.stop("INT");
    let error =
        "line 3, column 9\n  |\n3 | quota = 0\n  |         ^\npolicy \"requests\": quota 0: it must be";
    assert!(ended.stderr.contains(error), "{ended:?}");
}
