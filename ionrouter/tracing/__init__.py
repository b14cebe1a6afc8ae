"""Traces: one server span a request, one client span an attempt, sent to an OpenTelemetry collector."""
