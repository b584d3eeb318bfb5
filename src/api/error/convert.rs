//! Which [`ApiError`] a failure elsewhere becomes: rejections of axum's extractors, and errors of the modules below.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;

use super::ApiError;
use super::render::cut_to;
use crate::api::admin::OperatorError;
use crate::api::events::Rejected;
use crate::event::{IntakeError, SubmitError};
use crate::serving::QueryError;

/// Rejected events in an error, at most, and the characters of their details. Each is also a dead letter.
const REJECTED_MAX: usize = 100;
const REJECTED_CHARS_MAX: usize = 200;

impl ApiError {
    /// No event of a body was accepted. Names the first of them only: the error is small however many there are.
    pub(in crate::api) fn all_rejected(mut rejected: Vec<Rejected>) -> Self {
        let count = rejected.len();
        rejected.truncate(REJECTED_MAX);
        rejected.shrink_to_fit();
        for event in &mut rejected {
            event.detail = cut_to(REJECTED_CHARS_MAX, std::mem::take(&mut event.detail));
        }
        Self::AllRejected { count, rejected }
    }

    /// The error of a body that could not be read as JSON of the expected shape.
    pub(in crate::api) fn of_json(rejection: &JsonRejection, body_limit: usize) -> Self {
        match rejection {
            JsonRejection::MissingJsonContentType(_) => Self::ContentType { expected: "application/json" },
            JsonRejection::JsonDataError(error) => Self::Invalid(innermost(error)),
            JsonRejection::JsonSyntaxError(error) => Self::Unreadable(innermost(error)),
            other => Self::of_body(other.status(), other.body_text(), body_limit),
        }
    }

    /// The error of a body that could not be read at all.
    pub(in crate::api) fn of_body(status: StatusCode, text: String, body_limit: usize) -> Self {
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            Self::BodyTooLarge { limit: body_limit }
        } else {
            Self::Unreadable(text)
        }
    }
}

/// The inner error of a rejection, without the text around it.
fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::Invalid(rejection.body_text())
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::Invalid(rejection.body_text())
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::NotReady | QueryError::Mismatch { .. } => Self::NoModel(error.to_string()),
            QueryError::Storage(_) => Self::StorageFailed(error.to_string()),
            QueryError::NoIndex => Self::IndexDisabled(error.to_string()),
            QueryError::IndexFilling { .. } | QueryError::IndexFull { .. } => {
                Self::IndexNotReady(error.to_string())
            }
            QueryError::TooManyPairs { found, limit } => {
                Self::BatchTooLarge { what: "pairs of a source and a candidate", found, limit }
            }
        }
    }
}

impl From<OperatorError> for ApiError {
    fn from(error: OperatorError) -> Self {
        let reason = error.to_string();
        match error {
            OperatorError::UnknownSource { known, .. } => Self::UnknownSource { reason, known },
            OperatorError::Invalid(_) => Self::Invalid(reason),
            OperatorError::Failed(_) => Self::NotDone(reason),
            OperatorError::Unsettled(_) => Self::Unsettled(reason),
        }
    }
}

impl From<IntakeError> for ApiError {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::Overloaded => Self::QueueFull,
            IntakeError::Malformed(detail) => Self::Unreadable(detail),
            IntakeError::TooMany { found_at_least, limit } => {
                Self::BatchTooLarge { what: "or more events", found: found_at_least, limit }
            }
            IntakeError::OutcomeUnknown(detail) => Self::OutcomeUnknown { detail },
            IntakeError::Refused(SubmitError::ShuttingDown) => Self::ShuttingDown,
            IntakeError::Refused(SubmitError::Restoring) => Self::Restoring,
            IntakeError::Refused(SubmitError::Paused) => Self::SourcePaused,
            IntakeError::Refused(refused @ SubmitError::Replica { .. }) => Self::Replica(refused.to_string()),
            IntakeError::Refused(refused @ SubmitError::DiskFull { .. }) => {
                Self::DiskFull(refused.to_string())
            }
            IntakeError::Refused(refused @ SubmitError::OutcomeUnknown) => {
                Self::OutcomeUnknown { detail: refused.to_string() }
            }
            IntakeError::Refused(refused @ SubmitError::Unstorable { .. }) => {
                Self::Unstorable(refused.to_string())
            }
            IntakeError::Refused(refused @ SubmitError::Failed { .. }) => {
                Self::LogFailed(refused.to_string())
            }
        }
    }
}
