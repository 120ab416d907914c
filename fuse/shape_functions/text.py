"""Operators on strings, and the decoder of images."""

from __future__ import annotations

from collections.abc import Sequence

from fuse.shape_functions.call import Call, Row, Sketch, Unclear, blank
from fuse.shape_functions.elementwise import broadcasted, same


def normalized(call: Call) -> Sequence[Sketch | None]:
    """Stop words go, so how many words are left is not known."""
    dims = call.need(0)
    return ((*dims[:-1], None) if dims else (),)


def split_strings(call: Call) -> Sequence[Sketch | None]:
    """The parts on a new axis, and how many there are of each."""
    dims = call.need(0)
    return (*dims, None), dims


def ngrams(call: Call) -> Sequence[Sketch | None]:
    """One count for each index that an n-gram has."""
    dims, indices = call.need(0), call.integers("ngram_indexes")
    if not dims or not indices:
        raise Unclear
    return ((*dims[:-1], max(indices) + 1),)


def decoded_image(call: Call) -> Sequence[Sketch | None]:
    """[height, width, channels]"""
    grey = call.text("pixel_format", "RGB") == "Grayscale"
    return ((*blank(2), 1 if grey else 3),)


ROWS: dict[str, Row] = {
    "StringConcat": Row(("str",), broadcasted),
    "StringNormalizer": Row(("str",), normalized),
    "StringSplit": Row(("str", "i64"), split_strings),
    "RegexFullMatch": Row(("bool",), same),
    "TfIdfVectorizer": Row(("f32",), ngrams),
    "ImageDecoder": Row(("u8",), decoded_image),
}
