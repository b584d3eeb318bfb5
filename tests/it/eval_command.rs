//! `evergraph eval` from flags to JSON, on a small file made here.

use std::fmt::Write as _;
use std::path::Path;

use clap::Parser;
use evergraph::cli::eval::{EvalArgs, run};
use serde_json::Value;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: EvalArgs,
}

/// Users who come back to their few pages: 400 events, an extra column, one event out of order.
fn write_events(path: &Path) {
    let mut text = String::from("src,dst,ts,color\n");
    for t in 0..400_u32 {
        let time = if t == 7 { 3 } else { t };
        let _ = writeln!(text, "u{},p{},{time},red", t * 7 % 20, (t * 7 % 20 + t / 40 % 3) % 15);
    }
    std::fs::write(path, text).unwrap();
}

/// The same between 2020 and 2021, a quarter of an hour apart, in a unit of which so many are a second.
fn write_in_unit(path: &Path, per_second: i64) {
    write_events(path);
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let mut written = format!("{}\n", lines.next().unwrap());
    for line in lines {
        let [src, dst, time, _] = line.splitn(4, ',').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let time = 1_600_000_000 + 977 * time.parse::<i64>().unwrap();
        let _ = writeln!(written, "{src},{dst},{},red", time * per_second);
    }
    std::fs::write(path, written).unwrap();
}

fn eval(folder: &Path, flags: &[&str]) -> anyhow::Result<Value> {
    let (events, json) = (folder.join("events.csv"), folder.join("out.json"));
    write_events(&events);
    let _ = std::fs::remove_file(&json);
    let mut line = vec!["eval", "--events", events.to_str().unwrap(), "--json", json.to_str().unwrap()];
    line.extend_from_slice(flags);
    run(&Line::try_parse_from(line)?.args)?;
    Ok(serde_json::from_slice(&std::fs::read(json)?)?)
}

fn share(value: &Value, key: &str) -> f64 {
    let number = value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"));
    assert!((0.0..=1.0).contains(&number), "{key} is {number}");
    number
}

#[test]
fn lines_of_json_are_the_same_stream_as_csv_and_what_is_no_edge_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--model", "edgebank", "--batch-events", "20"];
    let csv = eval(folder.path(), &flags).unwrap();
    let lines = std::fs::read_to_string(folder.path().join("events.csv")).unwrap();
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        format!(r#"{{"src":"{}","dst":"{}","ts":{}}}"#, fields[0], fields[1], fields[2]) + "\n"
    };
    let mut text: String = lines.lines().skip(1).map(line).collect();
    let (events, json) = (folder.path().join("events.jsonl"), folder.path().join("lines.json"));
    let eval = |text: &str| {
        std::fs::write(&events, text).unwrap();
        let mut line = vec!["eval", "--events", events.to_str().unwrap(), "--json", json.to_str().unwrap()];
        line.extend_from_slice(&flags);
        run(&Line::try_parse_from(line)?.args)?;
        anyhow::Ok(serde_json::from_slice::<Value>(&std::fs::read(&json)?)?)
    };
    let found = eval(&text).unwrap();
    for key in ["test_average_precision", "events_count", "nodes_count"] {
        assert_eq!(found[key], csv[key], "{key}");
    }
    text.push_str(r#"{"op":"delete","node":"u1"}"#);
    let refused = eval(&text).unwrap_err().to_string();
    assert!(refused.contains("events.jsonl row 400: the event is no edge"), "{refused}");
}

#[test]
fn models_learn_the_same_from_times_in_any_unit() {
    let folder = tempfile::tempdir().unwrap();
    let (events, json) = (folder.path().join("events.csv"), folder.path().join("out.json"));
    let average_precision = |model: &str, per_second: i64, unit: &str| {
        write_in_unit(&events, per_second);
        let mut line = vec!["eval", "--events", events.to_str().unwrap(), "--json", json.to_str().unwrap()];
        line.extend([
            "--model",
            model,
            "--epochs",
            "1",
            "--embedding-dimension",
            "16",
            "--matmul-precision",
            "f32",
        ]);
        line.extend(["--batch-events", "20", "--dropout", "0", "--time-unit", unit]);
        run(&Line::try_parse_from(line).unwrap().args).unwrap();
        let found: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(found["time_unit"], unit);
        share(&found, "test_average_precision")
    };
    for model in ["graphmixer", "jodie", "tgat"] {
        let seconds = average_precision(model, 1, "seconds");
        assert_eq!(seconds, average_precision(model, 1, "unspecified"), "{model}");
        for (per_second, unit) in [(1_000, "milliseconds"), (1_000_000_000, "nanoseconds")] {
            let found = average_precision(model, per_second, unit);
            assert!((found - seconds).abs() < 0.01, "{model}, {unit}: {found}, in seconds {seconds}");
        }
        let misread = average_precision(model, 1_000_000_000, "seconds");
        assert_ne!(seconds, misread, "{model}: the unit is of consequence");
    }
}

