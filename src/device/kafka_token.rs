//! Gives a client of Kafka the token by which it logs in, with extensions. rdkafka offers a callback for it, which runs
//! where the main queue of a client is polled: nowhere for an admin client, too late for a first request. It passes no
//! extensions on.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};

use rdkafka::ClientContext;
use rdkafka::bindings::{rd_kafka_oauthbearer_set_token, rd_kafka_resp_err_t};
use rdkafka::client::Client;

/// Longest text of an error.
const ERROR_BYTES: usize = 512;

/// A token of SASL/OAUTHBEARER.
pub struct KafkaToken<'a> {
    /// What the brokers check.
    pub value: &'a str,
    /// Who logs in, for logs of librdkafka.
    pub principal: &'a str,
    /// Until when, milliseconds since the Unix epoch.
    pub valid_until_ms: i64,
    /// What goes beside the token, by name.
    pub extensions: &'a [(String, String)],
}

/// Has `client` log in with this token from now on.
///
/// # Errors
/// Why librdkafka does not take it.
pub fn set_kafka_token<C: ClientContext>(client: &Client<C>, token: &KafkaToken<'_>) -> Result<(), String> {
    let text = |text: &str| CString::new(text).map_err(|_| "it contains a zero byte".to_owned());
    let (value, principal) = (text(token.value)?, text(token.principal)?);
    let pairs = token.extensions.iter().flat_map(|(name, value)| [name, value]);
    let pairs: Vec<CString> = pairs.map(|part| text(part)).collect::<Result<_, _>>()?;
    let mut extensions: Vec<*const c_char> = pairs.iter().map(|part| part.as_ptr()).collect();
    let mut error = [0_u8; ERROR_BYTES];
    // SAFETY: the client lives as long as the reference to it, and librdkafka lets every thread call this. All texts
    // end with a zero byte and outlive the call, which copies them; the counts are those of the buffers.
    let code = unsafe {
        rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            value.as_ptr(),
            token.valid_until_ms,
            principal.as_ptr(),
            extensions.as_mut_ptr(),
            extensions.len(),
            error.as_mut_ptr().cast::<c_char>(),
            error.len(),
        )
    };
    if code == rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
        return Ok(());
    }
    let why = CStr::from_bytes_until_nul(&error).map(|why| why.to_string_lossy().into_owned());
    Err(why.ok().filter(|why| !why.is_empty()).unwrap_or_else(|| format!("{code:?}")))
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer};

    use super::*;

    #[test]
    fn a_client_takes_a_token_and_names_what_is_wrong_with_one() {
        let client = |mechanism: &str| -> BaseConsumer {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", "127.0.0.1:1").set("security.protocol", "sasl_plaintext");
            config.set("sasl.mechanism", mechanism).set("sasl.username", "u").set("sasl.password", "p");
            config.create().unwrap()
        };
        let set = |client: &BaseConsumer, value: &str, until: i64, extensions: &[(String, String)]| {
            let token = KafkaToken { value, principal: "me", valid_until_ms: until, extensions };
            set_kafka_token(client.client(), &token)
        };
        let (own, far) = (client("OAUTHBEARER"), i64::MAX / 2_000);
        let pair = |name: &str| vec![(name.to_owned(), "a b".to_owned())];
        assert_eq!(set(&own, "a.b.c", far, &[]), Ok(()));
        assert_eq!(set(&own, "a.b.c", far, &pair("logicalCluster")), Ok(()));
        let refused = |result: Result<(), String>, part: &str| {
            let why = result.unwrap_err();
            assert!(why.contains(part), "{why}");
        };
        refused(set(&own, "a.b.c", 1, &[]), "unexpired");
        refused(set(&own, "a\u{1}c", far, &[]), "\u{1}");
        refused(set(&own, "a\0c", far, &[]), "zero byte");
        refused(set(&own, "a.b.c", far, &pair("auth")), "auth");
        refused(set(&client("PLAIN"), "a.b.c", far, &[]), "not the configured");
    }
}
