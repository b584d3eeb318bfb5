//! What token endpoints respond to a client that wants to log in.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use evergraph::ingest::kafka::{Token, token_of_response};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{Corpus, Dice};

/// When responses come, and who asks.
const NOW_MS: i64 = 1_700_000_000_000;
const CLIENT: &str = "me";

const WORDS: &[&str] = &[
    "\"access_token\":",
    "\"expires_in\":",
    "\"error\":\"",
    "\"error_description\":\"\\r\\n",
    "\"exp\":",
    "\"sub\":\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "null",
    "[]",
    "e30",
    ".",
    "\u{feff}",
];

/// Which part of a response an error is about.
const PLACES: &[&str] = &["access_token", "expires_in", "exp"];

/// How the token of the samples that is no JWT begins: no error says it.
const SECRET: &str = "vF9dft4qmT";

/// Holds a token against a response and its own claims, as another reader of JSON takes them.
fn hold(token: &Token, response: &Value, claims: &Value) {
    assert_eq!(response["access_token"].as_str(), Some(&*token.value));
    assert!(!token.value.is_empty() && token.value.bytes().all(|byte| byte.is_ascii_graphic()));
    let is_named = claims["sub"].as_str() == Some(&*token.principal);
    assert!(is_named || token.principal == CLIENT, "{:?} logs in", token.principal);
    assert!(token.principal.len() < 1_000 && !token.principal.chars().any(char::is_control));

    let number = |value: &Value| value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    let left = number(&response["expires_in"]).map(|seconds| seconds * 1e3);
    let by_claim = claims["exp"].as_f64().map(|seconds| seconds * 1e3 - NOW_MS as f64);
    let lifetime = (token.valid_until_ms - NOW_MS) as f64;
    let most = left.into_iter().chain(by_claim).fold(0.0, f64::max);
    assert!(lifetime > 0.0 && lifetime <= most + 1.0, "valid for {lifetime} ms of {left:?} and {by_claim:?}");
    assert!(lifetime <= 366.0 * 24.0 * 3.6e6, "{lifetime} ms");
    assert!((NOW_MS..=token.valid_until_ms).contains(&token.renew_at_ms));
}

/// What these bytes are, null if they are no JSON; `None` if another reader takes less than a decoder that passes over
/// what it does not need, such as numbers that are out of range.
fn read(bytes: &[u8]) -> Option<Value> {
    match serde_json::from_slice(bytes) {
        Ok(value) => Some(value),
        Err(_) => serde_json::from_slice::<IgnoredAny>(bytes).is_err().then_some(Value::Null),
    }
}

/// The bytes that stand inside a token in the place of claims.
fn payload(token: &str) -> Vec<u8> {
    let payload = token.split('.').nth(1).unwrap_or_default().trim_end_matches('=');
    BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap_or_default()
}

#[test]
fn a_response_is_a_token_for_as_long_as_it_says_or_is_refused_by_its_field() {
    Corpus::read("token", WORDS).check(1, |bytes| {
        // The same bytes as a refusal.
        let why = token_of_response(400, bytes, CLIENT, NOW_MS).err().expect("no token");
        assert!(why.starts_with("refuses the client (400, ") || why == "responds with 400", "{why}");
        assert!(why.chars().count() < 500 && !why.chars().any(char::is_control), "{why}");
        match token_of_response(200, bytes, CLIENT, NOW_MS) {
            Ok(token) => {
                serde_json::from_slice::<IgnoredAny>(bytes).expect("what is taken is JSON");
                if let (Some(response), Some(claims)) = (read(bytes), read(&payload(&token.value))) {
                    hold(&token, &response, &claims);
                }
                true
            }
            Err(why) => {
                assert!(PLACES.iter().any(|place| why.contains(place)), "no place in {why}");
                assert!(why.len() < 200 && !why.contains(SECRET), "{why}");
                false
            }
        }
    });
}

#[test]
fn what_a_token_says_of_itself_may_be_anything() {
    let (corpus, mut named) = (Corpus::read("token", WORDS), 0);
    let cases = super::setting("EVERGRAPH_FUZZ_CASES", super::CASES);
    for case in 0..cases {
        let mut dice = Dice::of("inside a token", case);
        let mut claims = br#"{"sub":"evergraph","iss":"issuer","exp":1700000030.5}"#.to_vec();
        corpus.damage(&mut dice, &mut claims);
        let token = format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(&claims));
        let body = format!("{{\"access_token\":\"{token}\",\"expires_in\":60}}");
        let has_name = corpus.guarded(&format!("case {case}"), body.as_bytes(), &|body| {
            let token = token_of_response(200, body, CLIENT, NOW_MS).unwrap_or_else(|why| panic!("{why}"));
            assert!(token.valid_until_ms <= NOW_MS + 60_000);
            if let (Some(response), Some(claims)) = (read(body), read(&claims)) {
                hold(&token, &response, &claims);
            }
            token.principal != CLIENT
        });
        named += usize::from(has_name);
    }
    assert!(named > 0 && named < cases, "{named} of {cases} claims could be read");
}
