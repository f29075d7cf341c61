# `just VERB`; each is one line that can be typed by hand

# install for development
dev:
    pip install -e ".[dev]"

# style and types
lint:
    ruff check . && ruff format --check . && mypy

# rewrite what the linter can
fix:
    ruff check --fix . && ruff format .

# all tests
test:
    pytest

# judge the default stack
conformance:
    enginebay conform --stack cpu

# throughput in process and over HTTP
bench:
    python -m benchmarks.serving

# store the contract after a change on purpose
contract:
    python -m enginebay.conformance.schema --write
