# Everything a newcomer needs: `make demo` and `make test`. Both set themselves up; nothing else is needed but Python.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check format docs clean

demo: $(READY)
	$(BIN)/incseg demo

# A process of the suite that dies ends it: replaced, it may leave the others waiting for ever.
test: check
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup --max-worker-restart 0

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(READY)
	$(BIN)/python -m pip install --quiet '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Installed anew only when the requirements change; the source itself is used in place.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "incseg needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
