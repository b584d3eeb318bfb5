//! A leader and its replicas, over a real broker: equal positions mean equal responses, kills lose nothing and double
//! nothing, and who must not go on says why.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evergraph::event::{EdgeId, EventTime};
use evergraph::serving::{
    Applied, QueryEngine, SentStates, StateChanges, StateFollower, StateMark, StateRow,
};
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::live::small_engine;
use crate::network::Network;
use crate::process::{Moments, PATIENCE, Process, Start, evergraph};

/// A daemon with small rows.
pub fn daemon(broker: &Broker, topics: &str, role: &str, data: &Path) -> Start {
    let small = ["memory", "time", "embedding"];
    let start =
        small.iter().fold(Start::in_dir(data), |start, of| start.set(&format!("model.{of}_dimension=8")));
    start
        .set(&format!("cluster.role={role}"))
        .set(&format!("cluster.topics={topics}"))
        .set(&format!("cluster.brokers={}", broker.bootstrap()))
        .set("cluster.coalesce_ms=20")
        .set("cluster.advertise=http://the-leader:8080")
}

fn edge(src: &str, dst: &str, ts: u64) -> Value {
    json!({ "src": src, "dst": dst, "ts": ts })
}

/// Events of a stream in which some pairs come again.
pub fn events(from: u64, to: u64) -> Vec<Value> {
    let event = |i: u64| {
        let mut event = edge(&format!("u{}", i * 7 % 31), &format!("i{}", i * i % 13), i);
        if i * i % 13 < 6 {
            event["type"] = json!("buy");
        }
        event
    };
    (from..to).map(event).collect()
}

/// The same events, each with these features.
fn with_features(mut lines: Vec<Value>, features: &[f32]) -> Vec<Value> {
    lines.iter_mut().for_each(|line| line["features"] = json!(features));
    lines
}

pub fn push(process: &Process, lines: &[Value]) -> Value {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let (status, response) = process.post("/v1/events", "application/x-ndjson", &lines).unwrap();
    assert_eq!(status, 200, "{response}");
    response
}

/// Waits until everything below `position` is learned, or applied, there.
pub fn reflects(process: &Process, position: u64) -> Value {
    process.wait_until(&format!("{position} is reflected"), |status| {
        status["freshness"]["applied_position"] == position
            && status["freshness"]["indexed_position"] == position
    })
}

/// Waits until replicas have what the leader has last published.
pub fn is_shipped(leader: &Process, replica: &Process, position: u64) {
    let version = reflects(leader, position)["freshness"]["model_version"].clone();
    replica.wait_until("the replica has it all", |status| {
        let freshness = &status["freshness"];
        freshness["applied_position"] == position && freshness["model_version"] == version
    });
}

/// Requests of every kind, each with its body; without one they are GET.
fn requests() -> Vec<(&'static str, Option<Value>)> {
    let nodes: Vec<String> =
        (0..31).map(|i| format!("u{i}")).chain((0..13).map(|i| format!("i{i}"))).collect();
    let pairs: Vec<Value> =
        (0..40).map(|i| json!({ "src": format!("u{}", i % 31), "dst": format!("i{}", i % 13) })).collect();
    vec![
        ("/v1/embeddings", Some(json!({ "nodes": nodes, "unknown": "prior" }))),
        ("/v1/links/score", Some(json!({ "pairs": pairs }))),
        ("/v1/nodes/u7/neighbors?limit=50", None),
        ("/v1/nodes/i4/neighbors?limit=50", None),
        ("/v1/nodes/u1", None),
    ]
}

/// Fails unless both respond with the same bytes.
fn respond_alike(leader: &Process, replica: &Process) {
    for (path, body) in requests() {
        let of = |process: &Process| match &body {
            Some(body) => process.post(path, "application/json", &body.to_string()).unwrap(),
            None => process.get(path).unwrap(),
        };
        let ((status, ours), (other, theirs)) = (of(leader), of(replica));
        assert_eq!((status, ours.to_string()), (other, theirs.to_string()), "{path}");
        assert!(status == 200 || status == 404, "{path}: {ours}");
    }
}

