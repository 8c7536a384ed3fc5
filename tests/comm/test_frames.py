"""Frames: messages come out of a byte stream as they went in, however it is cut; other bytes are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from burnish.comm.frames import HEADER, FrameReader, head, payload
from burnish.comm.messages import ArrayMessage
from burnish.comm.protocol import DTYPES
from burnish.errors import WorkerError

SHAPES = arrays.array_shapes(min_dims=0, min_side=0)


def arrays_of(dtype: np.dtype) -> st.SearchStrategy[np.ndarray]:
    """Arrays of a dtype; of bfloat16, which Hypothesis does not know, any bits."""
    return (
        arrays.arrays("u2", SHAPES).map(lambda a: a.view(dtype)) if dtype.kind == "V" else arrays.arrays(dtype, SHAPES)
    )


ANY_ARRAY = st.sampled_from(DTYPES).flatmap(arrays_of)
MESSAGES = st.lists(
    st.builds(
        ArrayMessage, st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), st.text(max_size=40), ANY_ARRAY
    ),
    max_size=5,
)


def feed(reader: FrameReader, stream: bytes, sizes: list[int]) -> list[ArrayMessage]:
    """Gives a reader the stream in pieces of at most the given sizes, in turn."""
    found: list[ArrayMessage] = []
    at = turn = 0
    while at < len(stream):
        room = reader.room()
        count = min(len(room), len(stream) - at, sizes[turn % len(sizes)])
        room[:count] = stream[at : at + count]
        found += reader.take(count)
        at, turn = at + count, turn + 1
    return found


@given(MESSAGES, st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_messages_arrive_as_they_were_sent(messages: list[ArrayMessage], sizes: list[int]) -> None:
    stream = b"".join(head(message) + bytes(payload(message.array)) for message in messages)
    found = feed(FrameReader(1), stream, sizes)
    assert len(found) == len(messages)
    for one, other in zip(found, messages, strict=True):
        assert (one.channel, one.tag, one.what) == (other.channel, other.tag, other.what)
        assert (one.array.dtype, one.array.shape) == (other.array.dtype, other.array.shape)
        assert one.array.tobytes() == other.array.tobytes()


@pytest.mark.parametrize("size", [70_000, 1_000_000])
def test_arrays_larger_than_the_buffer(size: int) -> None:
    messages = [ArrayMessage(0, n, "large", np.full(size, n, np.uint8)) for n in range(3)]
    stream = b"".join(head(message) + bytes(payload(message.array)) for message in messages)
    assert [int(message.array.sum()) for message in feed(FrameReader(1), stream, [50_000])] == [0, size, 2 * size]


@given(st.integers(0, HEADER.size + 15), st.integers(0, 255))
def test_an_altered_header_is_refused_or_changes_words_only(at: int, byte: int) -> None:
    message = ArrayMessage(2, 3, "what", np.arange(3))
    stream = bytearray(head(message) + bytes(payload(message.array)))
    same = stream[at] == byte
    stream[at] = byte
    try:
        found = feed(FrameReader(4), bytes(stream), [1000])
    except WorkerError as error:
        assert error.rank == 4
        assert not same
    else:
        assert not found or found[0].array.nbytes == message.array.nbytes