#[test]
fn edgebank_under_dyglib_writes_the_promised_keys() {
    let folder = tempfile::tempdir().unwrap();
    let found =
        eval(folder.path(), &["--model", "edgebank", "--batch-events", "20", "--candidates", "5"]).unwrap();
    for key in ["test_average_precision", "test_auc", "test_pooled_average_precision", "test_mrr"] {
        share(&found, key);
    }
    share(&found, "val_average_precision");
    for (key, expected) in [
        ("model", Value::from("edgebank")),
        ("edgebank", "unlimited".into()),
        ("protocol", "dyglib".into()),
        ("negatives", "drawn".into()),
        ("masked", "drawn".into()),
        ("batch_size", 20.into()),
        ("seed", 0.into()),
        ("events_count", 400.into()),
        ("nodes_count", 35.into()),
        ("masked_nodes_count", 3.into()),
    ] {
        assert_eq!(found[key], expected, "{key}");
    }
    assert!(found["machine"]["threads"].as_u64().unwrap() >= 1);
    assert!(found.get("epochs").is_none(), "nothing was trained");
    let again =
        eval(folder.path(), &["--model", "edgebank", "--batch-events", "20", "--candidates", "5"]).unwrap();
    assert_eq!(found, again, "a run follows from its flags");
}

#[test]
fn edgebank_under_prequential_has_a_curve_and_the_last_15_percent() {
    let folder = tempfile::tempdir().unwrap();
    let flags =
        ["--model", "edgebank", "--edgebank", "window", "--protocol", "prequential", "--batch-events", "20"];
    let found = eval(folder.path(), &flags).unwrap();
    share(&found, "mean_average_precision");
    share(&found, "last15_average_precision");
    assert_eq!(found["deciles_average_precision"].as_array().unwrap().len(), 10);
    assert_eq!(found["last15_events_count"], 60);
    assert!(found.get("test_average_precision").is_none(), "protocols are not mixed");
}

/// Users who each return to a page of their own; in the last 15 %, every tenth event is to a page that nobody knew.
fn write_returning(path: &Path) {
    let mut text = String::from("src,dst,ts\n");
    for t in 0..400_u32 {
        let page = if t >= 340 && t % 10 == 5 { format!("new{t}") } else { format!("p{}", t % 20) };
        let _ = writeln!(text, "u{},{page},{t}", t % 20);
    }
    std::fs::write(path, text).unwrap();
}

fn eval_returning(folder: &Path, flags: &[&str]) -> Value {
    let (events, json) = (folder.join("returning.csv"), folder.join("returning.json"));
    write_returning(&events);
    let mut line = vec!["eval", "--events", events.to_str().unwrap(), "--json", json.to_str().unwrap()];
    line.extend_from_slice(&["--protocol", "topk", "--batch-events", "20"]);
    line.extend_from_slice(flags);
    run(&Line::try_parse_from(line).unwrap().args).unwrap();
    serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
}

