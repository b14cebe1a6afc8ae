"""What the longer commands do and print. Only cli imports this."""
