# Every target is one script, so that nothing here needs make.
.DEFAULT_GOAL := help
.PHONY: help setup demo test quick lint format bench docs clean

help:
	@echo "make demo | test | quick | lint | format | bench | docs | setup | clean     (see CONTRIBUTING.md)"

setup:
	./tools/setup.sh --dev

demo:
	./tools/demo.sh $(ARGS)

test:
	./tools/test.sh $(ARGS)

quick:
	./tools/test.sh --quick $(ARGS)

lint:
	./tools/lint.sh

format:
	./tools/lint.sh --fix

bench:
	./tools/bench.sh $(ARGS)

docs:
	./tools/docs.sh $(ARGS)

clean:
	rm -rf build dist models bench-results .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find vkep registry tools tests -name __pycache__ -type d -prune -exec rm -rf {} +