#[test]
fn topk_ranks_among_all_destinations_so_far_with_the_baselines_beside() {
    let folder = tempfile::tempdir().unwrap();
    let found = eval_returning(folder.path(), &["--model", "edgebank"]);
    // It knows the page of each user and no other; 6 of 60 events are to a page that no ranking can hold.
    assert_eq!((share(&found, "test_mrr"), share(&found, "test_hits_at_10")), (0.9, 0.9));
    assert_eq!((&found["mrr_candidates"], &found["val_mrr_candidates"]), (&26.into(), &100.into()));
    assert_eq!((&found["protocol"], &found["negatives"]), (&"topk".into(), &"known".into()));
    assert!(found.get("edgebank_test_mrr").is_none(), "it is the contender");
    // Of 20 pages in turn, the one that was met last before the batch is the most popular. Those of users 5 and 15 fall
    // behind all others after the first batch.
    let mut ranks = Vec::new();
    for batch in 0..3 {
        for user in (0..20).filter(|user| user % 10 != 5) {
            let behind = [5, 15].iter().filter(|gone| batch > 0 && **gone > user).count();
            ranks.push(20 - user - behind);
        }
    }
    let popular = ranks.iter().map(|rank| 1.0 / *rank as f64).sum::<f64>() / 60.0;
    let hits = ranks.iter().filter(|rank| **rank <= 10).count() as f64 / 60.0;
    assert!((share(&found, "poptrack_test_mrr") - popular).abs() < 1e-12, "{popular}: {found}");
    assert!((share(&found, "poptrack_test_hits_at_10") - hits).abs() < 1e-12, "{hits}: {found}");

    let found = eval_returning(folder.path(), &["--model", "poptrack"]);
    assert!((share(&found, "test_mrr") - popular).abs() < 1e-12, "{found}");
    assert_eq!((share(&found, "edgebank_test_mrr"), share(&found, "edgebank_test_hits_at_10")), (0.9, 0.9));

    let flags = ["--model", "walk", "--walk-dimension", "32", "--epochs", "8", "--learning-rate", "0.01"];
    let found = eval_returning(folder.path(), &flags);
    let learned = share(&found, "test_mrr");
    assert!(learned > popular && learned <= 0.9, "{learned}");
    assert_eq!(share(&found, "edgebank_test_mrr"), 0.9);
}

#[test]
fn given_negatives_and_masked_nodes_are_used_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (negatives, masked) = (folder.path().join("neg.csv"), folder.path().join("mask.csv"));
    std::fs::write(&masked, "node\nu3\n").unwrap();
    // The true events themselves: no score can distinguish them from the positives.
    let mut text = String::from("neg_src,neg_dst\n");
    for t in 340..400_u32 {
        let _ = writeln!(text, "u{},p{}", t * 7 % 20, (t * 7 % 20 + t / 40 % 3) % 15);
    }
    std::fs::write(&negatives, &text).unwrap();
    let (n, m) = (negatives.to_str().unwrap(), masked.to_str().unwrap());
    let flags = ["--model", "edgebank", "--negatives", n, "--masked", m];
    let found = eval(folder.path(), &flags).unwrap();
    assert_eq!(found["test_auc"], 0.5);
    assert_eq!(found["negatives"], "neg.csv");
    assert_eq!(found["masked"], "mask.csv");
    assert_eq!(found["masked_nodes_count"], 1);

    std::fs::write(&negatives, "neg_src,neg_dst\nu1,p1\n").unwrap();
    let error = format!("{:#}", eval(folder.path(), &flags).unwrap_err());
    assert!(error.contains("neg.csv") && error.contains("60"), "{error}");
    std::fs::write(&masked, "node\nnobody\n").unwrap();
    let error = format!("{:#}", eval(folder.path(), &flags).unwrap_err());
    assert!(error.contains("mask.csv") && error.contains("nobody"), "{error}");
}

