"""HTML for objects in a notebook: short text, always escaped, and embedded images."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, UInt8

_MAX_CHARACTERS = 300
_MAX_PIXELS = 160

#: Nine colours of viridis from dark to light; distinguishable with colour blindness.
_VIRIDIS = np.array(
    [
        (68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
        (170, 220, 50), (253, 231, 37),
    ]
)  # fmt: skip
_MISSING = (200, 200, 200)


def panel(title: str, lines: Sequence[str], pictures: Sequence[str] = ()) -> str:
    """A heading, lines of text, and images side by side."""
    texts = [f"<strong>{_escaped(title)}</strong>", *(f"<div>{_escaped(line)}</div>" for line in lines)]
    shown = "".join(pictures)
    return (
        '<div style="font-family:system-ui,sans-serif;font-size:13px;line-height:1.45">'
        f'{"".join(texts)}<div style="display:flex;flex-wrap:wrap;gap:8px;margin-top:6px">{shown}</div></div>'
    )


def heatmap(values: Float[np.ndarray, "row column"], caption: str, width: int = 96) -> str:
    """Draw a matrix as an image; non-finite entries are grey."""
    sampled = values[:: -(-values.shape[0] // _MAX_PIXELS), :: -(-values.shape[1] // _MAX_PIXELS)]
    finite = sampled[np.isfinite(sampled)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    position = (np.nan_to_num(sampled, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1) * 8
    below = np.minimum(position.astype(int), 7)
    share = (position - below)[..., None]
    pixels = _VIRIDIS[below] * (1 - share) + _VIRIDIS[below + 1] * share
    pixels[~np.isfinite(sampled)] = _MISSING
    return _figure(np.rint(pixels).astype(np.uint8), caption, width, width)


def icicle(labels: Int[np.ndarray, "level leaf"], caption: str, width: int = 240) -> str:
    """Draw the levels of a tree as rows, leaves in display order; adjacent folders differ in shade."""
    steps = np.cumsum(np.diff(labels, axis=1, prepend=labels[:, :1]) != 0, axis=1)
    shade = np.where(steps % 2, 0.45, 0.8)[..., None]
    hue = _VIRIDIS[1 + (6 * np.arange(labels.shape[1]) // labels.shape[1])][None]
    pixels = (255 - (255 - hue) * shade)[:, :: -(-labels.shape[1] // 1000)]
    return _figure(np.rint(pixels).astype(np.uint8), caption, width, 14 * len(labels))


def _figure(pixels: UInt8[np.ndarray, "row column 3"], caption: str, width: int, height: int) -> str:
    source = base64.b64encode(png(pixels)).decode("ascii")
    text = _escaped(caption)
    return (
        f'<figure style="margin:0"><img alt="{text}" src="data:image/png;base64,{source}" '
        f'style="width:{width}px;height:{height}px;image-rendering:pixelated">'
        f'<figcaption style="max-width:{width}px">{text}</figcaption></figure>'
    )


def png(pixels: UInt8[np.ndarray, "row column 3"]) -> bytes:
    """Encode RGB pixels as a PNG file."""
    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)  # no filter
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _escaped(text: str) -> str:
    shown = text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…"
    return html.escape(shown.encode("utf-8", "backslashreplace").decode())
