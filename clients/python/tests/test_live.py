"""The clients against a real daemon: pushes, reads, and what it refuses. Nodes of a test begin with its own letter."""

from __future__ import annotations

import asyncio
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import pyarrow
import pyarrow.compute
import pytest

import evergraph
from evergraph import Client

LARGE = 9_007_199_254_740_993
_names = itertools.count()


def fresh() -> str:
    """A node that no other test uses."""
    return f"n{next(_names)}"


def test_a_write_is_read_back(client: Any) -> None:
    one, other = fresh(), fresh()
    pushed = client.push([{"src": one, "dst": other, "ts": 5}, {"src": one, "dst": 7, "ts": 6}], wait="visible")
    assert (pushed.accepted, pushed.duplicates, pushed.rejected, pushed.requests) == (2, 0, (), 1)
    assert pushed.end_position == pushed.first_position + 2
    assert pushed.freshness.reflects(pushed.end_position)

    found = client.embeddings([one, other, "nobody", 7], min_position=pushed.end_position)
    assert found.array.shape == (4, 8)
    assert found.array.dtype == np.float32
    assert found.found.tolist() == [True, True, False, True]
    assert np.isfinite(found.array[found.found]).all()
    assert np.isnan(found.array[2]).all()
    assert found.errors == {2: "unknown_node"}
    assert found.last_event.tolist()[:3] == [6, 5, evergraph.NO_TIME]
    assert (found.nodes, len(found)) == ((one, other, "nobody", 7), 4)
    assert found.source in {"candidate", "model"}
    assert found.freshness.reflects(pushed.end_position)

    node = client.node(one, neighbors=1)
    assert (node.node, node.degree, node.last_event, node.neighbors) == (one, 2, 6, (7,))
    assert (node.time.tolist(), node.position.tolist()) == ([6], [pushed.end_position - 1])


def test_exports_are_tables_of_one_position(client: Any) -> None:
    one, other = fresh(), fresh()
    pushed = client.push([{"src": one, "dst": other, "ts": 5, "features": [1, 2]}], wait="visible")
    table = client.export_embeddings()
    about = json.loads(table.schema.metadata[b"evergraph"])
    assert about["position"] >= pushed.end_position
    assert table.column_names == ["node", "embedding", "learned_event"]
    nodes = table["node"].to_pylist()
    assert len(set(nodes)) == len(nodes) == about["rows_expected"]
    vectors = table["embedding"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    found = client.embeddings([one, other], at=about["at"])
    assert client.embeddings(table["node"][:100]).found.all()
    places = [nodes.index(one), nodes.index(other)]
    assert vectors[places].tobytes() == found.array.tobytes()
    edges = client.export_edges()
    row = edges.filter(pyarrow.compute.equal(edges["src"], one)).to_pylist()
    about_it = {"ts": 5, "position": pushed.first_position, "type": None, "features": [1.0, 2.0]}
    assert row == [{"src": one, "dst": other, **about_it}]


def test_a_response_in_columns_is_read_by_pyarrow(daemon: evergraph.Daemon) -> None:
    with Client(daemon.url) as own:
        one = fresh()
        own.push({"src": one, "dst": 7, "ts": 5}, wait="visible")
        expected = own.embeddings([one, 7, "nobody"], at=6)
    body = {"nodes": [one, 7, "nobody"], "at": 6}
    response = httpx2.post(
        f"{daemon.url}/v1/embeddings", json=body, headers={"accept": "application/vnd.apache.arrow.stream"}
    )
    assert response.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pyarrow.ipc.open_stream(response.content).read_all()
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.field("item", pyarrow.float32(), False), 8)
    assert table["node"].to_pylist() == [one, "7", "nobody"]
    assert table["error"].to_pylist() == [None, None, "unknown_node"]
    rows = [np.array(row, np.float32) for row in table["embedding"].to_pylist()[:2]]
    assert np.stack(rows).tobytes() == expected.array[:2].tobytes()
    assert table["embedding"][2].as_py() is None
    assert json.loads(table.schema.metadata[b"evergraph"])["at"] == 6


def test_a_prior_stands_in_for_an_unknown_node(client: Any) -> None:
    client.push({"src": fresh(), "dst": fresh(), "ts": 5}, wait="visible")
    found = client.embeddings("nobody", unknown="prior")
    assert found.found.all()
    assert found.cold.all()
    assert np.isfinite(found.array).all()
    none = client.embeddings(["nobody"])
    assert none.array.shape == (1, 8)
    assert not none.found.any()


