# One target per task. `make` alone lists them.

# Tools that scripts/setup.sh puts in place come first: rustup's cargo, then promtool, helm and the like.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(CARGO_HOME)/bin:$(CURDIR)/.cache/tools/bin:$(PATH)

.PHONY: help demo test fuzz schemathesis debezium feast feed-bench soak kills check fmt compose-check chart-check manifests package peers ops-peers learn-peers index-peers \
	overload device-run device-pace drift learning-curve cache-bench bus-bench cluster-bench continual partition replicas prequential models screenshots gpu

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

demo: ## set up, build, and run the daemon on a built-in stream; Ctrl-C ends it, running again resumes
	@scripts/setup.sh
	cargo build --release --locked --bin evergraph
	@target/release/evergraph demo

# Kernels are compiled without a GPU, by the NVRTC that setup.sh puts there.
test device-run device-pace: export LD_LIBRARY_PATH := $(CURDIR)/.cache/tools/cuda/nvidia/cu13/lib$(if $(LD_LIBRARY_PATH),:$(LD_LIBRARY_PATH))
test: ## set up and run every test, those against a real Apache Kafka included
	@scripts/test.sh

fuzz: ## feed every decoder much more damaged input; FUZZ_CASES=cases for each, FUZZ_SEED=seed
	@scripts/setup.sh
	EVERGRAPH_FUZZ_CASES="$${FUZZ_CASES:-20000}" EVERGRAPH_FUZZ_SEED="$${FUZZ_SEED:-$$(date +%s)}" \
		cargo test --locked --test it -- hostile:: damaged_orders --nocapture

schemathesis: ## test a running daemon's responses against its own OpenAPI document, with schemathesis
	@scripts/setup.sh
	@scripts/schemathesis.sh

feast: ## keep an online store of Feast as of now by the change feed, and compare it with the daemon
	@scripts/feast.sh

feed-bench: ## measure what the change feed costs training; FEED_SECONDS=20
	@scripts/setup.sh test
	FEED_SECONDS="$${FEED_SECONDS:-20}" cargo test --locked --profile checked --test it what_a_feed_costs -- --ignored --nocapture

debezium: ## kill daemon, Debezium, Kafka and PostgreSQL while rows change, and compare the edges; ROUNDS=8, SEED=1
	@scripts/setup.sh debezium
	@scripts/debezium.sh

soak: ## run the daemon on 20,000 events a second with restarts and kills, and write its page; SOAK_MINUTES=60
	@scripts/setup.sh test
	SOAK_MINUTES="$${SOAK_MINUTES:-60}" cargo test --locked --release --test it soak:: -- --ignored --nocapture

kills: ## kill the daemon at random moments and compare it with one that was not killed; KILLS=200, SEED=seed
	@scripts/setup.sh
	KILLS="$${KILLS:-200}" cargo test --locked --release --test it kills::kills_ -- --test-threads=1 --nocapture

check: ## formatting, lints and the house rules, before every commit
	@scripts/setup.sh check
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
	cargo test --locked --test tidy

fmt: ## format the sources
	@scripts/setup.sh check
	cargo fmt

compose-check: ## run the compose files in Docker; scripts/docker.sh stop removes what it keeps. As root
	scripts/docker.sh start
	scripts/docker.sh plugins
	scripts/docker.sh images
	scripts/compose.sh

chart-check: ## run the chart in a Kubernetes cluster of one node, made for it; scripts/docker.sh stop too. Debian, as root
	scripts/setup.sh kubernetes
	scripts/docker.sh start
	scripts/docker.sh plugins
	scripts/docker.sh images
	docker buildx build --load -f deploy/Dockerfile -t evergraph:local .
	scripts/cluster.sh up
	scripts/cluster.sh import evergraph:local "$$(sed -n 's/^ *image: \(.*kafka.*\)/\1/p' deploy/compose.yaml | head -n 1)"
	scripts/chart.sh
	scripts/cluster.sh down

