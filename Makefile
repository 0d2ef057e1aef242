# Everything runs in .venv; `make demo` and `make test` create it when needed.
PYTHON ?= python3
# Which PyTorch: empty takes the build that PyPI has for this platform, `cpu` the CPU build from
# pytorch.org, anything else is passed to pip (TORCH="--index-url URL").
TORCH ?=
TORCH_OPTIONS = $(if $(filter cpu,$(TORCH)),--index-url https://download.pytorch.org/whl/cpu,$(TORCH))
BIN = .venv/bin

.PHONY: setup demo demo-rates quickstart test test-slow test-wheel check bench bench-data bench-eval results results-page clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, this is " + sys.version.split()[0] + " (make setup PYTHON=python3.12)")'
	$(PYTHON) -m venv .venv
	$(if $(TORCH_OPTIONS),$(BIN)/pip install --disable-pip-version-check torch --constraint constraints.txt $(TORCH_OPTIONS))
	$(BIN)/pip install --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	touch $@

demo: setup
	$(BIN)/hrm-deeploop compare experiment=demo beside=docs/results/demo.json run_dir=runs/demo

# What the demo prints beside its arms: vanilla at lower rates, after as many steps.
demo-rates: setup
	$(BIN)/hrm-deeploop compare experiment=demo arms=[vanilla_rates] run_dir=runs/demo-rates
	cp runs/demo-rates/comparison.json docs/results/demo.json

# The README's notebook on the demo's experiment, with its output; needs the demo's runs.
quickstart: setup
	test -d runs/demo/deeploop/seed0 || $(MAKE) demo
	cd docs && ../$(BIN)/python -c 'import nbclient, nbformat as f; nb = f.read("quickstart.ipynb", 4); nbclient.NotebookClient(nb, coalesce_streams=True).execute(); f.write(nb, "quickstart.ipynb")'

# A process per core, each with one thread.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile

test: setup
	$(PYTEST)

test-slow: setup
	$(PYTEST) -m slow

# A wheel in an environment of its own, used from a directory outside the checkout.
test-wheel: setup
	rm -rf build dist
	$(BIN)/python -m build --wheel
	$(PYTHON) -m venv build/venv
	build/venv/bin/pip install --disable-pip-version-check dist/*.whl --constraint constraints.txt $(TORCH_OPTIONS)
	outside=$$(mktemp -d) && cd $$outside && PATH=$(CURDIR)/build/venv/bin:$$PATH sh -euxc '\
	hrm-deeploop describe experiment=mini; \
	hrm-deeploop data stats data=arc1-mini; \
	hrm-deeploop train experiment=smoke run_dir=run; \
	hrm-deeploop evaluate run=run; \
	python -c "import hrm_deeploop as hd; print(hd.load_run(\"run\").predict(\"0d3d703e\"))"'
	rm -rf build dist

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# Training and evaluation speed as ratios within the run; trains the model that it evaluates first.
bench: setup
	$(BIN)/hrm-deeploop bench train

# Examples per CPU second of the data pipeline; the last line is JSON.
bench-data: setup
	$(BIN)/hrm-deeploop bench data

# The vote on 419,000 predictions; halting=act against fixed on a model that is trained first.
bench-eval: setup
	$(BIN)/hrm-deeploop bench eval

# Everything in docs/results.md: some nine hours of 2 cores; finished cells are read, not run again.
RESULTS = runs/results

MINI = experiment=mini compile=true data.validation=0.5
COMPARE = $(BIN)/hrm-deeploop compare $(MINI)
SWEEP = $(BIN)/hrm-deeploop sweep $(MINI)
SEEDS = seeds=[0,1,2]
RATES = 'grid={optim.lr:[5e-4,1e-3,2e-3,4e-3]}'
AT_1E_3 = 'grid={optim.lr:[1e-3]}'
AT_2E_3 = 'grid={optim.lr:[2e-3]}'
FIVE_ARMS = arms=[vanilla,deepnorm,deeploop,deeploop_asymmetric,deeploop_forward] $(SEEDS)
# In training, by one seed; the cells are some of the five arms'.
KAPPA = arms=[vanilla,deepnorm,deeploop] seeds=[0] $(AT_1E_3) alignment.every=250 alignment.segment=2
STABILITY = $(SEEDS) total_steps=500 alignment.every=125 alignment.segment=2
ALIGN = $(BIN)/hrm-deeploop alignment segment=2 batches=4
comma = ,
# deeploop against vanilla of as many rounds; six rounds against three of the same transition
pairs = $(subst $() ,$(comma),$(foreach rounds,$1,deeploop_r$(rounds):vanilla_r$(rounds)))
SIX_TO_THREE = 'baseline={huginn_r6:huginn_r3,hyperloop_r6:hyperloop_r3,operloop_r6:operloop_r3}'
LOOPED = $(SEEDS) model=looped budget=flops
ROUNDS = $(LOOPED) arms=[rounds] 'baseline={$(call pairs,1 3 5 7)}' total_steps=6000 run_dir=$(RESULTS)/rounds
LOOPED_STABILITY = $(STABILITY) model=looped depths=[3]

results: setup
	$(COMPARE) $(KAPPA) model.L_cycles=2 run_dir=$(RESULTS)/L2 report_dir=$(RESULTS)/L2-kappa
	$(COMPARE) $(KAPPA) model.L_cycles=6 run_dir=$(RESULTS)/L6 report_dir=$(RESULTS)/L6-kappa
	$(COMPARE) $(FIVE_ARMS) model.L_cycles=2 $(RATES) run_dir=$(RESULTS)/L2
	$(COMPARE) $(FIVE_ARMS) model.L_cycles=2 $(AT_1E_3) run_dir=$(RESULTS)/L2 report_dir=$(RESULTS)/L2-lr1e-3
	$(COMPARE) $(FIVE_ARMS) model.L_cycles=2 $(AT_2E_3) run_dir=$(RESULTS)/L2 report_dir=$(RESULTS)/L2-lr2e-3
	$(COMPARE) $(FIVE_ARMS) model.L_cycles=6 $(RATES) run_dir=$(RESULTS)/L6
	$(SWEEP) $(STABILITY) optim.lr=4e-3 depths=[2,6] run_dir=$(RESULTS)/exponents
	$(COMPARE) $(ROUNDS) 'grid={optim.lr:[1e-3,2e-3,4e-3]}'
	$(COMPARE) $(ROUNDS) $(AT_2E_3) report_dir=$(RESULTS)/rounds-lr2e-3
	$(COMPARE) $(LOOPED) arms=[loop3_loop6] $(SIX_TO_THREE) total_steps=2000 optim.lr=2e-3 run_dir=$(RESULTS)/loop3_loop6
	$(COMPARE) $(SEEDS) arms=[transitions] budget=flops optim.lr=2e-3 run_dir=$(RESULTS)/transitions
	$(SWEEP) $(LOOPED_STABILITY) optim.lr=4e-3 run_dir=$(RESULTS)/looped-exponents
	$(SWEEP) $(LOOPED_STABILITY) optim.lr=5.6e-3 run_dir=$(RESULTS)/looped-exponents-5.6e-3
	$(SWEEP) $(LOOPED_STABILITY) optim.lr=8e-3 run_dir=$(RESULTS)/looped-exponents-8e-3
	$(MAKE) results-page

# From finished runs: kappa of their checkpoints, the page's rows and tables.
results-page: setup
	$(ALIGN) run=[$(RESULTS)/L2,$(RESULTS)/L6] arm=vanilla out=$(RESULTS)/alignment-vanilla.json
	$(ALIGN) run=[$(RESULTS)/L2,$(RESULTS)/L6] arm=deepnorm out=$(RESULTS)/alignment-deepnorm.json
	$(ALIGN) run=[$(RESULTS)/L2,$(RESULTS)/L6] arm=deeploop out=$(RESULTS)/alignment-deeploop.json
	$(BIN)/hrm-deeploop results runs=$(RESULTS)

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache
