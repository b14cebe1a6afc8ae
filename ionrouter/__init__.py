"""ionrouter: an OpenRouter you run yourself, with its own inference engine inside."""

__version__ = "0.1.0"
