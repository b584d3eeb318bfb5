"""Every operation of the OpenAPI document has a method, in both clients, and every operator's request works."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import evergraph
from evergraph import AsyncClient, Client, _requests

from .conftest import SETTINGS, Connect

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent

METHODS = {
    "check_health": "health",
    "check_liveness": "live",
    "check_readiness": "ready",
    "compute_embeddings": "embeddings",
    "compute_map": "map",
    "find_similar_nodes": "similar",
    "find_top_links": "top",
    "get_info": "info",
    "get_metrics": "metrics",
    "get_node": "node",
    "get_status": "status",
    "list_anomalies": "anomalies",
    "list_neighbors": "neighbors",
    "push_events": "push",
    "score_links": "score",
}
"""Methods with other names than their operations."""


def document() -> dict[str, tuple[str, str]]:
    """Operations of the document with their methods and paths."""
    paths = json.loads((ROOT / "tests" / "it" / "openapi.json").read_text())["paths"]
    return {
        operation["operationId"]: (method.upper(), path)
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


def test_every_operation_of_the_document_has_its_route() -> None:
    assert dict(_requests.ROUTES) == document()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_every_operation_of_the_document_has_a_method(kind: type) -> None:
    wanted = {METHODS.get(operation, operation) for operation in document()}
    found = {name for name in vars(kind) if not name.startswith("_")} - {"close"}
    assert found == wanted
    assert all(inspect.getdoc(getattr(kind, name)) for name in found)


def test_what_may_be_sent_again_changes_nothing() -> None:
    posts = {name for name in _requests.READS if _requests.ROUTES[name][0] != "GET"}
    assert posts == {"compute_embeddings", "find_similar_nodes", "find_top_links", "score_links"}
    gets = {name for name, (method, _) in _requests.ROUTES.items() if method == "GET"}
    assert gets <= _requests.READS


def test_the_client_for_asyncio_is_made_from_the_other() -> None:
    made = subprocess.run([sys.executable, HERE.parent / "make_async.py", "--check"], capture_output=True, check=False)
    assert made.returncode == 0, made.stderr.decode()


def test_operators_requests(connect: Connect, tmp_path: Path) -> None:
    with evergraph.run(tmp_path, **SETTINGS, learner__gate__before_promotion="candidate") as daemon:
        client = connect(daemon.url)
        end = learn(client, 0)
        checkpoint = client.create_checkpoint()
        assert checkpoint.position >= end
        assert checkpoint.name
        with pytest.raises(evergraph.InvalidRequestError):
            client.cut_log()
        assert client.create_snapshot().position >= end
        end = learn(client, 1000)
        assert client.create_snapshot().name
        assert client.cut_log().bytes > 0

        promoted = client.promote_model()
        assert promoted.model_version >= 1
        assert (promoted.replaced_version, promoted.memory_restored) == (None, False)
        with pytest.raises(evergraph.InvalidRequestError):
            client.promote_model(123_456_789)
        learn(client, 2000)
        other = client.promote_model()
        assert other.replaced_version == promoted.model_version
        assert client.roll_back_model().model_version == promoted.model_version

        assert client.set_log_level("warn").level == "warn"
        assert client.get_log_level().level == "warn"
        with pytest.raises(evergraph.InvalidRequestError, match="level"):
            client.set_log_level("loud,=")

        assert client.update_training(paused=True).paused
        assert client.update_training(paused=False).since_unix_ms is None
        source = client.update_source("http", paused=True)
        assert (source.source, source.paused) == ("http", True)
        with pytest.raises(evergraph.UnavailableError) as caught:
            client.push({"src": 1, "dst": 2, "ts": 3})
        assert (caught.value.error_type, caught.value.retry_after) == ("source_paused", 30)
        assert not client.update_source("http", paused=False).paused
        with pytest.raises(evergraph.NotFoundError) as missing:
            client.update_source("a/b", paused=True)
        assert missing.value.details["known"] == ["http"]
        with pytest.raises(evergraph.InvalidRequestError):
            client.seek_source("http", "latest", dry_run=True)
        reload = client.reload_settings()
        assert reload.applied == ()


def learn(client: Any, start: int) -> int:
    """Pushes events and waits until they are learned."""
    events = [{"src": f"u{i % 7}", "dst": i % 5, "ts": start + i} for i in range(400)]
    return int(client.push(events, wait="visible").end_position)


def test_a_seek_names_its_partitions(connect: Connect) -> None:
    from .scripted import Scripted, serving

    example = json.loads((ROOT / "src" / "api" / "docs" / "examples" / "seek_source.json").read_text())
    with serving([Scripted(body=json.dumps(example["response"]).encode())]) as server:
        seek = connect(server.url).seek_source("kafka", "earliest", partition=0, dry_run=True)
        assert json.loads(server.seen[0].body) == {"to": "earliest", "partition": 0, "dry_run": True}
        assert server.seen[0].path == "/v1/admin/sources/kafka/seek"
    expected = example["response"]["partitions"][0]
    found = seek.partitions[0]
    assert (found.partition, found.from_offset, found.to) == (expected["partition"], expected["from"], expected["to"])
    assert (seek.source, seek.done) == (example["response"]["source"], example["response"]["done"])


def test_a_reload_names_what_changed(connect: Connect) -> None:
    from .scripted import Scripted, serving

    changed = {"key": "learner.batch_events", "before": 200, "now": None}
    body = {"applied": [changed], "waiting": []}
    with serving([Scripted(body=json.dumps(body).encode())]) as server:
        reload = connect(server.url).reload_settings()
    assert reload.applied == (evergraph.ChangedSetting("learner.batch_events", 200, None),)
    assert reload.waiting == ()