def test_scores_go_with_pairs(client: Any) -> None:
    one, other = fresh(), fresh()
    client.push({"src": one, "dst": other, "ts": 5}, wait="visible")
    found = client.score(one, [other, "nobody"])
    assert (found.src, found.dst) == ((one, one), (other, "nobody"))
    assert found.array.dtype == np.float32
    assert found.found.tolist() == [True, False]
    assert 0 < found.array[0] <= 1
    assert np.isnan(found.array[1])
    assert (found.errors, found.unknown) == ({1: "unknown_node"}, {1: ("nobody",)})
    assert client.score([one, other], one).src == (one, other)
    assert client.score([one, one], [other, other]).array.tolist()[0] == found.array[0]
    assert client.score(one, "nobody", unknown="prior").cold.tolist() == [True]
    with pytest.raises(ValueError, match="2 sources and 3 destinations"):
        client.score([1, 2], [1, 2, 3])
    past = client.score(one, other, at=1)
    assert past.at == 1


def test_the_best_of_all_nodes_are_found(client: Any) -> None:
    prefix = fresh()
    events = [{"src": f"{prefix}-u{i % 5}", "dst": f"{prefix}-i{i % 3}", "ts": 10 + i} for i in range(60)]
    events = [{**event, "type": event["dst"]} for event in events]
    pushed = client.push(events, wait="visible")
    found = client.top(
        [f"{prefix}-u0", "nobody"], limit=3, key_prefix=f"{prefix}-i", min_position=pushed.end_position, wait_ms=9000
    )
    assert len(found) == 2
    best = found[0]
    assert (best.of, best.ranked_by, best.error) == (f"{prefix}-u0", "baseline", None)
    assert set(best.nodes) == {f"{prefix}-i{i}" for i in range(3)}
    assert best.scores.dtype == np.float32
    assert (np.diff(best.scores) <= 0).all()
    assert [node for node, _ in best] == list(best.nodes)
    assert found[1].ranked_by == "popularity"
    assert found[1].source_cold
    assert found.index.complete_to_position >= pushed.end_position
    only = client.top(f"{prefix}-u0", candidates=[f"{prefix}-i1", "nobody"])
    assert (only[0].nodes, only.unknown_candidates) == ((f"{prefix}-i1",), ("nobody",))
    assert client.top(f"{prefix}-u0", exclude_met=True, key_prefix=prefix)[0].nodes == ()
    assert client.top(f"{prefix}-u0", edge_type=f"{prefix}-i1")[0].nodes == (f"{prefix}-i1",)
    assert client.similar(f"{prefix}-i0", edge_type=f"{prefix}-i0", key_prefix=prefix)[0].nodes == ()

    like = client.similar([f"{prefix}-i0", "nobody"], limit=2, key_prefix=f"{prefix}-i")
    assert len(like[0]) == 2
    assert f"{prefix}-i0" not in like[0].nodes
    assert like[1].error == "unknown_node"
    vector = client.embeddings(f"{prefix}-i0").array
    by_vector = client.similar(vectors=vector, limit=1, metric="dot", key_prefix=prefix)
    assert by_vector[0].of is None
    assert len(by_vector[0]) == 1
    with pytest.raises(TypeError, match="one of them"):
        client.similar()


def test_nodes_are_placed_in_the_plane(client: Any) -> None:
    prefix = fresh()
    events = [{"src": f"{prefix}-{i % 7}", "dst": f"{prefix}-{7 + i % 3}", "ts": 10 + i} for i in range(42)]
    client.push(events, wait="visible")
    found = client.map(limit=5000)
    assert found.places.shape == (len(found.nodes), 2)
    assert found.places.dtype == np.float32
    assert np.abs(found.places.mean(axis=0)).max() < 1e-3, "the middle of all is the origin"
    assert 0 < sum(found.explained) <= 1.0001
    assert found.explained[0] >= found.explained[1]
    at = {node: place for place, node in enumerate(found.nodes)}
    assert found.degree[at[f"{prefix}-7"]] == 14
    assert found.destination[at[f"{prefix}-7"]]
    assert not found.destination[at[f"{prefix}-0"]]
    assert found.nodes_total >= len(found.nodes)
    assert len(client.map(limit=3).nodes) == 3


