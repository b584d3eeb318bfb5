//! Logging in to a real broker by tokens (SASL/OAUTHBEARER) that a token endpoint of this test signs: they are renewed
//! while messages flow, a refusal and an endpoint that is away are named, and its return is noticed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use evergraph::ingest::dead_letter::{
    DeadLetter, DeadLetterFileOptions, DeadLetterTarget, DeadLetterTopicOptions, DeadLetters,
};
use evergraph::ingest::kafka::{
    KafkaClientOptions, KafkaFault, KafkaSource, KafkaSourceOptions, KafkaState, newest, preflight,
    what_is_missing,
};
use evergraph::ingest::produce::{ProduceOptions, ProduceTarget, TopicTarget, produce};
use evergraph::ingest::rejection::{Reason, Rejection};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig, ServerConnection, StreamOwned};

use crate::broker::Broker;
use crate::kafka_ingest::{Setup, wait_until, word};

const PATIENCE: Duration = Duration::from_secs(15);

/// Signs tokens for the tests' broker.
struct Signer {
    key: EcdsaKeyPair,
    random: SystemRandom,
}

impl Signer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self { key: EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap(), random }
    }

    /// Its public key, as brokers read it.
    fn jwks(&self) -> String {
        // An uncompressed point: 4, x and y.
        let [x, y] = [1..33, 33..65].map(|part| encoded(&self.key.public_key().as_ref()[part]));
        let key =
            json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "k", "x": x, "y": y});
        json!({ "keys": [key] }).to_string()
    }

    fn token(&self, audience: &str, lifetime: u64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let claims = json!({"sub": "evergraph", "iss": "evergraph-issuer", "aud": audience, "scope": "kafka",
            "iat": now, "exp": now + lifetime});
        let head = json!({"alg": "ES256", "kid": "k"}).to_string();
        let text = format!("{}.{}", encoded(head.as_bytes()), encoded(claims.to_string().as_bytes()));
        let signature = self.key.sign(&self.random, text.as_bytes()).unwrap();
        format!("{text}.{}", encoded(signature.as_ref()))
    }
}

fn encoded(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A token endpoint on loopback, for one client.
struct Endpoint {
    port: u16,
    signer: Arc<Signer>,
    /// Seconds that a token is valid.
    lifetime: u64,
    given: Arc<AtomicU64>,
    running: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Endpoint {
    fn start(signer: &Arc<Signer>, lifetime: u64) -> Self {
        let port = crate::ports::free();
        let signer = Arc::clone(signer);
        let mut endpoint = Self { port, signer, lifetime, given: Arc::default(), running: None };
        endpoint.resume();
        endpoint
    }

    /// Nobody listens from now on.
    fn pause(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.store(true, SeqCst);
            // Ends the wait for a connection.
            let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
            thread.join().unwrap();
        }
    }

    fn resume(&mut self) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (signer, given, lifetime) = (Arc::clone(&self.signer), Arc::clone(&self.given), self.lifetime);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if stopped.load(SeqCst) {
                    return;
                }
                respond(connection.unwrap(), &signer, lifetime, &given);
            }
        });
        self.running = Some((stop, thread));
    }

    /// How to log in at the broker's listener for tokens.
    fn client(&self, broker: &Broker, secret: &str) -> KafkaClientOptions {
        KafkaClientOptions::new(&broker.oauth_bootstrap())
            .with("security.protocol", "SASL_PLAINTEXT")
            .with("sasl.mechanism", "OAUTHBEARER")
            .with("sasl.oauthbearer.method", "oidc")
            .with("sasl.oauthbearer.client.id", "evergraph")
            .with("sasl.oauthbearer.client.secret", secret)
            .with("sasl.oauthbearer.scope", "evergraph-test")
            .with("sasl.oauthbearer.extensions", "logicalCluster=lkc-1")
            .with("sasl.oauthbearer.token.endpoint.url", &format!("http://127.0.0.1:{}/token", self.port))
    }

    fn given(&self) -> u64 {
        self.given.load(SeqCst)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.pause();
    }
}

/// The scope that is asked for becomes the audience.
fn respond(mut connection: TcpStream, signer: &Signer, lifetime: u64, given: &AtomicU64) {
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut request, mut part) = (Vec::new(), [0; 4096]);
    let request = loop {
        let Ok(length) = connection.read(&mut part) else { return };
        request.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&request).into_owned();
        if length == 0 || text.contains("&scope=") {
            break text;
        }
    };
    let known = format!("authorization: Basic {}", BASE64_STANDARD.encode("evergraph:right"));
    let scope = request.split_once("grant_type=client_credentials&scope=").map(|(_, scope)| scope);
    let (status, body) = match scope {
        Some(audience) if request.contains(&known) => {
            given.fetch_add(1, SeqCst);
            let token = signer.token(audience, lifetime);
            (200, json!({"access_token": token, "token_type": "Bearer", "expires_in": lifetime}))
        }
        _ => (401, json!({"error": "invalid_client", "error_description": "unknown, or a wrong secret"})),
    };
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = connection.write_all((head + &body).as_bytes());
}

