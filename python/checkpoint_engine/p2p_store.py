"""The name under which the field's package reaches Mooncake; the engine's own transport needs none."""

from __future__ import annotations


class P2PStore:
    """Not there: other ranks' memory is read by the engine's transport (UCX), without anything to set up."""

    def __init__(self, *_: object):
        raise ImportError("P2PStore is not part of this package: ParameterServer.update(ranks=...) reads other ranks' memory")
