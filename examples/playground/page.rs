//! The page and its parts, which are in the program. The page loads nothing from another host.

use axum::{
    Router,
    http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};

/// The browser refuses whatever another host would serve.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let (html, css, js) = ("text/html; charset=utf-8", "text/css", "text/javascript");
    let files: [(&str, &str, &'static str); 9] = [
        ("/", html, include_str!("assets/index.html")),
        ("/style.css", css, include_str!("assets/style.css")),
        ("/app.js", js, include_str!("assets/app.js")),
        ("/chart.js", js, include_str!("assets/chart.js")),
        ("/compare.js", js, include_str!("assets/compare.js")),
        ("/errors.js", js, include_str!("assets/errors.js")),
        ("/live.js", js, include_str!("assets/live.js")),
        ("/outage.js", js, include_str!("assets/outage.js")),
        ("/policies.js", js, include_str!("assets/policies.js")),
    ];
    files.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || std::future::ready(file(kind.to_owned(), text))))
    })
}

fn file(kind: String, text: &'static str) -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY.to_owned()),
        // A new build of the program has a new page.
        (CACHE_CONTROL, "no-store".to_owned()),
    ];
    (headers, text)
}
