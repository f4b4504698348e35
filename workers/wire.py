"""What crosses between the daemon and a worker's process, and how it is framed.

A frame is four bytes of length, big-endian, and so many bytes of msgpack.  One `Load` goes down
and is answered by any number of `Say` and one `Ready`; then each `Step` by one `StepDone`, in
order.  `Failed` may come in place of any answer and is the last frame of a process.
"""

import struct
from typing import BinaryIO

import msgspec

from radixd.scheduling.messages import Step, StepDone
from radixd.settings import Settings
from radixd.workers.protocol import WorkerInfo

HEADER = struct.Struct(">I")


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the model and make the memory that the settings name."""

    settings: Settings


class Say(msgspec.Struct, frozen=True, tag=True):
    """Progress of loading, for people."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded; steps are taken from now on."""

    info: WorkerInfo


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot go on and ends."""

    reason: str
    """For people."""
    traceback: str
    """For the log; empty where the reason says it all."""


ToWorker = Load | Step
FromWorker = Say | Ready | StepDone | Failed

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def frame(message: ToWorker | FromWorker) -> bytes:
    """Return *message* as one frame."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def to_worker(body: bytes) -> ToWorker:
    """Decode the body of a frame that the daemon sent; raises `msgspec.DecodeError`."""
    return _to_worker.decode(body)


def from_worker(body: bytes) -> FromWorker:
    """Decode the body of a frame that a worker sent; raises `msgspec.DecodeError`."""
    return _from_worker.decode(body)


def read_frame(stream: BinaryIO) -> bytes | None:
    """Read one frame's body from a blocking *stream*; None at its end, even within a frame."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = stream.read(length)
    return body if len(body) == length else None
