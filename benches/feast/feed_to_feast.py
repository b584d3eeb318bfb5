"""A consumer of the change feed that keeps an online store of Feast as of now, and a comparison of that with the daemon.

    python feed_to_feast.py BROKERS TOPIC http://HOST:PORT

It reads the topic from its beginning until the daemon reports that all changes are delivered, writes each embedding to the
store, deletes none (Feast's online stores have no deletion of a row: a deleted node gets a row without an embedding), and
then compares `get_online_features` with `POST /v1/embeddings` for each node, at the time and the position of its row. It
prints a line of JSON, and fails if a node differs or is missing.
"""

import datetime
import json
import pathlib
import sys
import tempfile
import time
import urllib.request

import pandas as pd
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.types import Array, Float32, Int64

# Products of batches of other sizes are added in another order.
TOLERANCE = 1e-5


def open_store(folder: pathlib.Path) -> FeatureStore:
    """A store in `folder` with one view, `embeddings`, by node."""
    offline = folder / "offline.parquet"
    none = {"node": ["-"], "embedding": [[0.0]], "at": [0], "event_timestamp": [pd.Timestamp.now(tz="UTC")]}
    pd.DataFrame(none).to_parquet(offline)
    node = Entity(name="node", join_keys=["node"], value_type=ValueType.STRING)
    view = FeatureView(
        name="embeddings",
        entities=[node],
        ttl=datetime.timedelta(0),
        schema=[Field(name="embedding", dtype=Array(Float32)), Field(name="at", dtype=Int64)],
        source=FileSource(name="offline", path=str(offline), timestamp_field="event_timestamp"),
    )
    config = RepoConfig(
        project="evergraph",
        provider="local",
        registry=str(folder / "registry.db"),
        online_store={"type": "sqlite", "path": str(folder / "online.db")},
        entity_key_serialization_version=3,
    )
    store = FeatureStore(config=config)
    store.apply([node, view])
    return store


def get(url: str, body: object = None) -> dict:
    """The response of the daemon, as JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as found:
        return json.load(found)


def consume(brokers: str, topic: str, store: FeatureStore) -> dict[str, dict | None]:
    """Writes the messages that the topic has now to the store; the latest message of each node."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "feast", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    ends = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), 10)[1] for n in partitions}
    latest: dict[str, dict | None] = {}
    left = {number for number, end in ends.items() if end > 0}
    while left:
        batch = {}
        for message in consumer.consume(500, 1.0):
            if message.error():
                raise SystemExit(str(message.error()))
            batch[message.key().decode()] = json.loads(message.value()) if message.value() else None
            if message.offset() + 1 >= ends[message.partition()]:
                left.discard(message.partition())
        rows = [(node, row or {"embedding": [], "at": 0}) for node, row in batch.items()]
        if rows:
            columns = {
                "node": [node for node, _ in rows],
                "embedding": [row["embedding"] for _, row in rows],
                "at": [row["at"] for _, row in rows],
                "event_timestamp": [pd.Timestamp.now(tz="UTC")] * len(rows),
            }
            store.write_to_online_store("embeddings", df=pd.DataFrame(columns))
        latest.update(batch)
    consumer.close()
    return latest


def main() -> None:
    brokers, topic, url = sys.argv[1:]
    while True:
        status = get(f"{url}/v1/status")
        feed, position = status["feed"], status["log"]["durable_position"]
        if feed["delivered_position"] == position and feed["pending_nodes"] == 0:
            break
        time.sleep(0.2)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(pathlib.Path(folder))
        latest = consume(brokers, topic, store)
        nodes = sorted(latest)
        features = ["embeddings:embedding", "embeddings:at"]
        online = store.get_online_features(features, [{"node": node} for node in nodes]).to_dict()
        compared, deleted, worst = 0, 0, 0.0
        for node, embedding, at in zip(online["node"], online["embedding"], online["at"], strict=True):
            row = latest[node]
            if row is None:
                deleted += 1
                assert not embedding, f"{node} is deleted, and the store has {embedding}"
                continue
            assert at == row["at"], f"{node} is of {row['at']}, and the store has {at}"
            if row["applied_position"] < position:
                continue
            response = get(f"{url}/v1/embeddings", {"nodes": [row["node"]], "at": at})
            if response["freshness"]["model_version"] != row["model_version"]:
                continue
            found = response["embeddings"][0]["embedding"]
            worst = max(worst, *(abs(a - b) for a, b in zip(found, embedding, strict=True)))
            compared += 1
    print(json.dumps({"nodes": len(nodes), "deleted": deleted, "compared": compared, "largest_difference": worst}))
    if compared == 0 or worst > TOLERANCE:
        raise SystemExit("the store does not have what the daemon returns")


if __name__ == "__main__":
    main()