manifests: ## write the plain Kubernetes manifests from the Helm chart, and check both
	@scripts/setup.sh kubernetes
	scripts/kubernetes.sh render
	scripts/kubernetes.sh check

package: ## build the Debian package and its bill of materials: target/package/evergraph_VERSION_ARCHITECTURE.deb, .cdx.json
	@scripts/setup.sh package
	scripts/package.sh

device-run: ## stream events through a daemon on the stand-in driver; EVENTS=200000
	@scripts/setup.sh test
	DEVICE_EVENTS="$${EVENTS:-200000}" cargo test --locked --release --test it stand_in::a_stream -- --ignored --nocapture

device-pace: ## measure a daemon beside a GPU of a given speed that computes nothing; DATA=folder, KERNEL_NS=12000, FEATURES=0
	@[ -e "$(DATA)/wikipedia.csv.gz" ] || { echo "device-pace: there is no $(DATA)/wikipedia.csv.gz" >&2; exit 1; }
	@scripts/setup.sh test
	cargo build --release --locked --bin evergraph
	@mkdir -p target/stand-in/kernels
	LD_LIBRARY_PATH="$$(scripts/stand-in-driver.sh):$$LD_LIBRARY_PATH" EVERGRAPH_STANDIN_MODE=paced \
		EVERGRAPH_STANDIN_MEMORY=8589934592 EVERGRAPH_STANDIN_KERNEL_NS="$${KERNEL_NS:-12000}" \
		target/release/evergraph bench learn --events "$(DATA)/wikipedia.csv.gz" --repeat 2 --rounds 1 --round-events 2000 \
		--row-dimension "$${FEATURES:-0}" --set device.use=cuda:0 --set device.graph_bytes=0 \
		--set device.kernel_dir="$(CURDIR)/target/stand-in/kernels" --set learner.batch_events=600 \
		--set learner.gate.edgebank_tolerance=1 --json -

overload: ## measure at 20,000 events a second through Kafka, and write its page; DATA=folder of event files
	@test -d "$(DATA)" || { echo "DATA has to be the folder of wikipedia.csv.gz and oss-commits.csv.gz" >&2; exit 1; }
	@scripts/setup.sh test
	OVERLOAD_DATA="$(realpath $(DATA))" cargo test --locked --release --test it overload:: -- --ignored --nocapture

drift: ## measure training without an end on a stream that drifts, and write its page and plot
	@scripts/setup.sh
	cargo build --release --locked --bin evergraph-research
	@target/release/evergraph-research drift --json docs/benchmarks/drift.json --plot docs/benchmarks/drift.svg \
		--page docs/benchmarks/drift.md

learning-curve: ## draw the learning curve of the front page, TGN beside EdgeBank; DATA=folder with uci.csv.gz
	@[ -e "$(DATA)/uci.csv.gz" ] || { echo "learning-curve: there is no $(DATA)/uci.csv.gz" >&2; exit 1; }
	@scripts/setup.sh
	cargo build --release --locked
	@target/release/evergraph eval --events "$(DATA)/uci.csv.gz" --model tgn --protocol prequential --seed 0 \
		--plot docs/images/learning-curve.svg

screenshots: ## take the pictures of docs/console.md on a real stream; DATA=folder with wikipedia.csv.gz
	@[ -e "$(DATA)/wikipedia.csv.gz" ] || { echo "screenshots: there is no $(DATA)/wikipedia.csv.gz" >&2; exit 1; }
	@scripts/setup.sh test
	DATA="$(abspath $(DATA))" cargo test --locked --profile checked --test it console_pages::pictures -- --ignored --nocapture

prequential: ## measure average precision under the prequential protocol on many streams, and write its page; DATA=folder
	@test -d "$(DATA)" || { echo "DATA has to be the folder of event files" >&2; exit 1; }
	@scripts/setup.sh
	cargo build --release --locked
	python3 -B benches/prequential/measure.py --data "$(DATA)"