/// A broker that takes tokens, and an endpoint for them.
fn start(lifetime: u64) -> Option<(Broker, Endpoint)> {
    let signer = Arc::new(Signer::new());
    let broker = Broker::with_keys(&signer.jwks())?;
    if !broker.is_kafka() {
        return None;
    }
    Some((broker, Endpoint::start(&signer, lifetime)))
}

fn source_options(client: KafkaClientOptions, topic: &str) -> KafkaSourceOptions {
    let mut options = KafkaSourceOptions::new(&client.brokers, topic, topic);
    options.client = client;
    options
}

fn event(i: i64) -> String {
    format!("{{\"src\":\"u{}\",\"dst\":\"i{i}\",\"ts\":{i}}}", i % 7)
}

fn send(broker: &Broker, topic: &str, events: std::ops::Range<i64>) {
    let values: Vec<String> = events.map(event).collect();
    broker.produce(topic, values.iter().map(|value| (0, None, Some(value.as_bytes()))));
}

/// A topic for dead letters, without events to reject.
fn letters(
    client: &KafkaClientOptions,
    folder: &tempfile::TempDir,
    topic: &str,
) -> (Arc<DeadLetters>, DeadLetter) {
    let file = DeadLetterFileOptions::new(folder.path().join("dead.jsonl"));
    let mut options = DeadLetterTopicOptions::new(&client.brokers, topic);
    options.client = client.clone();
    let letter = DeadLetter {
        source: "kafka:login".into(),
        partition: 0,
        offset: 0,
        key: None,
        payload: Some(b"{ not json".to_vec()),
        headers: Vec::new(),
        received_unix_ms: 0,
        rejection: Rejection::new(Reason::MalformedJson, "for the test"),
    };
    (DeadLetters::open(DeadLetterTarget::Topic(options, file)).unwrap(), letter)
}

