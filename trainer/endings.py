"""How a run ends: the exit statuses, and what brings each about. Imports no torch, so that SIGTERM is heard at once."""

from __future__ import annotations

import signal
from types import FrameType

FINISHED = 0
DIVERGED = 1
MISTAKEN = 2
# What a shell reports for a process that ended by SIGTERM. torchrun and the kubelet take it for a failure, so that a
# run which was interrupted is never reported as one that finished, and the next start resumes it.
INTERRUPTED = 128 + signal.SIGTERM


class InterruptedRunError(Exception):
    """All ranks have agreed to end, because one of them was asked to."""


class NonFiniteError(Exception):
    """A loss or gradient that is no number. Nothing was updated with it."""


class StopSignal:
    """Whether this process was asked to end. SIGTERM only sets the flag; all ranks act on it together."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002, the signature of a handler
        self.is_set = True
