"""Benchmarks: whole paths, each beside a limit or a peer taken in the same run. Never asserted in tests."""
