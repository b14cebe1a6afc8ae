"""Latency sketches per endpoint and their queries."""