/// All destinations of a type, scored for two sources, when rows of the live index are there.
fn top(process: &Process) -> String {
    let body = json!({ "src": ["u1", "u2"], "limit": 50, "exact": true, "candidates": { "type": "buy" } });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, response) =
            process.post("/v1/links/top", "application/json", &body.to_string()).unwrap();
        if status == 200 {
            return response["results"].to_string();
        }
        assert!(status == 503 && Instant::now() < deadline, "{response}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn changes_wait_for_their_position_and_are_taken_again_where_they_did_not_arrive() {
    let [leader, replica] = [(); 2].map(|()| Arc::new(small_engine()));
    let node = |key: &str| leader.stores.keys.lookup(&key.into()).unwrap();
    let publish = |key: &str, value: f32| leader.states.publish(node(key), &[value; 4], EventTime(30));
    let row = |engine: &QueryEngine, key: &str| {
        let mut row = [0.0; 4];
        engine.states.gather(&[node(key)], 0..4, &mut row);
        (row[0], engine.states.updated(node(key)))
    };
    publish("alice", 0.1);
    StateChanges::follow(&leader.states);
    let mut sent = SentStates::default();
    publish("bob", 0.2);
    leader.states.touched.set_destination(node("bob"));
    let changes = StateChanges::take(&leader, &sent);
    assert_eq!((changes.nodes.as_slice(), changes.weights.is_some()), (&[node("bob")][..], true));
    changes.give_back();
    let changes = StateChanges::take(&leader, &sent);
    assert_eq!(changes.nodes, [node("bob")], "it did not arrive");
    changes.note(&mut sent);
    let mut follower = StateFollower::new(replica.clone());
    changes.nodes.iter().for_each(|&node| follower.take_row(changes.row(node)));
    let at = |position: u64| StateMark { position: EdgeId(position), ..changes.mark };
    assert_eq!(follower.apply(&at(4)).unwrap(), Applied::NotIndexed);
    assert_eq!(row(&replica, "bob"), (0.0, None), "nothing of it is seen before");
    assert_eq!(follower.apply(&at(3)).unwrap(), Applied::Yes);
    assert_eq!((row(&replica, "bob"), follower.waiting()), ((0.2, Some(EventTime(30))), 0));
    assert!(replica.states.touched.is_destination(node("bob")));
    assert!(StateChanges::take(&leader, &sent).is_empty());
    // A leader that has started again is behind: its rows wait until it has caught up.
    publish("bob", 0.3);
    let changes = StateChanges::take(&leader, &sent);
    follower.take_row(changes.row(node("bob")));
    assert_eq!(follower.apply(&at(2)).unwrap(), Applied::Behind);
    assert_eq!((row(&replica, "bob").0, follower.waiting()), (0.2, 1));
    assert_eq!(follower.apply(&at(3)).unwrap(), Applied::Yes);
    assert_eq!(row(&replica, "bob").0, 0.3);
    // A row of a name that is deleted by then is not published, and one that goes goes.
    replica.stores.keys.forget(node("7"));
    publish("7", 0.4);
    leader.states.forget(node("bob"));
    let changes = StateChanges::take(&leader, &sent);
    assert_eq!(changes.nodes.len(), 2);
    changes.nodes.iter().for_each(|&node| follower.take_row(changes.row(node)));
    assert_eq!(follower.apply(&at(3)).unwrap(), Applied::Yes);
    assert_eq!((row(&replica, "bob").1, row(&replica, "7").1), (None, None));
    // Rows of another shape are refused, and nothing of them is seen.
    let wide = Some((EventTime(40), vec![0.5; 5]));
    follower.take_row(StateRow { node: node("alice"), is_destination: false, types: vec![], row: wide });
    assert!(follower.apply(&at(3)).is_err());
    assert_eq!(row(&replica, "alice").1, None);
}

