"""Uses the client that openapi-python-client generated, against the daemon at the address in the first argument.

Run by tests/it/openapi.rs.
"""

import base64
import struct
import sys

from evergraph_client import Client
from evergraph_client.api.admin import create_checkpoint, get_log_level, set_log_level, update_source
from evergraph_client.api.events import push_events
from evergraph_client.api.operations import check_readiness, get_info, get_metrics, get_status
from evergraph_client.api.query import compute_embeddings, get_node, score_links
from evergraph_client.models import (
    DeleteNodeEvent,
    DeleteOp,
    EdgeEvent,
    EmbeddingsRequest,
    EncodingFormat,
    ErrorBody,
    ErrorType,
    FoundEmbedding,
    FoundScore,
    ItemError,
    LogLevelRequest,
    MissingEmbedding,
    NodeEvent,
    NodeOp,
    Pair,
    RejectionReason,
    ScoresRequest,
    SourceRequest,
    SourceState,
    State,
    StatusDocument,
    TimeUnit,
    UnknownNodes,
)

# An integer that a double does not hold.
LARGE = 9_007_199_254_740_993


def main(address):
    client = Client(base_url=address, timeout=60, raise_on_unexpected_status=True)

    info = get_info.sync(client=client)
    assert info.time_unit == TimeUnit.SECONDS, info
    assert info.limits.batch_items_max >= 1 and info.edge_feature_dimension == 0, info

    events = [
        EdgeEvent(src="user-1", dst=LARGE, ts=1),
        EdgeEvent(src="user-1", dst=7, ts=2, idempotency_key="order-1"),
        NodeEvent(op=NodeOp.NODE, node="user-2", ts=3),
        EdgeEvent(src="user-3", dst="user-1", ts=4),
        EdgeEvent(src="", dst=7, ts=5),
    ]
    pushed = push_events.sync(client=client, body=events)
    assert pushed.accepted == 4, pushed
    assert [(one.index, one.reason) for one in pushed.rejected] == [(4, RejectionReason.BAD_ID)], pushed
    one = push_events.sync(client=client, body=DeleteNodeEvent(op=DeleteOp.DELETE, node="user-3"))
    assert one.accepted == 1, one

    nodes = ["user-1", str(LARGE), LARGE, "nobody"]
    position = {"min_position": one.end_position, "wait_ms": 10_000}
    response = compute_embeddings.sync(client=client, body=EmbeddingsRequest(nodes=nodes, **position))
    assert [entry.node for entry in response.embeddings] == nodes, response
    found = response.embeddings[:3]
    assert all(isinstance(entry, FoundEmbedding) for entry in found), response
    assert isinstance(response.embeddings[3], MissingEmbedding), response
    assert response.embeddings[3].error == ItemError.UNKNOWN_NODE, response
    assert len(found[0].embedding) == info.embedding_dimension, response
    assert found[1].embedding == found[2].embedding, response

    packed = EmbeddingsRequest(nodes=nodes[:1], encoding_format=EncodingFormat.BASE64)
    packed = compute_embeddings.sync(client=client, body=packed).embeddings[0].embedding
    packed = struct.unpack(f"<{info.embedding_dimension}f", base64.b64decode(packed))
    assert all(abs(a - b) < 1e-6 for a, b in zip(packed, found[0].embedding, strict=True)), packed

    pairs = [Pair(src="user-1", dst=str(LARGE)), Pair(src="user-1", dst="nobody")]
    scores = score_links.sync(client=client, body=ScoresRequest(pairs=pairs)).scores
    assert isinstance(scores[0], FoundScore) and 0 <= scores[0].score <= 1, scores
    assert (scores[0].dst, scores[1].unknown) == (str(LARGE), ["nobody"]), scores
    prior = ScoresRequest(pairs=pairs[1:], unknown=UnknownNodes.PRIOR)
    assert score_links.sync(client=client, body=prior).scores[0].cold

    node = get_node.sync("user-1", client=client, neighbors=5)
    assert [neighbor.node for neighbor in node.neighbors] == [7, str(LARGE)], node
    missing = get_node.sync_detailed("user-3", client=client)
    assert missing.status_code == 404 and isinstance(missing.parsed, ErrorBody), missing
    assert missing.parsed.error_type == ErrorType.UNKNOWN_NODE, missing
    assert missing.parsed.request_id == missing.headers["x-request-id"], missing
    empty = compute_embeddings.sync(client=client, body=EmbeddingsRequest(nodes=[]))
    assert empty.error_type == ErrorType.INVALID, empty

    status = get_status.sync(client=client)
    assert isinstance(status, StatusDocument) and status.graph.nodes >= 3, status
    assert status.ingest.sources[0].state == SourceState.RUNNING, status
    assert status.freshness.indexed_position == one.end_position, status
    assert check_readiness.sync(client=client).status == State.OK
    assert "evergraph_build_info" in get_metrics.sync(client=client)

    assert create_checkpoint.sync(client=client).position >= one.end_position
    assert update_source.sync("http", client=client, body=SourceRequest(paused=True)).paused
    paused = push_events.sync_detailed(client=client, body=events[:1])
    assert paused.status_code == 503 and paused.parsed.error_type == ErrorType.SOURCE_PAUSED, paused
    assert int(paused.headers["retry-after"]) >= 1, paused
    assert not update_source.sync("http", client=client, body=SourceRequest(paused=False)).paused
    assert set_log_level.sync(client=client, body=LogLevelRequest(level="debug")).level == "debug"
    assert get_log_level.sync(client=client).level == "debug"
    print("every call did what it should")


main(sys.argv[1])
