//! leptos: a layer of the axum router that renders the pages on the server.

use std::net::SocketAddr;

use ::axum::Router;
use ::leptos::prelude::*;
use leptos_axum::{LeptosRoutes, generate_route_list};
use leptos_router::{
    components::{Route, Router as Pages, Routes},
    path,
};
use tokio::net::TcpListener;

use crate::support::{layer, verify};

#[component]
fn App() -> impl IntoView {
    view! {
        <Pages>
            <Routes fallback=|| "not found">
                <Route path=path!("/") view=|| view! { <p>"hello"</p> } />
            </Routes>
        </Pages>
    }
}

#[tokio::test]
async fn leptos_page_is_limited() {
    let options = LeptosOptions::builder().output_name("hello").build();
    let app = Router::new()
        .leptos_routes(&options, generate_route_list(App), App)
        .layer(layer().build().unwrap())
        .with_state(options);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async { ::axum::serve(listener, service).await.unwrap() });
    verify(address).await;
    server.abort();
}