#[test]
fn a_replica_responds_as_its_leader_does_with_every_kind_of_model() {
    let Some(broker) = Broker::shared().filter(|broker| broker.is_kafka()) else { return };
    for (kind, walks) in [("tgn", true), ("graphmixer", false), ("walk", false), ("graphsage", false)] {
        let [data, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let start = |role, data: &Path| {
            daemon(broker, &format!("alike-{kind}"), role, data)
                .set(&format!("model.kind={kind}"))
                .set(&format!("model.walks={walks}"))
                .set("learner.gate.enabled=false")
                .set("graph.retention=450")
                .set("index.bytes_max=10000000")
        };
        let leader = start("leader", data.path()).ready();
        push(&leader, &events(0, 400));
        let replica = start("replica", other.path()).ready();
        is_shipped(&leader, &replica, 400);
        respond_alike(&leader, &replica);
        let best = top(&leader);
        assert!(best.contains("\"i1\"") && !best.contains("\"i9\""), "{best}");
        assert_eq!(top(&replica), best);
        // Nodes that go, one whose name comes again, and what is too old by the end.
        push(&leader, &[json!({ "op": "delete", "node": "u7" }), json!({ "op": "delete", "node": "i4" })]);
        push(&leader, &events(600, 800));
        is_shipped(&leader, &replica, 602);
        respond_alike(&leader, &replica);
        assert_eq!(top(&replica), top(&leader));
        assert!(leader.terminate().success() && replica.terminate().success(), "{kind}");
    }
}

#[test]
fn a_client_reads_on_a_replica_what_it_wrote_on_the_leader_and_cannot_write_there() {
    let Some(broker) = Broker::shared().filter(|broker| broker.is_kafka()) else { return };
    let [data, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let check = |role: &str| {
        let settings = ["role", "topics", "brokers"].map(|key| {
            let value = match key {
                "role" => role,
                "topics" => "written",
                _ => &broker.bootstrap(),
            };
            format!("cluster.{key}={value}")
        });
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        evergraph(&["check"].into_iter().chain(settings).collect::<Vec<_>>())
    };
    assert!(check("leader").1.contains("topic written.states will be created"), "{:?}", check("leader"));
    assert!(!check("replica").0, "a replica creates nothing");
    let leader = daemon(broker, "written", "leader", data.path()).ready();
    leader.wait_until("the topics are there", |status| status["cluster"]["states_position"] == 0);
    let mut replica = daemon(broker, "written", "replica", other.path()).ready();
    reflects(&replica, 0);
    assert!(check("replica").1.contains("topic written.frames is there"), "{:?}", check("replica"));
    for i in 0..20 {
        let written = push(&leader, &[edge(&format!("new{i}"), "shop", 10 + i)]);
        let request = json!({ "nodes": [format!("new{i}")], "min_position": written["end_position"], "wait_ms": 9_000 });
        let (status, response) =
            replica.post("/v1/embeddings", "application/json", &request.to_string()).unwrap();
        assert_eq!(status, 200, "{response}");
        assert_eq!(response["embeddings"][0]["node"], format!("new{i}"), "{response}");
    }
    let line = edge("a", "b", 99).to_string();
    let (status, refused) = replica.post("/v1/events", "application/json", &line).unwrap();
    assert_eq!((status, &refused["error_type"]), (421, &"read_replica".into()), "{refused}");
    assert!(refused.to_string().contains("http://the-leader:8080"), "{refused}");
    let (status, refused) = replica.post("/v1/admin/checkpoints", "application/json", "").unwrap();
    assert_eq!((status, &refused["error_type"]), (503, &"not_done".into()), "{refused}");
    let status = replica.status();
    assert_eq!(status["cluster"]["role"], "replica", "{status:#}");
    assert_eq!(status["cluster"]["frames_position"], 20, "{status:#}");
    assert_eq!(leader.status()["cluster"]["role"], "leader");
    assert!(replica.metrics().contains("\nevergraph_cluster_states_position 20\n"));

    // Without its leader it goes on serving, and says at last that it is stale.
    leader.kill();
    replica.kill();
    replica = daemon(broker, "written", "replica", other.path()).set("cluster.max_staleness_ms=1500").ready();
    reflects(&replica, 20);
    let deadline = Instant::now() + PATIENCE;
    while replica.get("/readyz").unwrap().0 == 200 {
        assert!(Instant::now() < deadline, "it does not get stale");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (_, ready) = replica.get("/readyz").unwrap();
    assert_eq!(ready["checks"]["cluster"]["state"], "failed", "{ready}");
    assert_eq!(replica.post("/v1/embeddings", "application/json", r#"{"nodes":["new3"]}"#).unwrap().0, 200);
}

#[test]
fn kills_of_leader_and_replica_lose_nothing_and_double_nothing() {
    let Some(broker) = Broker::own().filter(Broker::is_kafka) else { return };
    let [data, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let leaders = daemon(&broker, "killed", "leader", data.path()).set("checkpoint.interval_seconds=1");
    let replicas = daemon(&broker, "killed", "replica", other.path());
    let (mut moments, mut position) = (Moments::from_environment(), 0);
    let mut replica = replicas.ready();
    for round in 0..6 {
        let leader = leaders.ready();
        push(&leader, &events(position, position + 150));
        position += 150;
        std::thread::sleep(moments.below(Duration::from_millis(600)));
        match round % 3 {
            0 => leader.kill(),
            1 => {
                replica.kill();
                leader.kill();
                replica = replicas.ready();
            }
            _ => {
                broker.kill();
                broker.start();
                leader.kill();
            }
        }
    }
    let leader = leaders.ready();
    is_shipped(&leader, &replica, position);
    respond_alike(&leader, &replica);
    let edges = |process: &Process| process.status()["graph"].clone();
    assert_eq!(edges(&leader)["edges"], edges(&replica)["edges"]);
    // One that begins now has the same.
    let third = tempfile::tempdir().unwrap();
    let late = daemon(&broker, "killed", "replica", third.path()).ready();
    is_shipped(&leader, &late, position);
    respond_alike(&leader, &late);
}

#[test]
fn a_cut_link_loses_nothing_and_doubles_nothing() {
    let Some(network) = Network::new() else { return };
    let Some(broker) = Broker::with_link(&network.cut_off()).filter(Broker::is_kafka) else { return };
    let mut moments = Moments::from_environment();
    // Who is behind the link: first the leader, then the replica.
    for behind in ["leader", "replica"] {
        let [data, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let start = |role: &str, data: &Path| {
            let start = daemon(&broker, behind, role, data);
            if role != behind {
                return start;
            }
            let brokers = format!("cluster.brokers={}", broker.link_bootstrap());
            start.set(&brokers).at(&network.asked()).behind(&network.wrapper())
        };
        let leader = start("leader", data.path()).ready();
        let replica = start("replica", other.path()).ready();
        push(&leader, &events(0, 100));
        is_shipped(&leader, &replica, 100);
        // Events are under way whenever the link is cut or mended, and are acknowledged all the time.
        let (over, position) = (AtomicBool::new(false), AtomicU64::new(100));
        std::thread::scope(|scope| {
            let _over = scopeguard::guard((), |()| over.store(true, Ordering::Release));
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    let at = position.load(Ordering::Acquire);
                    push(&leader, &events(at, at + 20));
                    position.store(at + 20, Ordering::Release);
                    std::thread::sleep(Duration::from_millis(30));
                }
            });
            // The last is longer than a transaction is waited for.
            for cut in [Duration::from_millis(300), Duration::from_secs(2), Duration::from_secs(14)] {
                std::thread::sleep(moments.below(Duration::from_secs(1)));
                network.set_link(false);
                let at =
                    |process: &Process| process.status()["freshness"]["indexed_position"].as_u64().unwrap();
                std::thread::sleep(cut / 2);
                let before = [at(&leader), at(&replica)];
                std::thread::sleep(cut / 2);
                let after = [at(&leader), at(&replica)];
                if cut > Duration::from_secs(10) {
                    assert!(after[0] > before[0] && after[1] == before[1], "{before:?} {after:?}");
                    let (status, _) = replica.get("/v1/nodes/u7/neighbors").unwrap();
                    assert_eq!(status, 200, "it responds with what it has");
                }
                network.set_link(true);
            }
        });
        let position = position.load(Ordering::Acquire);
        is_shipped(&leader, &replica, position);
        respond_alike(&leader, &replica);
        let edges = |process: &Process| process.status()["graph"]["edges"].clone();
        assert_eq!((edges(&leader), edges(&replica)), (position.into(), position.into()));
        // What the topic has is what a new one reads.
        let third = tempfile::tempdir().unwrap();
        let late = daemon(&broker, behind, "replica", third.path()).ready();
        is_shipped(&leader, &late, position);
        respond_alike(&leader, &late);
    }
}

#[test]
fn who_must_not_go_on_says_why_and_ends() {
    let Some(broker) = Broker::shared().filter(|broker| broker.is_kafka()) else { return };
    let [data, other, third] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let leader = daemon(broker, "ends", "leader", data.path()).ready();
    push(&leader, &events(0, 50));
    leader.wait_until("frames are shipped", |status| status["cluster"]["frames_position"] == 50);
    // A replica of another log, which is as long.
    let foreign = daemon(broker, "ends", "single", third.path()).ready();
    push(&foreign, &events(1000, 1050));
    assert!(foreign.terminate().success());
    let mut foreign = daemon(broker, "ends", "replica", third.path()).spawn();
    assert!(foreign.wait_for_line("the log of another data directory").is_some());
    assert!(!foreign.ended().success());
    // Nor does it lead.
    let mut foreign = daemon(broker, "ends", "leader", third.path()).spawn();
    assert!(foreign.wait_for_line("the log of another data directory").is_some());
    assert!(!foreign.ended().success());
    // A replica takes over: the earlier leader ends when it ships next.
    let replica = daemon(broker, "ends", "replica", other.path()).ready();
    reflects(&replica, 50);
    assert!(replica.terminate().success());
    let next = daemon(broker, "ends", "leader", other.path()).ready();
    next.wait_until("it leads", |status| status["cluster"]["states_position"] == 50);
    // However busy the earlier one is, it does not get the topics back.
    let mut leader = leader;
    for i in 0..20 {
        let line = edge("late", "i1", 2000 + i).to_string();
        if leader.post("/v1/events", "application/json", &line).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    push(&next, &events(50, 60));
    next.wait_until("frames are shipped", |status| status["cluster"]["frames_position"] == 60);
    assert!(leader.wait_for_line("another leader has taken over").is_some());
    assert!(!leader.ended().success());
    reflects(&next, 60);
    assert!(next.terminate().success());
}

#[test]
fn a_replica_that_is_to_lead_says_what_it_has_not_and_takes_the_topics() {
    let Some(broker) = Broker::shared().filter(|broker| broker.is_kafka()) else { return };
    let [data, other, third] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let produce = |events: Vec<Value>| {
        let lines: Vec<String> = events.iter().map(Value::to_string).collect();
        broker.produce("promotions", lines.iter().map(|line| (0, None, Some(line.as_bytes()))));
    };
    let with_source = |start: Start| {
        start
            .set(&format!("ingest.kafka.brokers={}", broker.bootstrap()))
            .set("ingest.kafka.topic=promotions")
            .set("ingest.kafka.group=promotions")
    };
    broker.create_topic("promotions", 1);
    produce(events(0, 100));
    let leader = with_source(daemon(broker, "promotion", "leader", data.path())).ready();
    let replicas = with_source(daemon(broker, "promotion", "replica", other.path()));
    let replica = replicas.ready();
    is_shipped(&leader, &replica, 100);
    let leads = with_source(daemon(broker, "promotion", "leader", other.path()));
    let promote = |words: &[&str]| leads.said_by(&[&["cluster", "promote"], words].concat());
    let (ok, _, said) = promote(&["--yes"]);
    assert!(!ok && said.contains("must be stopped"), "{said}");
    // What was shipped and not received is waited for.
    assert!(replica.terminate().success());
    produce(events(100, 140));
    leader.wait_until("frames are shipped", |status| status["cluster"]["frames_position"] == 140);
    leader.kill();
    let (ok, _, said) = promote(&["--yes"]);
    assert!(!ok && said.contains("until its frames_position is 140"), "{said}");
    let replica = replicas.ready();
    replica.wait_until("it has the rest", |status| status["freshness"]["indexed_position"] == 140);
    assert!(replica.terminate().success());
    // The earlier leader is back, without its source, and has nothing new to ship.
    let mut leader = daemon(broker, "promotion", "leader", data.path()).ready();
    leader.wait_until("it leads", |status| status["cluster"]["states_position"] == 140);
    produce(events(140, 150));
    let (ok, printed, said) = promote(&[]);
    assert!(!ok && said.contains("pass --yes"), "{said}");
    assert!(printed.contains("goes on at offset 140, 10 to read"), "{printed}");
    assert!(printed.contains("behind position 140 are not here"), "{printed}");
    let (ok, printed, said) = promote(&["--yes", "--json"]);
    assert!(ok, "{said}");
    let document: Value = serde_json::from_str(&printed).unwrap();
    let expected = json!({
        "done": true,
        "topic": "promotion.frames",
        "frames_position": 140,
        "log_position": 140,
        "sources": [{
            "source": "kafka:promotions",
            "partition": 0,
            "from": 140,
            "to_read": 10,
            "gone": 0,
            "broker_earliest": 0,
            "broker_latest": 150,
        }],
        "sources_without_settings": [],
    });
    assert_eq!(document, expected);
    let _ = leader.post("/v1/events", "application/json", &edge("late", "i1", 2000).to_string());
    assert!(leader.wait_for_line("another leader has taken over").is_some());
    assert!(!leader.ended().success());
    let next = leads.ready();
    next.wait_until("it leads", |status| status["cluster"]["states_position"] == 150);
    // The earlier leader may have an event that nobody else has, and does not get the topics back.
    let mut leader = daemon(broker, "promotion", "leader", data.path()).spawn();
    assert!(leader.wait_for_line("and the log here ends at 14").is_some());
    assert!(!leader.ended().success());
    push(&next, &events(150, 160));
    let late = daemon(broker, "promotion", "replica", third.path()).ready();
    is_shipped(&next, &late, 160);
    respond_alike(&next, &late);
    assert!(next.terminate().success());
    // Without its source, the plan says so; and a replica's settings are none to lead with.
    let (_, printed, _) =
        daemon(broker, "promotion", "leader", other.path()).said_by(&["cluster", "promote"]);
    assert!(printed.contains("kafka:promotions has events in the log, and the settings do not"), "{printed}");
    let (ok, _, said) = replicas.said_by(&["cluster", "promote"]);
    assert!(!ok && said.contains("cluster.role is not leader"), "{said}");
}

#[test]
fn long_frames_and_many_are_found_again() {
    let Some(broker) = Broker::shared().filter(|broker| broker.is_kafka()) else { return };
    let [data, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let start = |role, data: &Path| {
        daemon(broker, "long", role, data)
            .set("stream.edge_feature_dimension=400")
            .set("learner.gate.enabled=false")
    };
    let leader = start("leader", data.path()).ready();
    for line in &events(0, 400) {
        push(&leader, std::slice::from_ref(line));
    }
    let replica = start("replica", other.path()).ready();
    is_shipped(&leader, &replica, 400);
    replica.kill();
    // A frame of several messages, between two starts.
    let features: Vec<f32> = (0..400_u16).map(f32::from).collect();
    push(&leader, &with_features(events(400, 1000), &features));
    let replica = start("replica", other.path()).ready();
    is_shipped(&leader, &replica, 1000);
    respond_alike(&leader, &replica);
    assert!(replica.terminate().success());
    assert!(leader.terminate().success());
    // Both go on where they were.
    let leader = start("leader", data.path()).ready();
    let replica = start("replica", other.path()).ready();
    push(&leader, &events(1000, 1010));
    is_shipped(&leader, &replica, 1010);
    respond_alike(&leader, &replica);
}

#[test]
fn a_replica_starts_from_its_snapshot_and_keeps_the_log_to_lead_with() {
    let Some(broker) = Broker::shared().filter(|broker| broker.is_kafka()) else { return };
    let [data, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let start = |role, data: &Path| {
        daemon(broker, "snapshots", role, data)
            .set("graph.retention=6000")
            .set("stream.edge_feature_dimension=40")
            .set("log.segment_bytes=1048576")
            .set("log.retention_bytes=1")
    };
    let push_wide = |process: &Process, from: u64, to: u64| {
        push(process, &with_features(events(from, to), &[0.5; 40]));
    };
    let leader = start("leader", data.path()).ready();
    let replica = start("replica", other.path()).ready();
    let admin = |what: &str| replica.post(&format!("/v1/admin/{what}"), "application/json", "").unwrap();
    for half in [0, 5_000] {
        (half..half + 5_000).step_by(1_000).for_each(|from| push_wide(&leader, from, from + 1_000));
        push(&leader, &with_features(vec![edge("rare", "u7", half + 4_999)], &[0.7; 40]));
        let end = half + 5_001 + half / 5_000;
        is_shipped(&leader, &replica, end);
        let (status, response) = admin("snapshots");
        assert_eq!((status, &response["position"]), (200, &json!(end)), "{response}");
    }
    let (status, response) = admin("log/cut");
    assert_eq!((status, &response["error_type"]), (422, &json!("invalid")), "{response}");
    assert!(response["error"].as_str().unwrap().contains("as a leader it would learn"), "{response}");
    // Behind the snapshot come a deletion of what is in it, and so many events that older ones are released.
    push(&leader, &[json!({ "op": "delete", "node": "i4" })]);
    push_wide(&leader, 10_000, 10_500);
    is_shipped(&leader, &replica, 10_503);
    respond_alike(&leader, &replica);
    replica.kill();
    let mut replica = start("replica", other.path()).spawn();
    let line = replica.wait_for_line("the snapshot is loaded").unwrap();
    assert!(line.contains("10002"), "{line}");
    replica.wait_until_ready();
    push_wide(&leader, 10_500, 10_510);
    is_shipped(&leader, &replica, 10_513);
    respond_alike(&leader, &replica);
    // Rows of edges that are older than the snapshot, but young, are there.
    let of_rare = |process: &Process| {
        let (status, response) =
            process.post("/v1/embeddings", "application/json", r#"{"nodes":["rare"]}"#).unwrap();
        assert_eq!(status, 200, "{response}");
        response.to_string()
    };
    assert_eq!(of_rare(&leader), of_rare(&replica));
    assert!(replica.metrics().contains("\nevergraph_log_first_position 0\n"));
    // It can lead, and learn all of it.
    assert!(replica.terminate().success());
    assert!(leader.terminate().success());
    let mut next = start("leader", other.path()).spawn();
    assert!(next.wait_for_line("edges were released that the learner still reads").is_some());
    next.wait_until_ready();
    reflects(&next, 10_513);
}

#[test]
fn a_replica_begins_with_a_backup_where_the_log_of_its_leader_was_cut() {
    let Some(broker) = Broker::shared().filter(|broker| broker.is_kafka()) else { return };
    let [data, other, backups] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let start = |role, data: &Path| {
        daemon(broker, "cut", role, data)
            .set("learner.gate.enabled=false")
            .set("graph.retention=500")
            .set("stream.edge_feature_dimension=400")
            .set("log.segment_bytes=1048576")
    };
    let push_wide = |process: &Process, from: u64, to: u64| {
        push(process, &with_features(events(from, to), &[0.5; 400]));
    };
    // What was there before it led is cut off, and replicas cannot read it from the topic.
    let single = start("single", data.path()).ready();
    let post = |path: &str| {
        let (status, response) = single.post(&format!("/v1/admin/{path}"), "application/json", "").unwrap();
        assert_eq!(status, 200, "{path}: {response}");
    };
    // The log is cut behind the older of two snapshots.
    for half in [0, 750] {
        (half..half + 750).step_by(50).for_each(|from| push_wide(&single, from, from + 50));
        reflects(&single, half + 750);
        post("checkpoints");
        post("snapshots");
    }
    post("log/cut");
    assert!(single.terminate().success());
    let leader = start("leader", data.path()).ready();
    push_wide(&leader, 1500, 1550);
    let [from, to] = [data.path(), backups.path()].map(|path| path.to_str().unwrap());
    let made = evergraph(&["backup", "--data", from, "--to", to]);
    assert!(made.0, "{made:?}");
    let mut early = start("replica", other.path()).spawn();
    assert!(early.wait_for_line("goes on at position").is_some());
    assert!(!early.ended().success());
    let data = other.path().join("restored");
    let restored = evergraph(&["backup", "restore", "--from", to, "--data", data.to_str().unwrap()]);
    assert!(restored.0, "{restored:?}");
    let replica = start("replica", &data).ready();
    push_wide(&leader, 1550, 1600);
    is_shipped(&leader, &replica, 1600);
    respond_alike(&leader, &replica);
}
