"""Evaluation of models on arrays, by the real command."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest

import evergraph
from evergraph.evaluation import _write_events

from .test_ranking import official

COUNT = 400
TIMES = np.arange(COUNT)
SRC = np.array([f"u{i * 7 % 20}" for i in range(COUNT)])
DST = np.array([f"p{(i * 7 % 20 + i // 40 % 3) % 15}" for i in range(COUNT)])


def test_a_baseline_is_measured_under_each_protocol() -> None:
    found = evergraph.evaluate(SRC, DST, TIMES, model="edgebank", seed=3)
    assert (found.model, found.protocol, found.negatives, found.seed) == ("edgebank", "dyglib", "drawn", 3)
    assert (found.events_count, found.nodes_count, found.batch_size) == (COUNT, 35, 200)
    assert found.average_precision is not None
    assert 0.5 < found.average_precision <= 1
    assert found.auc is not None
    assert found.figures["test_average_precision"] == found.average_precision
    assert (found.mrr, found.train_events_per_second) == (None, None)
    assert "test_average_precision" in found._repr_html_()
    ranked = evergraph.evaluate(SRC, DST, TIMES, model="poptrack", protocol="mrr", candidates=5)
    assert ranked.mrr is not None
    assert 0 < ranked.mrr <= 1
    assert (ranked.average_precision, ranked.figures["mrr_candidates"]) == (None, 5)
    live = evergraph.evaluate(SRC, DST, TIMES, model="edgebank", protocol="prequential", batch_events=50)
    assert live.average_precision == live.figures["mean_average_precision"]


def test_a_model_learns_from_an_object_with_features() -> None:
    rng = np.random.default_rng(0)
    data = SimpleNamespace(src=SRC, dst=DST, t=TIMES, msg=rng.normal(size=(COUNT, 3)).astype(np.float32))
    options: dict[str, Any] = {"epochs": 1, "batch_events": 100, "embedding_dimension": 16, "threads": 1}
    found = evergraph.evaluate(data, **options)
    assert found.model == "tgn"
    assert found.average_precision is not None
    assert found.train_events_per_second is not None
    assert found.figures["embedding_dimension"] == 16
    again = evergraph.evaluate(SRC, DST, TIMES, data.msg, **options)
    assert again.average_precision == found.average_precision, "a run follows from its arguments"
    without = evergraph.evaluate(SRC, DST, TIMES, **options)
    assert without.average_precision != found.average_precision, "features matter"


def test_a_flag_without_a_value_is_true_or_left_out() -> None:
    options: dict[str, Any] = {"model": "graphmixer", "epochs": 1, "embedding_dimension": 16, "threads": 1}
    without = evergraph.evaluate(SRC, DST, TIMES, walks=False, dropout=None, **options)
    found = evergraph.evaluate(SRC, DST, TIMES, walks=True, **options)
    assert found.average_precision != without.average_precision, "walks matter"


def test_given_negatives_and_masked_nodes_are_used() -> None:
    test = slice(340, 400)
    found = evergraph.evaluate(SRC, DST, TIMES, model="edgebank", negatives=(SRC[test], DST[test]), masked=["u3"])
    assert found.auc == 0.5, "the true events themselves"
    assert found.figures["masked_nodes_count"] == 1
    with pytest.raises(ValueError, match="1 sources and 2 destinations"):
        evergraph.evaluate(SRC, DST, TIMES, negatives=(["u1"], ["p1", "p2"]))
    with pytest.raises(evergraph.EvaluationError, match="60"):
        evergraph.evaluate(SRC, DST, TIMES, model="edgebank", negatives=(["u1"], ["p1"]))


def test_given_negatives_are_ranked() -> None:
    test = range(340, 400)
    sources = np.repeat(SRC[340:], 2)

    def mrr(shift: int) -> float | None:
        others = [f"p{(i * 7 % 20 + (i // 40 + one) % 3 + shift) % 15}" for i in test for one in (1, 2)]
        negatives = (sources, np.array(others))
        return evergraph.evaluate(SRC, DST, TIMES, model="edgebank", protocol="mrr", negatives=negatives).mrr

    assert mrr(0) == 0.5, "the source met all three"
    assert mrr(7) == 1.0, "it met the true one only"


def test_each_event_is_ranked_among_its_own_candidates_as_the_temporal_graph_benchmark_does() -> None:
    rng = np.random.default_rng(2)
    known = set(zip(SRC[:340], DST[:340], strict=True))  # what EdgeBank holds before the only batch of the test part
    nodes = np.array([f"p{place}" for place in range(15)])
    sets = [rng.choice(nodes[nodes != dst], size=rng.integers(1, 14), replace=False) for dst in DST[340:]]
    assert len({len(keys) for keys in sets}) > 5
    scores = [
        [float((src, key) in known) for key in (dst, *keys)]
        for src, dst, keys in zip(SRC[340:], DST[340:], sets, strict=True)
    ]
    expected = np.mean([official(own, np.array(others)) for own, *others in scores])
    assert expected != pytest.approx(evergraph.mrr([own for own, *_ in scores], [others[:1] for _, *others in scores]))

    def found(negatives: Any, **options: Any) -> evergraph.Evaluation:
        sources = SRC[340:]
        return evergraph.evaluate(
            SRC, DST, TIMES, model="edgebank", protocol="mrr", negatives=(sources, negatives), **options
        )

    for given in (sets, tuple(sets), [keys.tolist() for keys in sets]):
        ranked = found(given)
        assert ranked.mrr == pytest.approx(expected, abs=1e-12)
        assert ranked.figures["mrr_candidates"] == max(map(len, sets))
    two = np.array([rng.choice(nodes[nodes != dst], size=2, replace=False) for dst in DST[340:]])
    flat = (np.repeat(SRC[340:], 2), two.reshape(-1))
    same = evergraph.evaluate(SRC, DST, TIMES, model="edgebank", protocol="mrr", negatives=flat)
    assert found(two).mrr == same.mrr
    with pytest.raises(ValueError, match="60 sources and 59 sets"):
        found(sets[1:])
    with pytest.raises(ValueError, match="set 1 of the negatives is empty"):
        found([sets[0], [], *sets[2:]])
    with pytest.raises(evergraph.EvaluationError, match="another source than test event 1"):
        evergraph.evaluate(SRC, DST, TIMES, model="edgebank", protocol="mrr", negatives=(SRC[339:399], sets))


def test_features_are_written_as_short_as_they_read_back(tmp_path: Path) -> None:
    features = np.array([[0.1, 1e-10], [1 / 3, 16777216]], np.float32)
    _write_events(tmp_path / "events.csv", "one", ["a", "b"], [1, 2], features, None)
    rows = [line.split(",") for line in (tmp_path / "events.csv").read_text().splitlines()]
    assert rows[:2] == [["src", "dst", "ts", "f0", "f1"], ["one", "a", "1", "0.1", "1e-10"]]
    np.testing.assert_array_equal(np.array([row[3:] for row in rows[1:]], np.float32), features)


def test_labels_are_read_out_of_a_model() -> None:
    label = (np.arange(COUNT) % 3 == 0).astype(int)
    found = evergraph.evaluate(
        SRC, DST, TIMES, label=label, model="walk", protocol="node-label", epochs=1, walk_dimension=16
    )
    assert found.auc == found.figures["test_label_auc"]
    some = np.where(np.arange(COUNT) % 2 == 0, label, np.nan)
    fewer = evergraph.evaluate(
        SRC, DST, TIMES, label=some, model="walk", protocol="node-label", epochs=1, walk_dimension=16
    )
    counted = "test_positive_labels_count"
    assert 0 < fewer.figures[counted] < found.figures[counted], "NaN is no label"


def test_keys_with_commas_and_quotes_are_keys() -> None:
    odd = np.array([f'{name},"\n' for name in SRC])
    plain = evergraph.evaluate(SRC, DST, TIMES, model="edgebank")
    found = evergraph.evaluate(odd, DST, TIMES, model="edgebank")
    assert (found.nodes_count, found.average_precision) == (plain.nodes_count, plain.average_precision)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(evergraph.EvaluationError, match=r"--dropout 1\.5 is not in 0\.\.1"):
        evergraph.evaluate(SRC, DST, TIMES, model="edgebank", dropout=1.5)
    with pytest.raises(evergraph.EvaluationError, match="nonsense"):
        evergraph.evaluate(SRC, DST, TIMES, model="nonsense")
    with pytest.raises(ValueError, match="lengths 400, 399 and 400"):
        evergraph.evaluate(SRC, DST[1:], TIMES)
    with pytest.raises(ValueError, match="label is of length 1"):
        evergraph.evaluate(SRC, DST, TIMES, label=[1])
    with pytest.raises(TypeError, match="one by one"):
        evergraph.evaluate(pandas.DataFrame({"src": SRC, "dst": DST, "t": TIMES}))
    with pytest.raises(TypeError, match="list has no src"):
        evergraph.evaluate([1, 2])
    with pytest.raises(TypeError, match="give src, dst and t"):
        evergraph.evaluate(SRC, DST)
