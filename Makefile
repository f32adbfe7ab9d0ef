# Thin: each target is the plain line a person with their own environment would type.
PYTHON ?= python3
VENV ?= .venv

.PHONY: suite test lint clean

suite: $(VENV)/.installed
	$(VENV)/bin/pytest suites/ --gpu=auto

test: $(VENV)/.installed
	$(VENV)/bin/pytest tests/ -n 2 --dist loadfile

lint: $(VENV)/.installed
	$(VENV)/bin/pip install -q -c constraints.txt -e '.[lint]'
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .charllm
