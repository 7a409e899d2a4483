# The tests that need Ray, which is too large to install for every change.
.PHONY: test-ray
test-ray:
	pip install '.[test,ray]'
	pytest -m ray tests/planner
