//! actix-web: a middleware that calls a `Limiter`. actix-web has an older version of the crate `http`, so the header fields are
//! converted.

use std::net::TcpListener;

use ::actix_web::{
    App, Error, HttpResponse, HttpServer,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    error::ErrorInternalServerError,
    http::{
        StatusCode,
        header::{HeaderMap, HeaderName, HeaderValue},
    },
    middleware::{Next, from_fn},
    web,
};
use tower_sliding_window::{Limiter, PartitionKey, answer::Dialect};

use crate::support::{limiter, verify};

async fn hello() -> &'static str {
    "hello"
}

async fn limit(
    limiter: web::Data<Limiter>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let Some(peer) = request.peer_addr() else {
        return Err(ErrorInternalServerError("the server does not know the address of the peer"));
    };
    match limiter.admit(PartitionKey::peer_ip(peer.ip())).await {
        Ok(admission) => {
            let mut response = next.call(request).await?.map_into_boxed_body();
            if let Some(decision) = admission.decision() {
                let mut fields = http::HeaderMap::new();
                Dialect::Draft11.add_fields(decision, &mut fields);
                insert(&fields, response.headers_mut());
            }
            Ok(response)
        }
        Err(rejection) => {
            let (head, body) = rejection.to_response().into_parts();
            let status =
                StatusCode::from_u16(head.status.as_u16()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            let mut response = HttpResponse::with_body(status, body).map_into_boxed_body();
            insert(&head.headers, response.headers_mut());
            Ok(request.into_response(response))
        }
    }
}

fn insert(fields: &http::HeaderMap, headers: &mut HeaderMap) {
    for (name, value) in fields {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_str().as_bytes()), HeaderValue::from_bytes(value.as_bytes()))
        {
            headers.insert(name, value);
        }
    }
}

#[::actix_web::test]
async fn actix_web_app_is_limited() {
    let limiter = limiter();
    let app = move || {
        let limiter = web::Data::new(limiter.clone()); // workers share the limit
        App::new().wrap(from_fn(limit)).app_data(limiter).route("/", web::get().to(hello))
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = HttpServer::new(app).workers(1).disable_signals().listen(listener).unwrap().run();
    let handle = server.handle();
    let server = ::actix_web::rt::spawn(server);
    verify(address).await;
    handle.stop(false).await;
    server.await.unwrap().unwrap();
}