#[test]
fn every_client_logs_in_by_tokens() {
    let Some((broker, endpoint)) = start(600) else { return };
    let client = endpoint.client(&broker, "right");
    let topic = "by-token";
    // A client that produces, and one that makes the topic.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.csv");
    let rows: String = (0..1000).map(|i| format!("u{},i{i},{i}\n", i % 7)).collect();
    std::fs::write(&path, format!("src,dst,ts\n{rows}")).unwrap();
    let target = TopicTarget { client: client.clone(), topic: topic.into(), create_partitions: Some(2) };
    let options = ProduceOptions::new(&path, ProduceTarget::Topic(target.clone()));
    let report = produce(&options, &mut |_| {}).unwrap();
    assert_eq!(report.sent, 1000);
    // Those that look.
    let options = source_options(client.clone(), topic);
    let report = preflight(&options, PATIENCE).unwrap();
    let login = report.logged_in.unwrap();
    assert_eq!(login.principal, "evergraph");
    assert!(login.issuer.ends_with("/token"), "{login:?}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    assert!((500_000..=600_000).contains(&(login.valid_until_unix_ms - now)), "{login:?}");
    assert_eq!(what_is_missing(&options, &report.partitions, PATIENCE).unwrap(), []);
    assert_eq!(newest(&options, &report.partitions, 10, PATIENCE).unwrap().len(), 10);
    // Those that read, and compare what was read before.
    let setup = Setup::new();
    let source = setup.source(options.clone());
    wait_until("all are stored", 30, || setup.log.count() == 1000);
    assert!(source.stop(PATIENCE));
    send(&broker, topic, 1000..1100);
    let source = setup.source(options);
    wait_until("the rest is stored", 30, || setup.log.count() == 1100);
    setup.log.assert_exactly_once(1100);
    assert_eq!(source.status().state, KafkaState::Running);
    // One for dead letters.
    broker.create_topic("by-token-dead", 1);
    let (letters, letter) = letters(&client, &folder, "by-token-dead");
    letters.deliver(std::slice::from_ref(&letter)).unwrap();
    assert_eq!(letters.delivered(), (1, 0));
}

/// Ten minutes of it: `EVERGRAPH_LOGIN_SECONDS=600`.
#[test]
fn tokens_are_renewed_while_messages_flow() {
    const LIFETIME: u64 = 10;
    let seconds: u64 =
        std::env::var("EVERGRAPH_LOGIN_SECONDS").map_or(40, |seconds| seconds.parse().unwrap());
    let Some((broker, endpoint)) = start(LIFETIME) else { return };
    let client = endpoint.client(&broker, "right");
    broker.create_topic("renewed", 1);
    broker.create_topic("renewed-dead", 1);
    let setup = Setup::new();
    let source = setup.source(source_options(client.clone(), "renewed"));
    let folder = tempfile::tempdir().unwrap();
    let (letters, letter) = letters(&client, &folder, "renewed-dead");
    let (started, mut sent, mut delivered) = (Instant::now(), 0, 0);
    let mut slowest = Duration::ZERO;
    while started.elapsed() < Duration::from_secs(seconds) {
        let at = Instant::now();
        send(&broker, "renewed", sent..sent + 20);
        sent += 20;
        let patience = if sent == 20 { PATIENCE } else { Duration::from_secs(3) };
        while setup.log.count() < sent as usize {
            assert!(at.elapsed() < patience, "a gap at {:?}: {:?}", started.elapsed(), source.status());
            std::thread::sleep(Duration::from_millis(2));
        }
        if sent > 20 {
            slowest = slowest.max(at.elapsed());
            assert_eq!(source.status().state, KafkaState::Running, "at {:?}", started.elapsed());
        }
        // Rarely, so that tokens are renewed while nothing is delivered.
        if started.elapsed() >= Duration::from_secs(delivered * 15) {
            delivered += 1;
            letters.deliver(std::slice::from_ref(&letter)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    setup.log.assert_exactly_once(sent);
    let stats = source.stats().snapshot();
    assert_eq!((stats.reconnects, stats.token_failures), (0, 0));
    assert_eq!(letters.delivered(), (delivered, 0), "none is left to the file");
    let (renewed, least) = (endpoint.given() - 1, (seconds - 1) / LIFETIME);
    assert!((least..=least * 2).contains(&renewed), "one login for all: {renewed} renewals, not {least}");
    eprintln!("{seconds} s, {renewed} renewals, {sent} events, the slowest took {slowest:.1?}");
}

#[test]
fn a_refusal_is_named_by_who_refuses() {
    let Some((broker, endpoint)) = start(600) else { return };
    broker.create_topic("refused", 1);
    let look = |client: KafkaClientOptions| preflight(&source_options(client, "refused"), PATIENCE);
    let fault = look(endpoint.client(&broker, "wrong")).unwrap_err();
    assert!(matches!(&fault, KafkaFault::Token { issuer, .. } if issuer.ends_with("/token")), "{fault:?}");
    let said = fault.to_string();
    assert!(said.contains("refuses the client (401, invalid_client: unknown, or a wrong secret)"), "{said}");
    assert!(said.contains("sasl.oauthbearer.*") && !said.contains("secret=wrong"), "{said}");
    // The endpoint gives a token, and the broker does not take it.
    let other = endpoint.client(&broker, "right").with("sasl.oauthbearer.scope", "another-audience");
    assert_eq!(look(other.clone()).unwrap_err().word(), "authentication");
    let missing = endpoint.client(&broker, "right").with("sasl.oauthbearer.token.endpoint.url", "");
    let fault = look(missing).unwrap_err();
    assert!(fault.to_string().contains("token.endpoint.url"), "{fault}");

    let setup = Setup::new();
    let source = setup.source(source_options(other, "refused"));
    wait_until("the broker's refusal is the source's fault", 20, || word(&source) == "authentication");
    let source = setup.source(source_options(endpoint.client(&broker, "wrong"), "refused"));
    wait_until("and so is the endpoint's", 20, || word(&source) == "token");
    assert!(source.stop(PATIENCE));
}

#[test]
fn an_endpoint_that_is_away_pauses_reading_until_it_is_back() {
    const LIFETIME: u64 = 5;
    let Some((broker, mut endpoint)) = start(LIFETIME) else { return };
    broker.create_topic("away", 1);
    endpoint.pause();
    let setup = Setup::new();
    let mut options = source_options(endpoint.client(&broker, "right"), "away");
    options.outage_max = Duration::from_secs(5);
    let source: KafkaSource = setup.source(options);
    wait_until("there is no token yet", 20, || word(&source) == "token");
    let reason = format!("{:?}", source.status().state);
    assert!(reason.contains("does not respond") && reason.contains("/token"), "{reason}");
    send(&broker, "away", 0..100);
    endpoint.resume();
    wait_until("the first are stored", 40, || setup.log.count() == 100);
    wait_until("it runs", 20, || word(&source) == "running");

    endpoint.pause();
    let failures = source.stats().snapshot().token_failures;
    wait_until("its token has expired", 40, || word(&source) == "token");
    send(&broker, "away", 100..200);
    std::thread::sleep(Duration::from_secs(2 * LIFETIME));
    assert_eq!(word(&source), "token");
    endpoint.resume();
    wait_until("all are stored", 60, || setup.log.count() == 200);
    wait_until("it runs again", 20, || word(&source) == "running");
    setup.log.assert_exactly_once(200);
    let stats = source.stats().snapshot();
    assert!(stats.token_failures > failures, "{failures} and then {}", stats.token_failures);
    assert_eq!(stats.reconnects, 0, "another client would have had no token either");
}

#[test]
fn a_check_reports_who_logs_in_and_shows_no_secret() {
    let Some((broker, endpoint)) = start(600) else { return };
    broker.create_topic("checked", 1);
    let folder = tempfile::tempdir().unwrap();
    let check = |secret: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
        command.args(["check", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
        command.args(["--set", "ingest.kafka.topic=checked"]);
        let client = endpoint.client(&broker, secret);
        command.arg("--set").arg(format!("ingest.kafka.brokers={}", client.brokers));
        for (name, value) in &client.properties {
            match name.as_str() {
                "sasl.oauthbearer.client.secret" => {
                    let name = "EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__OAUTHBEARER__CLIENT__SECRET";
                    command.env(name, value);
                }
                name => drop(command.arg("--set").arg(format!("ingest.kafka.properties.{name}={value}"))),
            }
        }
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let (passed, said) = check("right");
    let line =
        "ok    kafka: topic checked has 1 partitions; logs in as evergraph by a token of http://127.0.0.1:";
    assert!(passed && said.contains(line) && said.contains("/token, valid until 20"), "{said}");
    let (passed, said) = check("hunter2");
    assert!(!passed && said.contains("FAULT kafka: no token to log in to Kafka: http://"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

/// Exchanges one web identity for credentials, over HTTPS, and returns what it was asked.
fn exchange(listener: &TcpListener) -> String {
    let fixture = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name);
    let certificates = CertificateDer::pem_file_iter(fixture("one.crt")).unwrap();
    let certificates = certificates.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("one.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .unwrap();
    let connection = listener.accept().unwrap().0;
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), connection);
    let mut request = [0; 8192];
    let length = stream.read(&mut request).unwrap();
    let body = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
        <AccessKeyId>ASIAWEB</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
        <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
        </AssumeRoleWithWebIdentityResponse>";
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).unwrap();
    stream.flush().unwrap();
    String::from_utf8_lossy(&request[..length]).into_owned()
}

#[test]
fn a_web_identity_becomes_a_signed_token_that_reaches_the_broker() {
    let Some((broker, _endpoint)) = start(600) else { return };
    broker.create_topic("signed", 1);
    let folder = tempfile::tempdir().unwrap();
    let identity = folder.path().join("identity");
    std::fs::write(&identity, "web-token").unwrap();
    let check = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
        command.args(["check", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
        let brokers = format!("ingest.kafka.brokers={}", broker.oauth_bootstrap());
        for setting in [
            &*brokers,
            "ingest.kafka.topic=signed",
            "ingest.kafka.properties.security.protocol=SASL_PLAINTEXT",
            "ingest.kafka.properties.sasl.mechanism=OAUTHBEARER",
            "ingest.kafka.properties.sasl.oauthbearer.method=aws_msk_iam",
        ] {
            command.args(["--set", setting]);
        }
        let output = command.envs(variables.iter().copied()).output().unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sts = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let ca = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls/one.crt");
    let serving = std::thread::spawn(move || exchange(&listener));
    let (passed, said) = check(&[
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ENDPOINT_URL_STS", &sts),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", identity.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("SSL_CERT_FILE", ca.to_str().unwrap()),
    ]);
    assert!(!passed && said.contains("FAULT kafka: Kafka does not accept the credentials"), "{said}");
    let asked = serving.join().unwrap();
    for part in ["Action=AssumeRoleWithWebIdentity", "RoleArn=arn", "WebIdentityToken=web-token"] {
        assert!(asked.contains(part), "{asked}");
    }
    let nobody = [("AWS_REGION", "eu-west-1"), ("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")];
    let (passed, said) = check(&nobody);
    let line = "FAULT kafka: no token to log in to Kafka: AWS IAM in eu-west-1 has no credentials for us (";
    assert!(!passed && said.contains(line), "{said}");
    let (passed, said) = check(&[]);
    assert!(!passed && said.contains("FAULT kafka: Kafka property sasl.oauthbearer.aws.region"), "{said}");
}
