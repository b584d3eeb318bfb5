//! The steps of every data request before and after its handler, as one layer: each layer of its own costs a request
//! allocations and copies.
//!
//! Authentication comes before all that a client can use up, and the body before the permit.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::App;
use super::envelope::{Room, admit};
use super::error::ApiError;
use super::keys::{Known, Role};
use super::receive::received;
use super::sending::Sender;

/// Takes a request through key, body and permit to its handler, and counts its response until it is sent.
pub(super) async fn data_route(
    State((app, role, room)): State<(App, Role, Room)>,
    request: Request,
    next: Next,
) -> Response {
    let sender = Sender::of(&request);
    let (known, outcome) = match Known::of(&app, role, &request) {
        Err(refused) => (Known::default(), Err(refused)),
        Ok(known) => {
            let outcome = handle(&app, &known, room, request, next).await;
            (known, outcome)
        }
    };
    let mut response = outcome.unwrap_or_else(IntoResponse::into_response);
    known.note(response.extensions_mut());
    sender.hold(&app, response)
}

async fn handle(
    app: &App,
    known: &Known,
    room: Room,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    known.note(request.extensions_mut());
    let mut request = received(app, request).await?;
    let _permit = admit(app, room, &mut request)?;
    Ok(next.run(request).await)
}
