"""The Python face of Ion: weights, tokenizer, chat template, async facade over the C++ engine."""
