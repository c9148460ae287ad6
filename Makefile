# The two commands of a newcomer are `make demo` and `make test`; each installs what it needs into .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TOOLS := .venv/.tools
BOOK := .venv/.book

# Without bytecode every process of a test would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-ci test-all check bench figures docs book clean

demo: $(READY)
	$(BIN)/python examples/demo.py

# Two workers of one thread each. Tests whose needs are absent are left out, counted and named. The seconds of every file are
# written to build/tests/; a file of `make test` that takes more than ten of a processor's is named, and above fifteen it fails.
PYTEST := $(BIN)/python -m pytest -n 2
test: $(TOOLS)
	$(PYTEST) -m "not wide" --seconds-limit=10 --seconds-to=build/tests/test.json

# What `make test` leaves out: the wide tests. Both together are what continuous integration runs; of slow tests the first case.
test-ci: $(TOOLS)
	$(PYTEST) -m wide --seconds-to=build/tests/test-ci.json

# Every test, every case.
test-all: $(TOOLS)
	$(PYTEST) --all --seconds-to=build/tests/test-all.json

check: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# How fast: every benchmark that needs nothing but this machine, one after the other, hours of them. Each prints its table
# and writes it to benchmarks/results/. What was learnt in how many minutes is `make figures`.
SPEED := peers peers_memory files_to_csv cold_start levers_of_speed cost_model serving exporting explaining loading load attention \
	augmentation muon million_rows near_duplicates
bench: $(TOOLS)
	for name in $(SPEED); do $(BIN)/python benchmarks/$$name.py || exit 1; done

# Trainings whose row in benchmarks/results/ is missing, hours of them, and then the page of figures. ELPV is the folder of the
# solar cells, DINOV2 that of the weights; without them what needs them is left out. The scripts know more ways and levers.
WAYS := scratch taught probe tuned labels number
LEVERS := adamw "all patches" "class token" "no rotation" mimetic "small pictures" "small, longer" "trivial augment" "mixup 0.2" \
          "mean of weights" smoothing "stochastic depth" repeats "no mirror in answers"
OF_DIGITS := adamw "all patches" "class token" "no rotation" mimetic "small pictures" "trivial augment" "no mixup" "no smoothing" \
             "no turns" "mean of weights" "stochastic depth" repeats
LARGEST := adamw "trivial augment" "small pictures"
OF_CELLS := "masked pictures first" "a CNN teaches" "trivial augment" adamw "small pictures"
figures: $(TOOLS)
	$(BIN)/python docs/figures.py
	$(BIN)/python benchmarks/digits_folds.py
	$(BIN)/python benchmarks/fashion_mnist.py --minutes 13
	$(BIN)/python benchmarks/fashion_mnist.py --minutes 60 --seeds 0
	$(BIN)/python benchmarks/fashion_mnist_peer.py --minutes 13
	$(BIN)/python benchmarks/elpv.py $(if $(ELPV),$(ELPV) $(DINOV2)) --ways $(WAYS)
	$(BIN)/python benchmarks/transfer.py $(if $(DINOV2),$(DINOV2) $(ELPV))
	$(BIN)/python benchmarks/imbalance.py
	$(BIN)/python benchmarks/predictions.py
	$(BIN)/python benchmarks/plans.py $(if $(ELPV),--elpv $(ELPV))
	$(BIN)/python benchmarks/ablation.py --levers $(LEVERS)
	$(BIN)/python benchmarks/ablation.py --levers $(LARGEST) --minutes 10
	$(BIN)/python benchmarks/ablation.py --levers "small pictures" --minutes 1
	$(BIN)/python benchmarks/ablation.py --levers $(OF_DIGITS) --minutes 0.5 --source digits
	$(if $(ELPV),$(BIN)/python benchmarks/ablation.py --levers $(OF_CELLS) --minutes 5 --source elpv --elpv $(ELPV))
	$(BIN)/python docs/table_of_records.py
	$(BIN)/python docs/table_of_results.py

# The tables that documentation pages carry, from the code and the installed packages themselves.
docs: $(TOOLS) $(BOOK)
	$(BIN)/python docs/keywords_of_create.py
	$(BIN)/python docs/table_of_files.py
	$(BIN)/python docs/table_of_dependencies.py
	$(BIN)/python docs/table_of_extras.py
	$(BIN)/python docs/table_of_results.py
	$(BIN)/python docs/table_of_records.py
	$(BIN)/python docs/table_of_layouts.py
	$(BIN)/python docs/table_of_pictures.py
	$(BIN)/python docs/table_of_data_settings.py
	$(BIN)/python docs/table_of_scale.py
	$(BIN)/python docs/table_of_curves.py
	$(BIN)/python docs/table_of_verbs.py
	$(BIN)/python docs/table_of_exit_codes.py

# The site, from docs/, docstrings and examples/, into build/book: warnings and lost links are errors. The walk-throughs train for
# half an hour; VITRAIL_REDUCED=1 makes seconds of it, and what was run once is kept in build/walkthroughs/.
book: $(BOOK)
	$(BIN)/python docs/book.py

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The package alone is enough for the demo; tests need their tools and the libraries that they compare with.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $(READY)

$(TOOLS): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(TOOLS)

$(BOOK): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $(BOOK)
