//! The outputs that the services promise in their first comments.

use std::fs;

use super::process::Example;
use crate::{docs::expected_output, http::wire::request};

#[tokio::test]
async fn services_print_expected_output() {
    let folder = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
    for name in ["axum", "login", "observability", "playground", "reload", "tokens"] {
        let example = Example::of(name, None);
        let address = example.address();
        // A service prints before it answers.
        request(address, "GET", "/", &[]).await;
        let printed = format!("listening on http://{address}\n{}", example.stop("KILL").stdout);
        let expected = expected_output(name).replace("127.0.0.1:3000", &address.to_string());
        let expected = expected.replace("<folder of the crate>", folder.to_str().unwrap());
        assert_eq!(printed.trim_end(), expected, "{name}");
    }
}
