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


BLOCK_BYTES = 65_536
"""Characters that are decoded at once: they stay in the caches of the CPU."""


def _decode(text: bytearray) -> bytes | bytearray:
    if HAS_FAST:
        return pybase64.b64decode_as_bytearray(text, validate=True)
    return binascii.a2b_base64(text, strict_mode=True)


def decode_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of one length, shape (n, d).

    Raises:
        ValueError: They have several lengths, or are not the base64 of 32-bit floats.
    """
    if not texts:
        return np.empty((0, 0), np.float32)
    if len(set(map(len, texts))) != 1:
        raise ValueError("vectors of several lengths")
    first = texts[0]
    padding = len(first) - len(first.rstrip("="))
    row_bytes = len(first) * 3 // 4 - padding
    if padding > 2 or len(first) % 4 or row_bytes % 4:
        raise ValueError(f"a vector of {row_bytes} bytes in {len(first)} characters, not of 32-bit floats")
    vectors = np.empty((len(texts), row_bytes // 4), "<f4")
    by_bytes = vectors.view(np.uint8)
    rows_at_once = max(1, BLOCK_BYTES // (len(first) or 1))
    for start in range(0, len(texts), rows_at_once):
        block = texts[start : start + rows_at_once]
        by_bytes[start : start + len(block)] = _rows(block, padding)[:, :row_bytes]
    return vectors.astype(np.float32, copy=False)


def _rows(texts: Sequence[str], padding: int) -> NDArray[np.uint8]:
    """The bytes of vectors, decoded by one call: padding becomes zero bits, which add as many bytes at the end."""
    joined = bytearray("".join(texts), "ascii")
    if padding:
        ends = np.frombuffer(joined, np.uint8).reshape(len(texts), -1)[:, -padding:]
        if (ends != ord("=")).any():
            raise ValueError("vectors of several lengths")
        ends[:] = ord("A")
    return np.frombuffer(_decode(joined), np.uint8).reshape(len(texts), -1)