#[test]
fn former_spellings_of_flags_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, text) in [
        (
            &["--model", "edgebank", "--batch-size", "20", "--dropout", "1.5"][..],
            "--dropout 1.5 is not in 0..1",
        ),
        (&["--model", "walk", "--embedding-dim", "32"], "--embedding-dimension shapes"),
        (&["--model", "walk", "--walks"], "--walks shapes"),
        (&["--model", "tgn", "--met-negatives", "1.5"], "--met-negatives 1.5 is not in 0..=1"),
        (&["--model", "walk", "--edge-types", "2", "--edge-type-dim", "3"], "--edge-types shapes"),
    ] {
        let error = format!("{:#}", eval(folder.path(), flags).unwrap_err());
        assert!(error.contains(text), "{flags:?}: {error}");
    }
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, text) in [
        (&["--model", "edgebank", "--batch-events", "0"][..], "'0' for '--batch-events"),
        (&["--model", "edgebank", "--dropout", "1.5"], "--dropout 1.5 is not in 0..1"),
        (&["--model", "edgebank", "--learning-rate=-1"], "--learning-rate -1 is not above 0"),
        (
            &["--model", "edgebank", "--protocol", "prequential", "--masked", "x.csv"],
            "--masked belongs to --protocol dyglib or mrr",
        ),
        (
            &["--model", "tgat", "--gradient-delay-batches", "5"],
            "--gradient-delay-batches is for models with messages",
        ),
        (&["--model", "gat", "--time-unit", "seconds"], "--time-unit is for models that encode time"),
        (&["--model", "tgn", "--snapshots", "5"], "--snapshots is for dysat"),
        (&["--model", "gat", "--snapshot-width", "5"], "--snapshot-width is for dysat"),
        (&["--model", "tgn", "--plot", "/nonexistent/a.svg"], "this file cannot be written"),
        (&["--model", "edgebank", "--negatives", "/nonexistent.csv"], "cannot open /nonexistent.csv"),
        (&["--model", "nonsense"], "'nonsense' for '--model"),
        (&["--model", "walk", "--walk-dimension", "100"], "100 values: there must be a multiple of 16"),
        (
            &["--model", "walk", "--embedding-dimension", "32"],
            "--embedding-dimension shapes models that learn on batches",
        ),
        (&["--model", "walk", "--device", "cuda:0"], "--device is for models that learn on batches"),
        (&["--model", "edgebank", "--device", "cuda:0"], "leave it out for --model edgebank"),
        (&["--model", "edgebank", "--device", "cuda"], "leave it out for --model edgebank"),
        (&["--model", "tgn", "--device", "auto"], "write cpu or cuda:N"),
        (&["--model", "poptrack", "--edge-types", "2"], "--edge-types shapes models that learn on batches"),
        (
            &["--model", "gat", "--aggregator", "mean"],
            "--aggregator is for models with messages, tgn and jodie",
        ),
        (&["--model", "walk", "--walk-steps", "9"], "9 steps: there must be 1 to 4"),
        (&["--model", "walk", "--walk-decay=-1"], "`-1` is no decay"),
        (&["--model", "walk", "--walk-decay", "fast"], "write a rate per unit of time such as 1e-6"),
        (&["--model", "poptrack", "--half-life", "0"], "--half-life 0 is not above 0"),
        (
            &["--model", "edgebank", "--protocol", "topk", "--negatives", "historical"],
            "--negatives belongs to --protocol dyglib or mrr",
        ),
        (
            &["--model", "poptrack", "--protocol", "mrr", "--negatives", "inductive"],
            "belong to --protocol dyglib",
        ),
        (&["--model", "edgebank", "--protocol", "mrr", "--masked", "x.csv"], "belongs to --protocol dyglib"),
        (&["--model", "tgn", "--train-share", "0.5"], "--train-share is for --protocol prequential"),
        (
            &["--model", "tgn", "--protocol", "prequential", "--train-share", "2"],
            "--train-share 2 is not in 0..=1",
        ),
        (
            &["--model", "edgebank", "--protocol", "prequential", "--train-share", "0.5"],
            "--train-share is for models that learn",
        ),
    ] {
        let error = format!("{:#}", eval(folder.path(), flags).unwrap_err());
        assert!(error.contains(text), "{flags:?}: {error}");
    }
}

/// The figures without those that depend on the clock.
fn timeless(mut found: Value) -> Value {
    found.as_object_mut().unwrap().remove("train_events_per_second").expect("speed is measured");
    found
}

#[test]
fn tgn_under_dyglib_trains_and_writes_the_promised_keys() {
    let folder = tempfile::tempdir().unwrap();
    let flags =
        ["--model", "tgn", "--epochs", "2", "--batch-events", "50", "--candidates", "3", "--seed", "7"];
    let found = timeless(eval(folder.path(), &flags).unwrap());
    for key in [
        "test_average_precision",
        "test_auc",
        "test_pooled_average_precision",
        "test_mrr",
        "val_average_precision",
        "inductive_average_precision",
    ] {
        share(&found, key);
    }
    assert_eq!((&found["epochs"], &found["seed"]), (&2.into(), &7.into()));
    assert_eq!((&found["device"], found.get("gpu")), (&"cpu".into(), None), "by default");
    let precision = if evergraph::device::matmul::has_bf16() { "bf16" } else { "f32" };
    assert_eq!(found["matmul_precision"], precision, "by default");
    assert!((1..=2).contains(&found["best_epoch"].as_u64().unwrap()));
    assert_eq!(found, timeless(eval(folder.path(), &flags).unwrap()), "a run follows from its flags");
    let other = [&flags[..9], &["8"]].concat();
    let other = timeless(eval(folder.path(), &other).unwrap());
    assert_ne!(found["test_average_precision"], other["test_average_precision"], "the seed matters");
}

