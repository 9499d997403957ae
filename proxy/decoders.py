"""Content codings that the standard library can't decode. Node's fetch asks for Brotli first (RFC 7932)."""

from __future__ import annotations

from collections.abc import Mapping

import brotli

from proxy.core.classify import DECODERS, Decoder


def unbrotlied(body: bytes, bytes_max: int) -> bytes | None:
    """The decoded body; None where it is broken, cut short, or would be larger than `bytes_max`."""
    decompressor = brotli.Decompressor()
    found = bytearray()
    data = body
    try:
        while not decompressor.is_finished():
            piece = decompressor.process(data, output_buffer_limit=bytes_max + 1 - len(found))
            found += piece
            if len(found) > bytes_max or (not piece and decompressor.can_accept_more_data()):
                return None
            data = b""
    except brotli.error:
        return None
    return bytes(found)


ALL_DECODERS: Mapping[str, Decoder] = {**DECODERS, "br": unbrotlied}
