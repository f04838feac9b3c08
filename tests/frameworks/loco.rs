//! loco: a layer that `Hooks::after_routes` adds to the router. loco serves with the address of the peer.

use ::axum::Router;
use loco_rs::{
    Result,
    app::{AppContext, Hooks},
    bgworker::Queue,
    boot::{BootResult, ServeParams, StartMode, create_app},
    config::Config,
    controller::{AppRoutes, Routes, format},
    environment::Environment,
    prelude::{Response, async_trait, get},
    task::Tasks,
};
use serde_json::json;
use tokio::net::TcpSocket;

use crate::support::{layer, verify};

async fn hello() -> Result<Response> {
    format::text("hello")
}

struct App;

#[async_trait]
impl Hooks for App {
    fn app_name() -> &'static str {
        "hello"
    }

    async fn boot(mode: StartMode, environment: &Environment, config: Config) -> Result<BootResult> {
        create_app::<Self>(mode, environment, config).await
    }

    fn routes(_ctx: &AppContext) -> AppRoutes {
        AppRoutes::empty().add_route(Routes::new().add("/", get(hello)))
    }

    async fn after_routes(router: Router, _ctx: &AppContext) -> Result<Router> {
        let limits = layer().build().map_err(|error| loco_rs::Error::Message(error.to_string()))?;
        Ok(router.layer(limits))
    }

    async fn connect_workers(_ctx: &AppContext, _queue: &Queue) -> Result<()> {
        Ok(())
    }

    fn register_tasks(_tasks: &mut Tasks) {}
}

/// Returns a socket that reserves a port for loco, which binds the listener itself: to a port of a socket that does not listen.
fn reserve_port() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    socket
}

#[tokio::test]
async fn loco_app_is_limited() {
    let reserved = reserve_port();
    let port = reserved.local_addr().unwrap().port();
    let config: Config = serde_json::from_value(json!({
        "logger": { "enable": false, "level": "off", "format": "compact" },
        "server": { "binding": "127.0.0.1", "port": port, "host": "http://127.0.0.1" },
        "workers": { "mode": "ForegroundBlocking" },
    }))
    .unwrap();
    let BootResult { app_context, router, .. } =
        App::boot(StartMode::ServerOnly, &Environment::Test, config).await.unwrap();
    let served = ServeParams { port: port.into(), binding: "127.0.0.1".to_owned() };
    let server =
        tokio::spawn(async move { App::serve(router.unwrap(), &app_context, &served).await.unwrap() });
    while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        tokio::task::yield_now().await;
    }
    verify(([127, 0, 0, 1], port).into()).await;
    server.abort();
}