#[test]
fn tgn_under_prequential_has_edgebank_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--model", "tgn", "--protocol", "prequential", "--batch-events", "50"];
    let found = timeless(eval(folder.path(), &flags).unwrap());
    for key in ["mean_average_precision", "last15_average_precision"] {
        share(&found, key);
        share(&found, &format!("edgebank_{key}"));
    }
    assert_eq!((&found["sight"], &found["train_share"]), (&"within-batch".into(), &1.0.into()));
    assert_eq!(found, timeless(eval(folder.path(), &flags).unwrap()), "a run follows from its flags");
    let in_part = |share: &str| {
        let found = eval(folder.path(), &[&flags[..], &["--train-share", share]].concat()).unwrap();
        (self::share(&found, "mean_average_precision"), found["train_share"].as_f64())
    };
    let whole = self::share(&found, "mean_average_precision");
    assert_eq!(in_part("1"), (whole, Some(1.0)));
    let (none, some) = (in_part("0"), in_part("0.3"));
    assert_eq!((none.1, some.1), (Some(0.0), Some(0.3)));
    assert!(none.0 < some.0 && some.0 < whole, "{none:?}, {some:?}, {whole}");
}

#[test]
fn every_model_is_measured_by_its_name_with_its_own_defaults() {
    let folder = tempfile::tempdir().unwrap();
    for (model, dropout) in [("tgn", 0.1), ("jodie", 0.1), ("graphmixer", 0.4), ("tgat", 0.1)]
        .into_iter()
        .chain(["graphsage", "gat", "dysat"].map(|model| (model, 0.1)))
    {
        let flags = ["--model", model, "--protocol", "prequential", "--batch-events", "100"];
        let found = eval(folder.path(), &flags).unwrap();
        share(&found, "last15_average_precision");
        assert_eq!((&found["model"], &found["dropout"]), (&model.into(), &dropout.into()));
    }
    let jodie = [
        "--model",
        "jodie",
        "--protocol",
        "prequential",
        "--batch-events",
        "100",
        "--embedding-dimension",
        "31",
    ];
    let found = eval(folder.path(), &[&jodie[..], &["--aggregator", "mean"]].concat()).unwrap();
    assert_eq!((&found["embedding_dimension"], &found["aggregator"]), (&31.into(), &"mean".into()));
    let flags = ["--model", "graphmixer", "--dropout", "0.25", "--epochs", "1", "--batch-events", "100"];
    assert_eq!(eval(folder.path(), &flags).unwrap()["dropout"], 0.25);
}

#[test]
fn types_of_events_are_seen_as_far_as_they_are_known_and_the_others_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (events, json) = (folder.path().join("typed.csv"), folder.path().join("out.json"));
    let mut text = String::from("src,dst,ts,type,f0\n");
    for i in 0..300 {
        let _ = writeln!(text, "u{},p{},{i},{},0.5", i % 7, i * i % 11, ["view", "", "buy", "return"][i % 4]);
    }
    std::fs::write(&events, text).unwrap();
    let measure = |types: &str| {
        let mut line = vec!["eval", "--events", events.to_str().unwrap(), "--json", json.to_str().unwrap()];
        line.extend(["--model", "gat", "--protocol", "prequential", "--batch-events", "50"]);
        line.extend(["--edge-types", types, "--edge-type-dimension", "3"]);
        run(&Line::try_parse_from(line).unwrap().args).unwrap();
        serde_json::from_slice::<Value>(&std::fs::read(&json).unwrap()).unwrap()
    };
    let found = measure("2");
    assert_eq!((&found["edge_types"], &found["edge_type_dimension"]), (&2.into(), &3.into()));
    assert_eq!(found["unknown_type_events_count"], 75);
    let [few, all, none] = [found, measure("3"), measure("0")];
    assert_eq!(all["unknown_type_events_count"], 0);
    assert!(none.get("edge_types").is_none() && none.get("unknown_type_events_count").is_none());
    let precision = [few, all, none].map(|found| share(&found, "mean_average_precision").to_bits());
    assert!(precision[0] != precision[1] && precision[1] != precision[2], "{precision:?}");
}

