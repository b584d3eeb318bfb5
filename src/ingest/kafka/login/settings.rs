//! How to log in by tokens, as librdkafka's properties say it. librdkafka fetches tokens only where it is built with
//! curl, and here it is not; so these properties are ours and are not passed on.

use std::collections::BTreeMap;

use super::super::KafkaFault;

const MECHANISMS: [&str; 2] = ["sasl.mechanism", "sasl.mechanisms"];
const PREFIX: &str = "sasl.oauthbearer.";
const METHOD: &str = "sasl.oauthbearer.method";
const REGION: &str = "sasl.oauthbearer.aws.region";
/// Where tokens are asked for.
pub(in crate::ingest::kafka) const TOKEN_ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";
/// Each with the other name that librdkafka has for it.
const CLIENT_ID: [&str; 2] = ["sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id"];
const CLIENT_SECRET: [&str; 2] =
    ["sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret"];
const GRANT: &str = "sasl.oauthbearer.grant.type";
const SCOPE: &str = "sasl.oauthbearer.scope";
const EXTENSIONS: &str = "sasl.oauthbearer.extensions";
const CA_FILE: &str = "https.ca.location";
const CA_PEM: &str = "https.ca.pem";

/// Where tokens come from.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum IssuerSettings {
    /// A token endpoint of OAuth 2.0, by client credentials.
    Oidc {
        endpoint: String,
        client: String,
        secret: String,
        scope: String,
        /// Trusted certificates: a file, or PEM.
        ca_file: String,
        ca_pem: String,
    },
    /// Signed here, with the credentials of AWS that the environment has. An empty region is the environment's.
    AwsMskIam { region: String },
}

/// How to log in by tokens.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct LoginSettings {
    pub issuer: IssuerSettings,
    /// What goes beside the token, by name.
    pub extensions: Vec<(String, String)>,
}

/// Whether these properties name the mechanism that takes tokens.
fn is_by_token(properties: &BTreeMap<String, String>) -> bool {
    MECHANISMS.iter().any(|name| properties.get(*name).is_some_and(|value| value == "OAUTHBEARER"))
}

/// Whether a property is for us and none of librdkafka's business, among these.
pub(in crate::ingest::kafka) fn is_ours(properties: &BTreeMap<String, String>, name: &str) -> bool {
    is_by_token(properties) && (name.starts_with(PREFIX) || name == CA_FILE || name == CA_PEM)
}

fn wrong(property: &str, detail: impl Into<String>) -> KafkaFault {
    KafkaFault::BadOption { property: property.to_owned(), detail: detail.into() }
}

impl LoginSettings {
    /// How these properties say to log in; `None` if not by tokens.
    ///
    /// # Errors
    /// The property that is missing, unknown, or wrong.
    pub fn of(properties: &BTreeMap<String, String>) -> Result<Option<Self>, KafkaFault> {
        if !is_by_token(properties) {
            return Ok(None);
        }
        let protocol = properties.get("security.protocol").map_or("", String::as_str);
        if !["sasl_ssl", "sasl_plaintext"].contains(&protocol.to_ascii_lowercase().as_str()) {
            return Err(wrong("security.protocol", "set it to sasl_ssl: OAUTHBEARER is one of SASL"));
        }
        let mut given: BTreeMap<&str, &str> = properties
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(|(name, _)| is_ours(properties, name))
            .collect();
        let mut take = |name: &str| given.remove(name).unwrap_or_default().to_owned();
        let method = take(METHOD);
        let extensions = extensions(&take(EXTENSIONS))?;
        let issuer = match method.as_str() {
            "oidc" => oidc(&mut take)?,
            "aws_msk_iam" => IssuerSettings::AwsMskIam { region: take(REGION) },
            "" => return Err(wrong(METHOD, "OAUTHBEARER needs it: oidc, or aws_msk_iam")),
            other => return Err(wrong(METHOD, format!("{other} is not known; write oidc, or aws_msk_iam"))),
        };
        match given.into_keys().next() {
            Some(name) => Err(wrong(name, format!("{METHOD} = {method} has no use for it; remove it"))),
            None => Ok(Some(Self { issuer, extensions })),
        }
    }
}

fn oidc(take: &mut impl FnMut(&str) -> String) -> Result<IssuerSettings, KafkaFault> {
    let mut either = |names: [&str; 2]| {
        let [first, second] = names.map(&mut *take);
        let value = if first.is_empty() { second } else { first };
        let name = names.first().copied().unwrap_or_default();
        if value.is_empty() { Err(wrong(name, "sasl.oauthbearer.method = oidc needs it")) } else { Ok(value) }
    };
    let (client, secret) = (either(CLIENT_ID)?, either(CLIENT_SECRET)?);
    let endpoint = take(TOKEN_ENDPOINT);
    if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
        return Err(wrong(
            TOKEN_ENDPOINT,
            "sasl.oauthbearer.method = oidc needs an address that begins with https://",
        ));
    }
    if endpoint.contains('@') {
        return Err(wrong(
            TOKEN_ENDPOINT,
            "write no name and password into it; client.id and client.secret are for that",
        ));
    }
    let grant = take(GRANT);
    if !["", "client_credentials"].contains(&grant.as_str()) {
        return Err(wrong(GRANT, format!("{grant} is not supported; only client_credentials is")));
    }
    let (ca_file, ca_pem) = (take(CA_FILE), take(CA_PEM));
    if !ca_file.is_empty() && !ca_pem.is_empty() {
        return Err(wrong(CA_PEM, format!("{CA_FILE} is set, too; remove one of them")));
    }
    Ok(IssuerSettings::Oidc { endpoint, client, secret, scope: take(SCOPE), ca_file, ca_pem })
}

