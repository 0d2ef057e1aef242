"""What scripts/bench.py measures, a file each."""
