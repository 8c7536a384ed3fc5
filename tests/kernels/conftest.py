"""Fixture: a template's kernel, run natively between forbidden pages, against the definition it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from burnish.kernels.task import Choice, KernelTask
from burnish.kernels.template import Template
from burnish.loops.evaluate import evaluate
from burnish.loops.layout import layout
from burnish.loops.numeric import numpy_dtype
from burnish.loops.tensor import Tensor, stages
from burnish.loops.verify import verify
from burnish.machines.target import host

Check = Callable[..., Choice]


@pytest.fixture
def check(native: Callable[..., dict[str, np.ndarray]]) -> Check:
    """``check(template, op, outputs, constants, ...)`` fails unless the template's kernel computes the outputs.

    Returns the choice made: the template's default, with ``choice`` on top. ``cores``: of the machine it is made for.
    """

    def run(
        template: Template,
        op: str,
        outputs: Sequence[Tensor],
        constants: Sequence[str] = (),
        layouts: Mapping[str, str] | None = None,
        choice: Choice | None = None,
        rtol: float = 2e-5,
        threads: int = 2,
        edge: str = "end",
        packed_at_call: Sequence[str] = (),
        cores: int | None = None,
    ) -> Choice:
        inputs = tuple(sorted((t for t in stages(outputs) if t.body is None), key=lambda t: t.name))
        tags = {name: layout(tag) for name, tag in (layouts or {}).items()}
        task = KernelTask("kernel", inputs, tuple(outputs), op, tags, frozenset(constants), frozenset(packed_at_call))
        machine = host() if cores is None else replace(host(), cores=cores)
        assert template.match(task, machine)
        chosen = {**template.on(task, machine).space.default, **(choice or {})}
        made = template.on(task, machine).apply(chosen)
        verify(made.program)
        arrangements = dict(tags)
        for name, args in made.trace:
            if name == "transform_layout" and args[0] in {t.name for t in (*inputs, *outputs)}:
                arrangements[args[0]] = layout(args[1])
        rng = np.random.default_rng(0)
        feeds = {t.name: rng.standard_normal(t.shape).astype(numpy_dtype(t.dtype)) for t in inputs}
        packed = {n: arrangements[n].pack(a) if n in arrangements else a for n, a in feeds.items()}
        for name, tag in tags.items():  # what lies in the padding of an activation is anybody's guess
            if name in packed:
                packed[name][tag.pack(np.ones(feeds[name].shape)) == 0] = np.nan
        found = native(made.program, packed, threads=threads, edge=edge)
        for t, expected in zip(outputs, evaluate(outputs, feeds), strict=True):
            got = arrangements[t.name].unpack(found[t.name], t.shape) if t.name in arrangements else found[t.name]
            scale = max(float(np.abs(expected).max()), 1e-30)
            np.testing.assert_allclose(got, expected, rtol=0, atol=rtol * scale, err_msg=str(made.program))
        return chosen

    return run