models: ## measure every model on the streams with published negatives, and write the page; DATA=folder of event files
	@scripts/setup.sh
	cargo build --release --locked
	python3 -B benches/models/measure.py rates --data "$(DATA)"
	python3 -B benches/models/measure.py quality --data "$(DATA)"

peers: ## measure beside other temporal samplers; DATA=folder of event files, 12 GB of Python packages
	@scripts/setup.sh
	benches/peers/run.sh --data "$(DATA)"

ops-peers: ## measure every operation beside torch, PyG and burn; 5.4 GB of Python packages
	@scripts/setup.sh
	benches/ops/run.sh

index-peers: ## measure the live index beside USearch, and write the page
	@scripts/setup.sh
	benches/index/run.sh

learn-peers: ## train beside PyG's TGN and torch's GraphMixer; DATA=folder of event files, 5.4 GB of Python packages
	@scripts/setup.sh
	benches/learn/run.sh --data "$(DATA)"

cache-bench: ## replay what training reads through caches of rows, and write page and figures; DATA=folder of event files
	@for name in wikipedia oss-commits; do [ -e "$(DATA)/$$name.csv.gz" ] || { \
		echo "cache-bench: SKIPPED, nothing was measured: there is no $(DATA)/$$name.csv.gz" >&2; exit 1; }; done
	@scripts/setup.sh
	cargo build --release --locked --bin evergraph-research
	@target/release/evergraph-research cache --events "$(DATA)/wikipedia.csv.gz" --events "$(DATA)/oss-commits.csv.gz" \
		--events-max 200000 --json docs/benchmarks/cache.json --page docs/benchmarks/cache.md

replicas: ## measure requests per second by read replicas, and write page and figures; as root, for control groups
	@scripts/setup.sh test
	REPLICAS_OUT=$(CURDIR)/docs/benchmarks cargo test --locked --profile checked --test it replicas:: -- --ignored --nocapture

cluster-bench: ## measure ranks that train together, and write page and figures; DATA=folder with wikipedia.csv.gz
	@[ -e "$(DATA)/wikipedia.csv.gz" ] || { echo "cluster-bench: there is no $(DATA)/wikipedia.csv.gz" >&2; exit 1; }
	@scripts/setup.sh test
	cargo build --release --locked --bin evergraph
	python3 -B benches/cluster/measure.py --data "$(DATA)"

continual: ## measure how soon new events are learned, beside PyG's TGN; DATA=folder with wikipedia.csv.gz, 5.4 GB of packages
	@[ -e "$(DATA)/wikipedia.csv.gz" ] || { echo "continual: there is no $(DATA)/wikipedia.csv.gz" >&2; exit 1; }
	@scripts/setup.sh
	cargo build --release --locked --bin evergraph
	@. benches/environment.sh && environment .cache/ops/peers benches/ops/requirements.txt
	python3 -B benches/continual/measure.py --data "$(DATA)"

partition: ## count what machines would send if each had a part of the graph, and write page and figures; DATA=folder of event files
	python3 -B benches/partition/simulate.py --data "$(DATA)"

bus-bench: ## count bytes of edge rows over the bus by the size of the cache, and write page and figures; DATA=folder of event files
	@for name in wikipedia oss-commits; do [ -e "$(DATA)/$$name.csv.gz" ] || { \
		echo "bus-bench: SKIPPED, nothing was counted: there is no $(DATA)/$$name.csv.gz" >&2; exit 1; }; done
	@scripts/setup.sh
	cargo build --release --locked --bin evergraph-research
	@target/release/evergraph-research bus --events "$(DATA)/wikipedia.csv.gz" --events "$(DATA)/oss-commits.csv.gz" \
		--events-max 200000 --json docs/benchmarks/bus.json --page docs/benchmarks/bus.md

gpu: ## build what scripts/gpu-check.sh needs on a machine with a GPU, without Rust or network; DATA=folder of event files
	@scripts/setup.sh
	DATA="$(DATA)" scripts/gpu-bundle.sh