def test_edges_come_page_by_page(client: Any) -> None:
    hub = fresh()
    events = [{"src": hub, "dst": f"{hub}-{i}", "ts": 100 + i, "features": [i, 0.5]} for i in range(7)]
    events.append({"src": f"{hub}-x", "dst": hub, "ts": 107})
    pushed = client.push(events, wait="visible")
    pages = list(client.neighbors(hub, limit=3, features=True, min_position=pushed.end_position))
    assert [len(page) for page in pages] == [3, 3, 2]
    assert pages[-1].next is None
    names = [name for page in pages for name in page.neighbors]
    assert names == [f"{hub}-x", *[f"{hub}-{i}" for i in reversed(range(7))]]
    assert pages[0].outgoing.tolist() == [False, True, True]
    features = np.concatenate([page.features for page in pages])
    np.testing.assert_array_equal(features, [[0, 0], *[[i, 0.5] for i in reversed(range(7))]])
    assert np.concatenate([page.time for page in pages]).tolist() == list(range(107, 99, -1))

    outgoing = list(client.neighbors(hub, direction="out", start=102, before=105))
    assert [name for page in outgoing for name in page.neighbors] == [f"{hub}-{i}" for i in (4, 3, 2)]
    assert outgoing[0].features is None
    rest = next(iter(client.neighbors(hub, limit=100, cursor=pages[0].next)))
    assert (len(rest), set(rest.types)) == (5, {None})
    pushed = client.push({"src": hub, "dst": "typed", "ts": 200, "type": "buy"}, wait="visible")
    typed = next(iter(client.neighbors(hub, edge_type="buy", min_position=pushed.end_position)))
    assert (typed.neighbors, typed.types) == (("typed",), ("buy",))
    with pytest.raises(evergraph.UnknownNodeError) as caught:
        next(iter(client.neighbors("nobody")))
    assert caught.value.details["node"] == "nobody"


ODD_KEYS = ["a/b", "..", ".", "é ü?&#", "%41", "07", "+7", "similar", " ", "a\\b", LARGE, -7, "\u2603"]


@pytest.mark.parametrize("name", ODD_KEYS)
def test_any_key_is_found_under_its_name(client: Any, name: evergraph.Key) -> None:
    pushed = client.push({"src": name, "dst": fresh(), "ts": 5}, wait="visible")
    node = client.node(name)
    assert node.degree >= 1
    assert node.position[0] == pushed.first_position
    assert str(node.node) == str(name)
    assert client.embeddings(name).found.all()
    page = next(iter(client.neighbors(name, limit=1)))
    assert page.position[0] == pushed.first_position


def test_keys_of_numpy_are_keys(client: Any) -> None:
    keys = np.array([LARGE, 3])
    client.push(src=keys, dst=keys[::-1], t=np.array([1, 2]), msg=np.ones((2, 2)), wait="visible")
    found = client.embeddings(keys)
    assert found.found.all()
    assert found.nodes == (LARGE, 3)
    assert client.embeddings(np.int64(3)).nodes == (3,)
    assert client.embeddings(np.array(["nobody"])).nodes == ("nobody",)
    for none in (1.5, None, True, [1], np.float32(1)):
        with pytest.raises(TypeError, match="no node key"):
            client.embeddings([none])


def test_rejected_events_are_named_and_the_others_stored(client: Any) -> None:
    one = fresh()
    events = [{"src": one, "dst": 1, "ts": 5}, {"src": "", "dst": 1, "ts": 5}, {"src": one, "dst": 1, "ts": 1.5}]
    pushed = client.push(events)
    assert pushed.accepted == 1
    assert [(event.index, event.reason) for event in pushed.rejected] == [(1, "bad_id"), (2, "bad_time")]
    assert pushed.rejected_count == 2
    with pytest.raises(evergraph.AllRejectedError) as caught:
        client.push(events[1:])
    assert [event.index for event in caught.value.rejected] == [0, 1]
    assert caught.value.rejected_count == 2
    assert client.push([events[1], events[0]], wait="visible").accepted == 1


def test_idempotency_keys_store_an_event_once(client: Any) -> None:
    one = fresh()
    events = [{"src": one, "dst": i, "ts": 5} for i in range(3)]
    first = client.push(events, idempotency_key=f"push-{one}")
    again = client.push(events, idempotency_key=f"push-{one}", wait="visible")
    assert (first.accepted, again.accepted, again.duplicates) == (3, 0, 3)
    assert again.freshness.reflects(first.end_position), "duplicates are waited for, too"
    keyed = {"src": one, "dst": 9, "ts": 5, "idempotency_key": f"event-{one}"}
    assert client.push(keyed).accepted == 1
    assert client.push(keyed).duplicates == 1
    assert client.node(one).degree == 4
    with pytest.raises(ValueError, match="0 characters"):
        client.push(keyed, idempotency_key="")


