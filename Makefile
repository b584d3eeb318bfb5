# One verb per habit. `make` alone lists them.

# Tools that scripts/setup.sh puts in place come first: rustup's cargo, then promtool and cargo-deny.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(CARGO_HOME)/bin:$(CURDIR)/.cache/tools/bin:$(PATH)

.PHONY: help demo test check fmt

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: ## set up, build, and run the daemon on a built-in stream; Ctrl-C ends it, running again resumes
	@scripts/setup.sh
	cargo build --release --locked
	@target/release/evergraph demo

test: ## set up and run every test, those against a real Apache Kafka included
	@scripts/setup.sh test
	cargo test --locked

check: ## formatting, lints and the house rules, before every commit
	@scripts/setup.sh
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
	cargo test --locked --test tidy

fmt: ## format the sources
	cargo fmt
