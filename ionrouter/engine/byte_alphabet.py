"""The characters in which byte-level vocabularies are written."""

from __future__ import annotations


def byte_alphabet() -> dict[int, str]:
    """Map each byte to the printable character that stands for it (GPT-2, "bytes_to_unicode").

    Printable Latin-1 stands for itself; the other 68 bytes take the characters from U+0100 on, in order.
    """
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {byte: chr(byte) for byte in itself} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