#[test]
fn walks_beside_embeddings_are_named_and_learned_from() {
    let folder = tempfile::tempdir().unwrap();
    let measure = |more: &[&str]| {
        let flags = ["--model", "graphmixer", "--protocol", "prequential", "--batch-events", "20"];
        timeless(eval(folder.path(), &[&flags[..], more].concat()).unwrap())
    };
    let (alone, both) = (measure(&[]), measure(&["--walks", "--walk-dimension", "32"]));
    assert_eq!((&alone["walks"], &alone["met_negatives"]), (&Value::Null, &Value::Null));
    assert_eq!((&both["walks"], &both["met_negatives"]), (&true.into(), &0.25.into()));
    assert_eq!((&both["walk_dimension"], &both["walk_decay_span_power"]), (&32.into(), &10.0.into()));
    let unmet = measure(&["--walks", "--walk-dimension", "32", "--met-negatives", "0"]);
    let precision = |found: &Value| share(found, "last15_average_precision");
    assert!(precision(&unmet) != precision(&alone) && precision(&both) != precision(&unmet));
    assert_eq!(precision(&measure(&["--met-negatives", "0"])), precision(&alone));
}

#[test]
fn walk_under_every_protocol_writes_the_promised_keys() {
    let folder = tempfile::tempdir().unwrap();
    let flags =
        ["--model", "walk", "--epochs", "3", "--batch-events", "20", "--candidates", "4", "--threads", "2"];
    let found = timeless(eval(folder.path(), &flags).unwrap());
    for part in ["test", "val", "inductive"] {
        for key in ["average_precision", "auc", "pooled_average_precision", "pooled_auc"] {
            share(&found, &format!("{part}_{key}"));
        }
    }
    share(&found, "test_mrr");
    share(&found, "test_hits_at_10");
    assert_eq!(found["val_average_precision_by_epoch"].as_array().unwrap().len(), 3);
    assert_eq!((&found["walk_steps"], &found["walk_decay_span_power"]), (&3.into(), &10.0.into()));
    let one = [&flags[..9], &["1"]].concat();
    let mut other = timeless(eval(folder.path(), &one).unwrap());
    other["machine"]["threads"] = 2.into();
    assert_eq!(found, other, "any number of threads computes the same");

    let flags =
        ["--model", "walk", "--protocol", "prequential", "--batch-events", "20", "--walk-decay", "0.01"];
    let found = timeless(eval(folder.path(), &flags).unwrap());
    for key in ["mean_average_precision", "last15_average_precision"] {
        share(&found, key);
        share(&found, &format!("edgebank_{key}"));
    }
    assert_eq!(found["walk_decay_rate"], 0.01);
    let learned = share(&found, "last15_average_precision");
    assert!(learned > 0.7, "the stream repeats itself, and yet {learned}");
}

#[test]
fn mrr_ranks_among_drawn_and_given_candidates() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["edgebank", "poptrack", "walk", "tgn"] {
        let flags = ["--model", model, "--protocol", "mrr", "--epochs", "1", "--negatives", "historical"];
        let found = eval(folder.path(), &flags).unwrap();
        for part in ["test", "val"] {
            assert!(share(&found, &format!("{part}_mrr")) > 0.0);
            share(&found, &format!("{part}_hits_at_10"));
        }
        assert_eq!((&found["mrr_candidates"], &found["negatives"]), (&100.into(), &"historical".into()));
        assert_eq!(found["masked_nodes_count"], 0);
        assert!(found.get("test_average_precision").is_none(), "protocols are not mixed");
    }
    // Two candidates for each event: one that never scores, and the true destination, which does not count.
    let candidates = folder.path().join("candidates.csv");
    let mut text = String::from("neg_src,neg_dst\n");
    for t in 340..400_u32 {
        let (src, dst) = (t * 7 % 20, (t * 7 % 20 + t / 40 % 3) % 15);
        let _ = writeln!(text, "u{src},u{src}\nu{src},p{dst}");
    }
    std::fs::write(&candidates, &text).unwrap();
    let file = candidates.to_str().unwrap();
    let flags = ["--model", "edgebank", "--protocol", "mrr", "--batch-events", "1", "--negatives", file];
    let found = eval(folder.path(), &flags).unwrap();
    assert_eq!((&found["mrr_candidates"], &found["negatives"]), (&2.into(), &"candidates.csv".into()));
    let mrr = share(&found, "test_mrr");
    // A pair that the bank holds ranks first, another one shares the first two places.
    assert!((2.0 / 3.0..=1.0).contains(&mrr), "{mrr}");

    std::fs::write(&candidates, text.replacen("u0,", "u1,", 1)).unwrap();
    let error = format!("{:#}", eval(folder.path(), &flags).unwrap_err());
    assert!(error.contains("candidates.csv") && error.contains("another source than test event"), "{error}");
    std::fs::write(&candidates, "neg_src,neg_dst\nu1,p1\n").unwrap();
    let error = format!("{:#}", eval(folder.path(), &flags).unwrap_err());
    assert!(error.contains("1 candidates were given for 60 test events"), "{error}");
}

