//! What an operator writes: settings, keys, certificates.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evergraph::api::{Keys, Tls};
use evergraph::config::Config;

use super::{Corpus, Dice, file};

#[test]
fn settings_are_read_or_refused_by_file_or_key() {
    let words = &[
        "[learner]\n",
        "[ingest.kafka.properties]\n",
        "\"security.protocol\" = ",
        "sasl.mechanism = ",
        "= -1\n",
        "= 1e999\n",
        "= \"\"\n",
        "= []\n",
        "= {}\n",
        "[[api]]\n",
        "batch_events",
        "'''",
        "\"\"\"",
        "0x",
        "1979-05-27",
    ];
    Corpus::read("settings", words).check(2, |bytes| {
        let file = file(bytes, ".toml");
        match Config::load(Some(file.path()), &[]) {
            Ok(config) => {
                assert!(config.learner.batch_events > 0 && config.learner.learning_rate.is_finite());
                true
            }
            Err(error) => {
                let said = error.to_string();
                let names_a_key = said.split_whitespace().next().is_some_and(|word| word.contains('.'));
                assert!(said.contains(file.path().to_str().unwrap()) || names_a_key, "no place in {said}");
                false
            }
        }
    });
}

/// The keys of the samples, none of which may be said.
const SECRETS: [&str; 3] =
    ["GqTUVFbPpfCPRqQN0zY1JJQ7", "o2mD6Wm1u0FPd2q7mBqXlYbE", "Zt5wq0E8nUu4bV1rYc7dKx2P"];

#[test]
fn keys_are_read_or_refused_by_line_and_never_said() {
    let words = &["read ", "write ", "admin ", " me ", "#", "\n", "\r\n", "\t", "\u{a0}", "\u{2028}"];
    Corpus::read("keys", words).check(1, |bytes| {
        let file = file(bytes, ".keys");
        match Keys::open(file.path()) {
            Ok(keys) => keys.count() > 0,
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains(file.path().to_str().unwrap()), "{said}");
                assert!(said.len() < 400, "the file is repeated: {} bytes", said.len());
                assert!(SECRETS.iter().all(|secret| !said.contains(&secret[..10])), "{said}");
                false
            }
        }
    });
}

fn certificate_is_taken(bytes: &[u8]) -> bool {
    let file = file(bytes, ".pem");
    match Tls::open(file.path(), file.path()) {
        Ok(_) => true,
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains(file.path().to_str().unwrap()) && said.len() < 600, "{said}");
            false
        }
    }
}

#[test]
fn a_certificate_is_served_or_refused_by_its_file() {
    let words = &[
        "-----BEGIN CERTIFICATE-----\n",
        "-----END CERTIFICATE-----\n",
        "-----BEGIN PRIVATE KEY-----\n",
        "=",
        "\n",
    ];
    Corpus::read("certificate", words).check(2, certificate_is_taken);
}

/// One item of a PEM text in binary, and the text around it.
fn split(text: &str, item: usize) -> Option<(&str, Vec<u8>, &str)> {
    let (start, _) = text.match_indices("-----\n").nth(item * 2)?;
    let start = start + 6;
    let end = start + text[start..].find("-----")?;
    let der = STANDARD.decode(text[start..end].replace('\n', "")).ok()?;
    Some((&text[..start], der, &text[end..]))
}

#[test]
fn what_stands_inside_a_certificate_may_be_anything() {
    let (corpus, mut whole) = (Corpus::read("certificate", &["\u{30}\u{7f}", "\u{17}\u{0d}"]), 0);
    let samples: Vec<String> =
        corpus.samples.iter().filter_map(|(_, bytes)| String::from_utf8(bytes.clone()).ok()).collect();
    let cases = super::setting("EVERGRAPH_FUZZ_CASES", super::CASES);
    for case in 0..cases {
        let mut dice = Dice::of("inside a certificate", case);
        let text = &samples[dice.below(samples.len())];
        let Some((before, mut der, after)) = split(text, dice.below(2)) else { continue };
        whole += 1;
        corpus.damage(&mut dice, &mut der);
        let pem = format!("{before}{}\n{after}", STANDARD.encode(der));
        corpus.guarded(&format!("case {case}"), pem.as_bytes(), &certificate_is_taken);
    }
    assert!(whole * 2 > cases, "{whole} of {cases} were damaged inside");
}