/// `name=value`, several separated by commas.
fn extensions(text: &str) -> Result<Vec<(String, String)>, KafkaFault> {
    let pair = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let is_name = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphabetic()) && name != "auth";
        is_name.then(|| (name.to_owned(), value.to_owned()))
    };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let is_wrong = |part| {
        let detail =
            format!("{part} is none: write name=value, several separated by commas, names of letters");
        wrong(EXTENSIONS, detail)
    };
    parts.map(|part| pair(part).ok_or_else(|| is_wrong(part))).collect()
}

/// The name of the property for trusted certificates that these have.
pub(super) fn ca_property(ca_pem: &str) -> &'static str {
    if ca_pem.is_empty() { CA_FILE } else { CA_PEM }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "security.protocol=SASL_SSL sasl.mechanism=OAUTHBEARER";
    const OIDC: &str = "sasl.oauthbearer.method=oidc sasl.oauthbearer.client.id=me \
                        sasl.oauthbearer.client.secret=hunter2 sasl.oauthbearer.token.endpoint.url=https://i/t";

    fn of(texts: &[&str]) -> Result<Option<LoginSettings>, KafkaFault> {
        let pairs = texts.iter().flat_map(|text| text.split_whitespace());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap());
        LoginSettings::of(&pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn found(texts: &[&str]) -> LoginSettings {
        of(texts).unwrap_or_else(|fault| panic!("{fault}")).expect("by tokens")
    }

    #[test]
    fn what_is_said_in_the_words_of_librdkafka_is_understood() {
        let settings = found(&[BASE, OIDC, "sasl.oauthbearer.scope=a sasl.oauthbearer.extensions=x=1,y=a=b"]);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(settings.extensions, [pair("x", "1"), pair("y", "a=b")]);
        let IssuerSettings::Oidc { endpoint, client, secret, scope, .. } = settings.issuer else { panic!() };
        assert_eq!([endpoint, client, secret, scope], ["https://i/t", "me", "hunter2", "a"]);
        let other_names = OIDC.replace(".client.", ".client.credentials.client.");
        assert!(found(&[BASE, &other_names]) == found(&[BASE, OIDC]));
        let aws = found(&[BASE, "sasl.oauthbearer.method=aws_msk_iam sasl.oauthbearer.aws.region=eu-west-1"]);
        assert!(aws.issuer == IssuerSettings::AwsMskIam { region: "eu-west-1".into() });
        assert!(of(&["sasl.mechanism=PLAIN", OIDC]).unwrap().is_none(), "librdkafka's business");
    }

    #[test]
    fn what_is_missing_unknown_or_wrong_is_named() {
        for (texts, property) in [
            (vec!["sasl.mechanisms=OAUTHBEARER", OIDC], "security.protocol"),
            (vec![BASE], METHOD),
            (vec![BASE, "sasl.oauthbearer.method=default"], METHOD),
            (vec![BASE, "sasl.oauthbearer.method=oidc"], CLIENT_ID[0]),
            (vec![BASE, &OIDC.replace("hunter2", "")], CLIENT_SECRET[0]),
            (vec![BASE, &OIDC.replace("https://", "")], TOKEN_ENDPOINT),
            (vec![BASE, &OIDC.replace("https://", "https://me:hunter2@")], TOKEN_ENDPOINT),
            (vec![BASE, OIDC, "sasl.oauthbearer.grant.type=password"], GRANT),
            (vec![BASE, OIDC, "sasl.oauthbearer.extensions=x"], EXTENSIONS),
            (vec![BASE, OIDC, "sasl.oauthbearer.extensions=auth=1"], EXTENSIONS),
            (vec![BASE, OIDC, "https.ca.location=a https.ca.pem=b"], CA_PEM),
            (vec![BASE, OIDC, "sasl.oauthbearer.aws.region=a"], REGION),
            (vec![BASE, "sasl.oauthbearer.method=aws_msk_iam", "https.ca.pem=b"], CA_PEM),
        ] {
            let fault = of(&texts).err().unwrap_or_else(|| panic!("{texts:?}"));
            assert!(
                matches!(&fault, KafkaFault::BadOption { property: named, .. } if named == property),
                "{fault}"
            );
            assert!(!fault.to_string().contains("hunter2"));
        }
    }
}