#[test]
fn drawn_past_negatives_are_harder_than_random_ones_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let precision = |kind| {
        let flags = ["--model", "edgebank", "--batch-events", "20", "--negatives", kind];
        let found = eval(folder.path(), &flags).unwrap();
        (share(&found, "test_average_precision"), found["negatives"].as_str().unwrap().to_owned())
    };
    let (random, historical, inductive) =
        (precision("random"), precision("historical"), precision("inductive"));
    assert!(historical.0 < random.0 - 0.1, "{historical:?} {random:?}");
    assert_eq!(
        (random.1.as_str(), historical.1.as_str(), inductive.1.as_str()),
        ("drawn", "historical", "inductive")
    );
}

#[test]
fn poptrack_scores_what_is_popular() {
    let folder = tempfile::tempdir().unwrap();
    let flags =
        ["--model", "poptrack", "--half-life", "50", "--batch-events", "20", "--protocol", "prequential"];
    let found = eval(folder.path(), &flags).unwrap();
    assert!(share(&found, "mean_auc") > 0.0);
    assert_eq!(found["half_life_events"], 50.0);
    assert_eq!(found, {
        let mut again = eval(folder.path(), &flags).unwrap();
        again["train_events_per_second"] = found["train_events_per_second"].clone();
        again
    });
}

#[test]
fn the_learning_curve_is_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("curve.svg");
    let plot = ["--plot", image.to_str().unwrap()];
    for (flags, names) in [
        (&["--model", "walk", "--epochs", "2"][..], &["walk: validation AP", ">epoch<"][..]),
        (&["--model", "walk", "--protocol", "mrr", "--epochs", "2"], &["walk: validation MRR"]),
        (
            &["--model", "walk", "--protocol", "prequential"],
            &["walk: AP", "edgebank: AP", "tenth of the stream"],
        ),
    ] {
        eval(folder.path(), &[flags, &plot].concat()).unwrap();
        let text = std::fs::read_to_string(&image).unwrap();
        assert!(text.starts_with("<svg") && text.contains("<circle"), "{flags:?}");
        assert!(names.iter().all(|name| text.contains(name)), "{flags:?}: {text}");
    }
}

#[test]
fn labels_of_nodes_are_read_out_of_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let (events, json) = (folder.path().join("events.csv"), folder.path().join("out.json"));
    // Users who have been busy of late are labeled.
    let mut text = String::from("src,dst,ts,label\n");
    for t in 0..1500_u32 {
        let user = if t % 3 == 0 { t % 5 } else { t * 7 % 60 };
        let _ = writeln!(text, "u{user},p{},{t},{}", t * 11 % 13, u8::from(user < 5 && t % 3 == 0));
    }
    std::fs::write(&events, &text).unwrap();
    let (from, to) = (events.to_str().unwrap(), json.to_str().unwrap());
    let measure = |model| {
        let line = ["eval", "--events", from, "--json", to, "--protocol", "node-label", "--epochs", "1"];
        run(&Line::try_parse_from([&line[..], &["--model", model]].concat())?.args)?;
        anyhow::Ok(timeless(serde_json::from_slice(&std::fs::read(&json)?)?))
    };
    for model in ["walk", "tgn"] {
        let found = measure(model).unwrap();
        let auc = share(&found, "test_label_auc");
        assert!(auc > 0.6, "{model}: {auc}");
        share(&found, "val_label_auc");
        assert!(found["train_positive_labels_count"].as_u64().unwrap() > 100);
        assert_eq!(found, measure(model).unwrap(), "a run follows from its flags");
    }
    let error = format!("{:#}", measure("edgebank").unwrap_err());
    assert!(error.contains("such as tgn or walk"), "{error}");
    std::fs::write(&events, text.replace(",1\n", ",\n")).unwrap();
    let error = format!("{:#}", measure("walk").unwrap_err());
    assert!(error.contains("the training part has 0 positive") && error.contains("`label`"), "{error}");
}
