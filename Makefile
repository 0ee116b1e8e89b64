# Two commands: `make blackjack` (set-up, then the main job) and `make test` (set-up, then the tests).
.DEFAULT_GOAL := help
.PHONY: help setup blackjack test test-all lint bench lock
PY := .venv/bin/python

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /: /' | column -t -s: -o '  '

setup: ## create .venv with the pinned packages (skipped when nothing changed)
	@scripts/setup.sh

blackjack: setup ## a language model learns BlackJack (about 5 minutes on 2 cores)
	@$(PY) -m rlmesh.run configs/blackjack.yaml run.name=blackjack-$$(date +%Y%m%d-%H%M%S)

test: setup ## what CI runs
	@$(PY) -m pytest -q -m "not slow"

test-all: setup ## every test, the long ones too
	@$(PY) -m pytest -q

lint: setup ## ruff
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .

bench: setup ## the figures of docs/performance.md (half an hour; leave the machine alone)
	@for each in blackjack throughput weight_sync episodes; do $(PY) benchmarks/$$each.py || exit 1; done

lock: ## regenerate requirements/*.txt (needs uv)
	@scripts/lock.sh
