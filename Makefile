# Everything runs in .venv; `make demo` and `make test` create it when needed.
PYTHON ?= python3
# Which PyTorch: empty takes the build that PyPI has for this platform, `cpu` the CPU build from
# pytorch.org, anything else is passed to pip (TORCH="--index-url URL").
TORCH ?=
TORCH_OPTIONS = $(if $(filter cpu,$(TORCH)),--index-url https://download.pytorch.org/whl/cpu,$(TORCH))
BIN = .venv/bin

.PHONY: setup demo test test-slow check bench bench-data bench-eval results results-page clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, this is " + sys.version.split()[0] + " (make setup PYTHON=python3.12)")'
	$(PYTHON) -m venv .venv
	$(if $(TORCH_OPTIONS),$(BIN)/pip install --disable-pip-version-check torch --constraint constraints.txt $(TORCH_OPTIONS))
	$(BIN)/pip install --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	touch $@

demo: setup
	$(BIN)/python scripts/compare.py experiment=mini arms=[vanilla,deeploop_mini] run_dir=runs/demo

# A process per core, each with one thread.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile

test: setup
	$(PYTEST)

test-slow: setup
	$(PYTEST) -m slow

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# Training and evaluation speed as ratios within the run; trains the model that it evaluates first.
bench: setup
	$(BIN)/python scripts/bench.py train

# Examples per CPU second of the data pipeline; the last line is JSON.
bench-data: setup
	$(BIN)/python scripts/bench.py data

# The vote on 419,000 predictions; halting=act against fixed on a model that is trained first.
bench-eval: setup
	$(BIN)/python scripts/bench.py eval

# Everything in docs/results.md: some five hours of 2 cores; finished cells are read, not run again.
# Two processes share the cells: make results SHARE=0/2 & make results SHARE=1/2. One thread each,
# for the number of threads decides the last digits.
RESULTS = runs/results
SHARE ?= null
MINI = experiment=mini compile=true data.validation=0.5 seeds=[0,1,2] share=$(SHARE)
COMPARE = OMP_NUM_THREADS=1 $(BIN)/python scripts/compare.py $(MINI)
SWEEP = OMP_NUM_THREADS=1 $(BIN)/python scripts/sweep.py $(MINI)
FIVE_ARMS = $(COMPARE) arms=[vanilla,deepnorm,deeploop,deeploop_asymmetric,deeploop_forward] alignment.every=250

ALIGN = $(BIN)/python scripts/alignment.py segment=2 batches=2
comma = ,
of_both_depths = $(subst $() ,$(comma),$(foreach run,L2 L6,$(foreach seed,0 1 2,$(RESULTS)/$(run)/$1/lr$2-seed$(seed))))

results: setup
	$(FIVE_ARMS) model.L_cycles=2 'grid={optim.lr:[5e-4,1e-3,2e-3,4e-3]}' run_dir=$(RESULTS)/L2
	$(FIVE_ARMS) model.L_cycles=2 'grid={optim.lr:[1e-3]}' run_dir=$(RESULTS)/L2 report_dir=$(RESULTS)/L2-lr1e-3
	$(FIVE_ARMS) model.L_cycles=2 'grid={optim.lr:[2e-3]}' run_dir=$(RESULTS)/L2 report_dir=$(RESULTS)/L2-lr2e-3
	$(FIVE_ARMS) model.L_cycles=6 'grid={optim.lr:[1e-3,2e-3,4e-3]}' run_dir=$(RESULTS)/L6
	$(SWEEP) depths=[2,6] optim.lr=4e-3 total_steps=500 alignment.every=125 run_dir=$(RESULTS)/exponents
	case "$(SHARE)" in null|0/*) $(MAKE) results-page;; esac

# From finished runs: kappa of their checkpoints, the page's rows and tables.
results-page: setup
	$(ALIGN) 'run=[$(call of_both_depths,vanilla,0.001)]' out=$(RESULTS)/alignment-vanilla.json
	$(ALIGN) 'run=[$(call of_both_depths,deepnorm,0.002)]' out=$(RESULTS)/alignment-deepnorm.json
	$(ALIGN) 'run=[$(call of_both_depths,deeploop,0.002)]' out=$(RESULTS)/alignment-deeploop.json
	$(BIN)/python scripts/results.py runs=$(RESULTS)

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache
