"""Vectors as the API writes them in base64: 32-bit floats, little-endian."""

from __future__ import annotations

import binascii
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

try:
    import pybase64
except ImportError:
    HAS_FAST = False
else:
    HAS_FAST = True
"""Whether the extra `fast` is installed."""


def _decode(text: str) -> bytes | bytearray:
    if HAS_FAST:
        return pybase64.b64decode_as_bytearray(text, validate=True)
    return binascii.a2b_base64(text, strict_mode=True)


def decode_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of one length, shape (n, d).

    All texts are decoded by one call: their padding is replaced by zero bits, and the bytes of those are left out.

    Raises:
        ValueError: They have several lengths, or are not the base64 of 32-bit floats.
    """
    if not texts:
        return np.empty((0, 0), np.float32)
    if len(set(map(len, texts))) != 1:
        raise ValueError("vectors of several lengths")
    first = texts[0]
    padding = len(first) - len(first.rstrip("="))
    if padding:
        if {text[-padding:] for text in texts} != {"=" * padding}:
            raise ValueError("vectors of several lengths")
        filler = "A" * padding
        joined = filler.join([text[:-padding] for text in texts]) + filler
    else:
        joined = "".join(texts)
    row_bytes = len(first) * 3 // 4 - padding
    if padding > 2 or len(first) % 4 or row_bytes % 4:
        raise ValueError(f"a vector of {row_bytes} bytes in {len(first)} characters, not of 32-bit floats")
    rows = np.frombuffer(_decode(joined), np.uint8).reshape(len(texts), row_bytes + padding)
    vectors = np.empty((len(texts), row_bytes // 4), "<f4")
    vectors.view(np.uint8)[:] = rows[:, :row_bytes]
    return vectors.astype(np.float32, copy=False)
