"""One file a revision. Never change one that was released; append."""