def test_keys_hold_however_a_push_is_cut(client: Any) -> None:
    one = fresh()
    events = [{"src": one, "dst": i % 2, "ts": 5} for i in range(7)]
    limits = client.info().limits
    for most, requests in [(3, 3), (7, 1), (2, 4)]:
        client._known.limits = replace(limits, batch_items_max=most)
        pushed = client.push(events, idempotency_key=f"cut-{one}")
        assert (pushed.requests, pushed.accepted + pushed.duplicates) == (requests, 7)
        assert client.node(one).degree == 7


def test_many_events_go_in_several_requests(client: Any) -> None:
    hub, count = fresh(), client.info().limits.batch_items_max + 1
    src, t = np.full(count, hub), np.full(count, 50)
    pushed = client.push(src=src, dst=np.arange(count), t=t, msg=np.zeros((count, 2)), wait="visible")
    assert (pushed.accepted, pushed.requests) == (count, 2)
    assert client.node(hub).degree == count


def test_a_deleted_node_is_unknown(client: Any) -> None:
    one = fresh()
    client.push({"src": one, "dst": fresh(), "ts": 5}, wait="visible")
    client.push({"op": "delete", "node": one}, wait="visible")
    with pytest.raises(evergraph.UnknownNodeError, match="no node has the key") as caught:
        client.node(one)
    assert caught.value.status == 404
    assert caught.value.request_id
    client.push({"op": "node", "node": one, "ts": 6}, wait="durable")
    assert client.node(one).degree == 0


def test_a_position_of_the_future_is_not_visible_yet(client: Any) -> None:
    end = client.status().freshness.indexed_position
    with pytest.raises(evergraph.NotYetVisibleError) as caught:
        client.embeddings(["a"], min_position=end + 1_000_000, wait_ms=10)
    assert caught.value.details["min_position"] == end + 1_000_000
    with pytest.raises(evergraph.InvalidRequestError, match="wait_ms"):
        client.embeddings(["a"], wait_ms=10)


def test_what_is_too_much_or_nothing_is_refused(client: Any) -> None:
    most = client.info().limits.batch_items_max
    with pytest.raises(evergraph.InvalidRequestError) as caught:
        client.embeddings(range(most + 1))
    assert (caught.value.error_type, caught.value.details["limit"]) == ("batch_too_large", most)
    with pytest.raises(ValueError, match="nodes is empty"):
        client.embeddings([])
    with pytest.raises(ValueError, match="src is empty"):
        client.score([], [])
    with pytest.raises(ValueError, match="no events"):
        client.push([])
    with pytest.raises(ValueError, match="wait is"):
        client.push({"src": 1, "dst": 2, "ts": 3}, wait="soon")


def test_a_large_response_is_read_compressed(daemon: evergraph.Daemon) -> None:
    with Client(daemon.url, headers={"accept-encoding": "gzip"}) as client:
        client.push({"src": "large", "dst": "response", "ts": 1}, wait="visible")
        found = client.embeddings(["large"] * 10_000)
        assert found.array.shape == (10_000, 8)
        assert (found.array == found.array[0]).all()


def test_the_daemon_says_what_it_is_and_how_it_does(client: Any) -> None:
    client.push({"src": "a", "dst": "b", "ts": 1}, wait="visible")
    info = client.info()
    assert (info.name, info.model, info.time_unit) == ("evergraph", "tgn", "seconds")
    assert (info.embedding_dimension, info.edge_feature_dimension, info.node_feature_dimension) == (8, 2, 0)
    assert info.limits == evergraph.Limits()
    status = client.status()
    assert status.version == info.version
    assert status.freshness.applied_position >= 1
    assert status.graph["nodes"] >= 2
    assert status.lag_events >= 0
    assert status.learner["applied_position"] >= 1
    assert status.uptime_seconds > 0
    for health in (client.health(), client.ready(), client.live()):
        assert health.ok
        assert health
        assert health.status in {"ok", "degraded"}
        assert all(check.state in {"ok", "degraded"} for check in health.checks.values())
    assert "evergraph_build_info" in client.metrics()


