//! A real Kafka broker for tests, started by `scripts/kafka.sh` on free ports with a data folder of its
//! own, and stopped and removed when the test process ends, however it ends.
//!
//! Where no broker can be had the test is skipped loudly; with `EVERGRAPH_REQUIRE_KAFKA=1` it fails.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use evergraph::ingest::kafka::KafkaClientOptions;
use evergraph::ingest::produce::TopicTarget;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::ports;
use crate::skip::skipped;

/// A broker that this process started.
pub struct Broker {
    port: u16,
    controller_port: u16,
    sasl_port: u16,
    /// Where it takes tokens, if it does.
    oauth_port: Option<u16>,
    /// `host:port` of another network where it listens, too.
    link: Option<String>,
    data: PathBuf,
    kind: String,
    /// Stops the broker when its standard input closes, which it does when this process ends.
    keeper: Option<Child>,
}

impl Broker {
    /// The broker that tests share. `None` where none can be had; each test that asks is told as skipped.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Result<Broker, String>> = OnceLock::new();
        SHARED.get_or_init(|| Self::launch(None, None)).as_ref().map_err(|why| skipped(why)).ok()
    }

    /// A broker of the test's own, for tests that stop it. Stopped when dropped.
    pub fn own() -> Option<Self> {
        Self::launch(None, None).map_err(|why| skipped(&why)).ok()
    }

    /// One of the test's own that also listens at this address of this machine.
    pub fn with_link(host: &str) -> Option<Self> {
        Self::launch(None, Some(host)).map_err(|why| skipped(&why)).ok()
    }

    /// One of the test's own that also takes tokens that are signed with these keys.
    pub fn with_keys(jwks: &str) -> Option<Self> {
        Self::launch(Some(jwks), None).map_err(|why| skipped(&why)).ok()
    }

    /// A running broker, or why none can be had here.
    fn launch(jwks: Option<&str>, link: Option<&str>) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let name = format!("kafka-{}-{number}", std::process::id());
        let [port, controller_port, sasl_port, oauth_port] = [(); 4].map(|()| ports::free());
        let mut broker = Self {
            port,
            controller_port,
            sasl_port,
            oauth_port: jwks.map(|_| oauth_port),
            link: link.map(|host| format!("{host}:{}", ports::free())),
            data: Path::new(env!("CARGO_TARGET_TMPDIR")).join(name),
            kind: String::new(),
            keeper: None,
        };
        if let Some(jwks) = jwks {
            std::fs::create_dir_all(&broker.data).unwrap();
            std::fs::write(broker.data.join("jwks.json"), jwks).unwrap();
        }
        let output = broker.script("start").output().expect("scripts/kafka.sh is there and executable");
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(3) {
            assert!(std::env::var_os("EVERGRAPH_REQUIRE_KAFKA").is_none(), "no broker: {said}");
            assert!(std::env::var_os("EVERGRAPH_REQUIRE_KAFKA").is_none(), "no broker: {said}");
            return Err(format!("needs a Kafka broker and none can be had here: {said}"));
        }
        assert!(output.status.success(), "the broker did not start: {said}");
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        broker.kind = line.split_whitespace().find_map(|w| w.strip_prefix("kind=")).unwrap_or("").to_owned();
        broker.keeper = Some(broker.spawn_keeper());
        Ok(broker)
    }

    /// `host:port` of the listener without authentication.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `host:port` of the listener of the other network.
    pub fn link_bootstrap(&self) -> &str {
        self.link.as_deref().expect("a broker with a link")
    }

    /// How to reach the SASL/PLAIN listener as this user.
    pub fn sasl_client(&self, user: &str, password: &str) -> KafkaClientOptions {
        KafkaClientOptions::new(&format!("127.0.0.1:{}", self.sasl_port))
            .with("security.protocol", "sasl_plaintext")
            .with("sasl.mechanism", "PLAIN")
            .with("sasl.username", user)
            .with("sasl.password", password)
    }

    /// `host:port` of the listener that takes tokens.
    pub fn oauth_bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.oauth_port.expect("a broker with keys"))
    }

    /// Lets `user` do these things with a topic, by the numbers that the protocol gives the operations.
    pub fn grant(&self, user: &str, topic: &str, operations: &[i8]) {
        let text = |text: &str| {
            let length = i16::try_from(text.len()).unwrap();
            [&length.to_be_bytes(), text.as_bytes()].concat()
        };
        // CreateAcls (30), version 1, and the number of its response.
        let mut request = [&30_i16.to_be_bytes()[..], &1_i16.to_be_bytes(), &7_i32.to_be_bytes()].concat();
        request.extend(text("test"));
        request.extend(i32::try_from(operations.len()).unwrap().to_be_bytes());
        for operation in operations {
            // A topic, by its literal name; from all hosts; allow.
            request.push(2);
            request.extend([text(topic), vec![3], text(&format!("User:{user}")), text("*")].concat());
            request.extend([operation.cast_unsigned(), 3]);
        }
        let mut connection = std::net::TcpStream::connect(self.bootstrap()).unwrap();
        connection.write_all(&u32::try_from(request.len()).unwrap().to_be_bytes()).unwrap();
        connection.write_all(&request).unwrap();
        let mut length = [0; 4];
        connection.read_exact(&mut length).unwrap();
        let mut response = vec![0; u32::from_be_bytes(length) as usize];
        connection.read_exact(&mut response).unwrap();
        // After number, wait and count there are an error code and an empty text for each.
        let results: Vec<&[u8]> = response[12..].chunks(4).collect();
        assert_eq!(results, vec![[0; 4]; operations.len()], "{response:?}");
    }

    /// Whether it is Apache Kafka; the stand-in forgets everything on a restart and has no SASL. Says
    /// loudly that the test is skipped when it is not.
    pub fn is_kafka(&self) -> bool {
        let kafka = self.kind == "kafka";
        if !kafka {
            skipped(&format!("needs Apache Kafka, and only {} can be had here", self.kind));
        }
        kafka
    }

    /// Stops the broker by SIGTERM; its data stay.
    pub fn stop(&self) {
        self.must("stop");
    }

    /// Stops the broker by SIGKILL; its data stay.
    pub fn kill(&self) {
        self.must("kill");
    }

    /// Starts the broker again on the same ports and data.
    pub fn start(&self) {
        self.must("start");
    }

    /// Creates a topic and waits until it can be used.
    pub fn create_topic(&self, topic: &str, partitions: i32) {
        let target = TopicTarget {
            client: KafkaClientOptions::new(&self.bootstrap()),
            topic: topic.into(),
            create_partitions: Some(partitions),
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        // A new topic may be seen once and then still have partitions without a leader.
        let mut seen = 0;
        while seen < 2 {
            match target.prepare() {
                Ok(_) => seen += 1,
                Err(fault) => {
                    assert!(Instant::now() < deadline, "topic {topic} was not created: {fault}");
                    seen = 0;
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    /// Does something that takes an administrator's client.
    pub fn admin<T>(&self, work: impl AsyncFnOnce(AdminClient<DefaultClientContext>) -> T) -> T {
        let client = ClientConfig::new().set("bootstrap.servers", self.bootstrap()).create().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work(client))
    }

    /// Deletes a topic and waits until the broker has forgotten it.
    pub fn delete_topic(&self, topic: &str) {
        let deleted =
            self.admin(async |client| client.delete_topics(&[topic], &AdminOptions::new()).await.unwrap());
        assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
        std::thread::sleep(Duration::from_secs(1));
    }

    /// Produces messages `(partition, key, value)` and waits until all are acknowledged.
    pub fn produce<'a>(
        &self,
        topic: &str,
        messages: impl IntoIterator<Item = (i32, Option<&'a [u8]>, Option<&'a [u8]>)>,
    ) {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", self.bootstrap())
            .set("enable.idempotence", "true")
            .create()
            .unwrap();
        for (partition, key, value) in messages {
            let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(topic).partition(partition);
            if let Some(key) = key {
                record = record.key(key);
            }
            if let Some(value) = value {
                record = record.payload(value);
            }
            while let Err((error, back)) = producer.send(record) {
                assert!(
                    error.rdkafka_error_code() == Some(rdkafka::error::RDKafkaErrorCode::QueueFull),
                    "{error}"
                );
                producer.poll(Duration::from_millis(10));
                record = back;
            }
        }
        producer.flush(Duration::from_secs(30)).unwrap();
        assert_eq!(producer.in_flight_count(), 0);
    }

    fn script(&self, command: &str) -> Command {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut script = Command::new(root.join("scripts/kafka.sh"));
        script
            .arg(command)
            .env("KAFKA_PORT", self.port.to_string())
            .env("KAFKA_CONTROLLER_PORT", self.controller_port.to_string())
            .env("KAFKA_SASL_PORT", self.sasl_port.to_string())
            .env("KAFKA_DATA", &self.data)
            .env("KAFKA_HEAP", "384m")
            .env("KAFKA_WAIT", "120");
        if let Some(link) = &self.link {
            script.env("KAFKA_LINK", link);
        }
        if let Some(port) = self.oauth_port {
            script.env("KAFKA_OAUTH_PORT", port.to_string());
            script.env("KAFKA_OAUTH_JWKS", self.data.join("jwks.json"));
        }
        script
    }

    fn must(&self, command: &str) {
        let output = self.script(command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kafka.sh {command}: {said}");
    }

    fn spawn_keeper(&self) -> Child {
        let script = self.script("stop");
        let mut keeper = Command::new("sh");
        keeper
            .arg("-c")
            .arg("read -r _; \"$0\" kill; rm -rf \"$KAFKA_DATA\"")
            .arg(script.get_program())
            .envs(script.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt at the terminal must not reach it.
            .process_group(0);
        keeper.spawn().unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            if let Some(mut stdin) = keeper.stdin.take() {
                let _ = stdin.write_all(b"\n");
            }
            let _ = keeper.wait();
        }
    }
}
