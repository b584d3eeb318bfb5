//! The words by which programs tell errors apart.

use serde::{Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// Declares the kinds with their words.
macro_rules! error_types {
    ($($kind:ident = $word:literal),+ $(,)?) => {
        /// The kind of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // the words are explained with the errors
        pub enum ErrorType { $($kind),+ }

        impl ErrorType {
            /// Every kind.
            const ALL: &[Self] = &[$(Self::$kind),+];

            /// The word in responses and metrics.
            pub(in crate::api) const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $word),+ }
            }
        }
    };
}

error_types! {
    AllRejected = "all_rejected",
    BatchTooLarge = "batch_too_large",
    BodyTimeout = "body_timeout",
    BodyTooLarge = "body_too_large",
    DiskFull = "disk_full",
    Forbidden = "forbidden",
    ForeignPage = "foreign_page",
    IndexDisabled = "index_disabled",
    IndexNotReady = "index_not_ready",
    Internal = "internal",
    Invalid = "invalid",
    LocalOnly = "local_only",
    LogFailed = "log_failed",
    Malformed = "malformed",
    MethodNotAllowed = "method_not_allowed",
    NoModel = "no_model",
    NoPlaceForPage = "no_place_for_page",
    NotDone = "not_done",
    NotYetVisible = "not_yet_visible",
    OutcomeUnknown = "outcome_unknown",
    Overloaded = "overloaded",
    PushDisabled = "push_disabled",
    QueueFull = "queue_full",
    RateLimited = "rate_limited",
    ReadReplica = "read_replica",
    Restoring = "restoring",
    ShuttingDown = "shutting_down",
    SourcePaused = "source_paused",
    StorageFailed = "storage_failed",
    Timeout = "timeout",
    TooManyTransfers = "too_many_transfers",
    Unauthenticated = "unauthenticated",
    UnknownHost = "unknown_host",
    UnknownNode = "unknown_node",
    UnknownRoute = "unknown_route",
    UnknownSource = "unknown_source",
    Unstorable = "unstorable",
    UnsupportedMediaType = "unsupported_media_type",
}

impl Serialize for ErrorType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl PartialSchema for ErrorType {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(Self::ALL.iter().map(|kind| kind.as_str())))
            .description(Some("What went wrong, for programs. Later versions may add words."))
            .into()
    }
}

impl ToSchema for ErrorType {}