def test_results_show_their_freshness_in_a_notebook(client: Any) -> None:
    name = "<b>" + fresh()
    pushed = client.push([{"src": name, "dst": "b", "ts": 1}], wait="visible")
    results: list[Any] = [
        pushed,
        client.embeddings([name, "nobody"]),
        client.score(name, ["b", "nobody"]),
        client.top(name, min_position=pushed.end_position, wait_ms=9000),
        client.similar(name),
        client.node(name),
        client.map(limit=5000),
        next(iter(client.neighbors(name))),
        client.status(),
    ]
    for result in results:
        shown = result._repr_html_()
        assert f"reflects positions below {result.freshness.applied_position} " in shown
        assert "<b>n" not in shown, "names are escaped"
    assert "model version" in pushed.freshness._repr_html_()
    assert "log" in client.health()._repr_html_()


def test_unusual_events_are_listed_once_there_are_enough_to_compare_with(client: Any) -> None:
    rows = [{"src": fresh(), "dst": f"b{i % 3}", "ts": i, "features": [1, 2]} for i in range(600)]
    client.push(rows, wait="visible")
    found = client.anomalies(limit=5, percentile=0.99)
    assert len(found) <= 5
    assert found.percentile_min == pytest.approx(0.99)
    assert found.array.dtype == found.percentile.dtype == np.float32
    assert (found.percentile >= 0.99).all()
    assert (np.diff(found.position) < 0).all()
    assert "unusual events" in found._repr_html_()


def test_results_become_data_frames(client: Any) -> None:
    one = fresh()
    pushed = client.push({"src": one, "dst": "b", "ts": 1, "features": [1, 2]}, wait="visible")
    frame = client.embeddings([one, "nobody"]).to_pandas()
    assert frame.shape == (2, 8)
    assert frame.index.tolist() == [one, "nobody"]
    frame = client.score(one, ["b", "nobody"]).to_pandas()
    assert frame.columns.tolist() == ["src", "dst", "score", "percentile", "cold"]
    frame = client.top(one, candidates=["b"], min_position=pushed.end_position).to_pandas()
    assert frame[["of", "rank", "node"]].values.tolist() == [[one, 1, "b"]]
    frame = next(iter(client.neighbors(one, features=True))).to_pandas()
    assert frame[["neighbor", "f0", "f1"]].values.tolist() == [["b", 1.0, 2.0]]


def test_results_become_frames_of_polars(client: Any) -> None:
    one = fresh()
    pushed = client.push({"src": one, "dst": 7, "ts": 1, "features": [1, 2]}, wait="visible")
    vectors = client.embeddings([one, 7])
    frame = vectors.to_polars()
    assert frame["node"].to_list() == [one, "7"]
    assert frame["embedding"].to_numpy().tobytes() == vectors.array.tobytes()
    scores = client.score(one, [7])
    rankings = client.top([one, "nobody"], candidates=[7], min_position=pushed.end_position)
    page = next(iter(client.neighbors(one, features=True)))
    for result in (scores, rankings, page):
        assert result.to_polars().columns == result.to_pandas().columns.tolist()
    assert scores.to_polars()["dst"].to_list() == [7]
    assert rankings.to_polars().select("of", "rank", "node").row(0) == (one, 1, 7)
    assert page.to_polars().select("neighbor", "type", "f1").row(0) == (7, None, 2.0)


def test_requests_of_one_event_loop_go_side_by_side(daemon: evergraph.Daemon) -> None:
    async def scored(client: evergraph.AsyncClient, place: int) -> Any:
        pushed = await client.push({"src": f"loop-{place}", "dst": "b", "ts": 1}, wait="visible")
        return await client.node(f"loop-{place}", min_position=pushed.end_position)

    async def all_of_them() -> list[Any]:
        async with evergraph.AsyncClient(daemon.url) as client:
            return await asyncio.gather(*(scored(client, place) for place in range(20)))

    found = asyncio.run(all_of_them())
    assert [node.node for node in found] == [f"loop-{place}" for place in range(20)]


def test_threads_share_a_client(daemon: evergraph.Daemon) -> None:
    with Client(daemon.url) as client, ThreadPoolExecutor(8) as pool:

        def stored(place: int) -> Any:
            client.push({"src": f"thread-{place}", "dst": "b", "ts": 1}, idempotency_key=f"thread-{place}")
            return client.node(f"thread-{place}").node

        assert list(pool.map(stored, range(50))) == [f"thread-{place}" for place in range(50)]
