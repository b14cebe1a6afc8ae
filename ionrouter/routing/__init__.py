"""Where a model could go: routes.yaml -> graph -> immutable table. Knows nothing of live health."""
