"""Hand-written recordings of one imagined run, on which every view is tested: they never change by themselves.

``canned_recording()`` has something of everything that a view must show; the other three are its plain neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

from gradscope.model import (
    BackwardCall,
    Certainty,
    Edit,
    Finding,
    Fix,
    FixKind,
    Header,
    Outcome,
    Recording,
    Related,
    Root,
    Sample,
    Severity,
    Summary,
)

from .graphs import (
    critic_graph,
    generator_graph,
    offset_graph,
    penalty_graph,
    stale_graph,
    two_loss_graph,
)
from .source import SOURCES, at

SECOND_TIME = (
    "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after they "
    "have already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
    "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time or if you "
    "need to access saved tensors after calling backward."
)
MODIFIED = (
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: "
    "[torch.FloatTensor [256, 1]], which is output 0 of TBackward0, is at version 1001; expected version 1000 instead. "
    "Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
    "torch.autograd.set_detect_anomaly(True)."
)

CRITIC, GENERATOR, OFFSET, PENALTY, STALE, TWO_LOSS, ANIMAL = 1, 2, 3, 4, 5, 6, 7
"""Numbers of the stored graphs."""

GRAPHS = {
    CRITIC: critic_graph(),
    GENERATOR: generator_graph(),
    OFFSET: offset_graph(),
    PENALTY: penalty_graph(),
    STALE: stale_graph(),
    ANIMAL: two_loss_graph(before=True),
    TWO_LOSS: two_loss_graph(before=False),
}


def _calls() -> tuple[BackwardCall, ...]:
    """Two folded rows of the warm-up, then six single calls, two of which the engine refused."""
    scalar = "f32[]"
    critic = BackwardCall(
        number=1, last_number=1999, count=1000, kind="backward", site=at("train.py", "loss_d.backward()", "warm_up"),
        roots=(Root(0, "loss_d", scalar),), graph=CRITIC, nodes=5, nodes_run=5, saved_tensors=1, saved_bytes=32_768,
        freed_tensors=1, freed_bytes=32_768, returned_bytes=32_768, live_bytes=0, peak_bytes=78_336, nodes_built=9,
        nodes_destroyed=14, started=0.021, ended=2.0194,
    )  # fmt: skip
    generator = BackwardCall(
        number=2, last_number=2000, count=1000, kind="backward",
        site=at("train.py", "loss_g.backward(retain_graph=True)", "warm_up"), roots=(Root(0, "loss_g", scalar),),
        retain_graph=True, graph=GENERATOR, nodes=11, nodes_run=11, saved_tensors=4, saved_bytes=46_848,
        retained_bytes=46_848, live_bytes=46_848, peak_bytes=46_848, nodes_built=11, nodes_destroyed=5,
        started=0.022, ended=2.0207,
    )  # fmt: skip
    outer = BackwardCall(
        number=2001, last_number=2001, kind="backward", site=at("train.py", "loss_c.backward()", "checkpointed"),
        roots=(Root(0, "loss_c", scalar),), nodes=3, nodes_run=3, saved_tensors=1, saved_bytes=32_768, freed_tensors=1,
        freed_bytes=32_768, live_bytes=0, peak_bytes=78_336, nodes_built=3, nodes_destroyed=0,
        started=2.101, ended=2.108,
    )  # fmt: skip
    nested = BackwardCall(
        number=2002, last_number=2002, kind="backward", site=at("train.py", "loss_c.backward()", "checkpointed"),
        roots=(Root(0, None, "f32[32, 256]"),), nodes=5, nodes_run=5, saved_tensors=2, saved_bytes=45_568,
        freed_tensors=2, freed_bytes=45_568, returned_bytes=32_768, live_bytes=32_768, peak_bytes=78_336, nodes_built=5,
        nodes_destroyed=0, parent=2001, started=2.103, ended=2.106,
    )  # fmt: skip
    grad = BackwardCall(
        number=2003, last_number=2003, kind="grad",
        site=at("train.py", "torch.autograd.grad(critic(x).pow(2).sum(), [x], create_graph=True)", "penalty"),
        roots=(Root(0, None, scalar),), retain_graph=True, create_graph=True, inputs=("x",), graph=PENALTY, nodes=7,
        nodes_run=4, saved_tensors=2, saved_bytes=32_896, retained_bytes=32_896, live_bytes=33_024, peak_bytes=33_024,
        nodes_built=12, nodes_destroyed=8, started=2.302, ended=2.303,
    )  # fmt: skip
    thread = BackwardCall(
        number=2004, last_number=2004, kind="backward", site=at("train.py", "shift.backward()", "offset"),
        roots=(Root(0, "shift", scalar),), graph=OFFSET, nodes=4, nodes_run=4, live_bytes=33_024, peak_bytes=33_024,
        nodes_built=4, thread="worker-1", started=2.404, ended=2.4043,
    )  # fmt: skip
    stale = BackwardCall(
        number=2005, last_number=2005, kind="backward", site=at("train.py", "loss_fake.backward()", "late"),
        roots=(Root(0, "loss_fake", scalar),), graph=STALE, nodes=10, saved_tensors=3, saved_bytes=45_568,
        retained_bytes=45_568, live_bytes=78_592, peak_bytes=78_592, nodes_built=10, oldest_generation=2004,
        started=2.511, ended=2.512, exception=MODIFIED,
    )  # fmt: skip
    animal = BackwardCall(
        number=2006, last_number=2006, kind="backward", site=at("train.py", "loss_animal.backward()", "step"),
        roots=(Root(0, "loss_animal", scalar),), graph=ANIMAL, nodes=11, nodes_run=11, saved_tensors=7,
        saved_bytes=47_108, freed_tensors=7, freed_bytes=14_340, returned_bytes=1_284, live_bytes=111_616,
        peak_bytes=125_956, nodes_built=16, nodes_destroyed=9, started=2.631, ended=2.634,
    )  # fmt: skip
    age = BackwardCall(
        number=2007, last_number=2007, kind="backward", site=at("train.py", "loss_age.backward()", "step"),
        roots=(Root(11, "loss_age", scalar),), graph=TWO_LOSS, nodes=10, saved_tensors=3, saved_bytes=33_024,
        retained_bytes=33_024, live_bytes=111_616, peak_bytes=111_616, oldest_generation=2005,
        started=2.641, ended=2.642, exception=SECOND_TIME,
    )  # fmt: skip
    return critic, generator, outer, nested, grad, thread, stale, animal, age


def _findings() -> tuple[Finding, ...]:
    """In the order in which they were made: advice, warning, caught error, predicted warning, error."""
    retained = Finding(
        code="GS303", name="retain-graph-not-needed", severity=Severity.ADVICE, certainty=Certainty.OBSERVED,
        message="retain_graph=True kept a graph that no later backward used",
        site=at("train.py", "loss_g.backward(retain_graph=True)", "warm_up"),
        label="keeps 45.8 KiB of saved tensors until `loss_g` is rebound", nodes=("PowBackward0", "AddmmBackward0"),
        bytes=46_848, backward_call=4, count=999, graph=GENERATOR, graph_nodes=(1, 2, 4, 6),
        fix=Fix(
            FixKind.REMOVE_RETAIN, "drop retain_graph=True: `loss_g.backward()` frees 45.8 KiB sooner",
            (Edit("train.py", at("train.py", "loss_g.backward(retain_graph=True)").line, "        loss_g.backward()"),),
        ),
    )  # fmt: skip
    append = at("train.py", "history.append(loss_v)", "validate")
    kept = Finding(
        code="GS302", name="graph-kept-alive", severity=Severity.WARNING, certainty=Certainty.OBSERVED,
        message="`history` keeps the graphs of 20 iterations alive", site=append,
        label="each adds 11 nodes and 46.5 KiB of saved tensors",
        related=(
            Related("created", at("train.py", "F.cross_entropy(net(images)[0], animals)", "validate"),
                    "the graphs were built here, 20 so far"),
            Related("held_by", append, "`history[0]` to `history[19]` hold them"),
        ),
        nodes=("NllLossBackward0", "LogSoftmaxBackward0", "AddmmBackward0", "TanhBackward0"),
        saved=("self f32[32, 10]", "result f32[32, 256]", "mat1 f32[32, 100]"), bytes=952_320, backward_call=2000,
        count=20,
        fix=Fix(FixKind.ITEM, "store the number: `history.append(loss_v.item())`",
                (Edit("train.py", append.line, "    history.append(loss_v.item())"),)),
    )  # fmt: skip
    stale = Finding(
        code="GS201", name="saved-tensor-modified-in-place", severity=Severity.ERROR, certainty=Certainty.CERTAIN,
        message="backward through a saved tensor that was modified in place",
        site=at("train.py", "loss_fake.backward()", "late"),
        label="needs `critic.weight` at version 1000, it is at version 1001",
        related=(
            Related("created", at("train.py", "critic(net.encode(images))", "late"),
                    "AddmmBackward0 saved `critic.weight` here"),
            Related("modified_by", at("train.py", "critic_optimizer.step()", "late"),
                    "optimizer.step() modified `critic.weight`"),
        ),
        nodes=("AddmmBackward0",), saved=("mat2 f32[256, 1]",), bytes=1_024, backward_call=2005,
        graph=STALE, graph_nodes=(1,),
        fix=Fix(FixKind.REORDER, "call loss_fake.backward() before critic_optimizer.step()"),
    )  # fmt: skip
    built = at("train.py", "net.encode(images)", "step")
    animal, age = (
        at("train.py", f"{name}.backward()", "step") for name in ("loss_animal", "loss_age")
    )
    summed = Fix(
        FixKind.SUM_LOSSES, "add the losses and call backward once: (loss_animal + loss_age).backward()",
        (Edit("train.py", animal.line, "    (loss_animal + loss_age).backward()"), Edit("train.py", age.line, "")),
    )  # fmt: skip
    predicted = Finding(
        code="GS102", name="shared-graph-about-to-be-freed", severity=Severity.WARNING, certainty=Certainty.PREDICTED,
        message="this backward frees a graph that `loss_age` still needs", site=animal,
        label="frees 2 nodes that `loss_age` shares",
        related=(
            Related("created", built, "the shared part was built here, 44.5 KiB saved"),
            Related("next_read", age, "`loss_age` is run backward here"),
            Related("held_by", at("train.py", "loss_age = F.mse_loss", "step"), "`loss_age` keeps the graph alive"),
        ),
        nodes=("TanhBackward0", "AddmmBackward0"), saved=("result f32[32, 256]", "mat1 f32[32, 100]"), bytes=45_568,
        backward_call=2006, graph=ANIMAL, graph_nodes=(4, 5), fix=summed,
    )  # fmt: skip
    freed = Finding(
        code="GS101", name="backward-through-freed-graph", severity=Severity.ERROR, certainty=Certainty.CERTAIN,
        message="backward through a freed graph", site=age, label="needs 2 saved tensors of 2 nodes, already freed",
        related=(
            Related("created", built, "the shared part was built here: TanhBackward0, AddmmBackward0, 44.5 KiB saved"),
            Related("freed_by", animal, "freed by backward call 2006, which ran without retain_graph=True"),
            Related("failing_node", at("model.py", "torch.tanh(self.encoder(images))", "encode"),
                    "the backward stops at TanhBackward0"),
        ),
        nodes=("TanhBackward0", "AddmmBackward0"), saved=("result f32[32, 256]", "mat1 f32[32, 100]"), bytes=45_568,
        backward_call=2007, graph=TWO_LOSS, graph_nodes=(4, 5), fix=summed,
    )  # fmt: skip
    return retained, kept, stale, predicted, freed


def _timeline() -> tuple[Sample, ...]:
    """The warm-up's saw-tooth, thinned, then the climb of ``history`` and the last steps."""
    warm_up = [
        Sample(round(0.02 + 0.001 * i, 3), 0 if i % 2 else 46_848, 12_800, min(2000, 1 + i))
        for i in range(0, 2000, 25)
    ]
    climb = [Sample(round(2.02 + 0.003 * i, 3), 47_616 * i, 12_800, 2000) for i in range(1, 21)]
    last = [
        Sample(2.101, 1_030_656, 12_800, 2001),
        Sample(2.108, 952_320, 45_568, 2002),
        Sample(2.303, 985_344, 12_800, 2003),
        Sample(2.512, 1_030_912, 12_800, 2005),
        Sample(2.634, 1_063_936, 25_856, 2006),
        Sample(2.642, 1_063_936, 25_856, 2007),
    ]
    return (*warm_up, *climb, *last)


def canned_recording() -> Recording:
    """Everything at once: a run that warmed up for 2,000 calls and then failed with the two-loss error."""
    return Recording(
        header=Header(
            gradscope="0.1.0", torch="2.13.0", python="3.11.9", script="train.py", argv=("--epochs", "1"),
            started=1_750_000_000.0,
        ),
        outcome=Outcome(exit_status=1, exception=SECOND_TIME, finished=True, ended=1_750_000_002.7),
        summary=Summary(
            backward_calls=2007, nodes=22_292, nodes_destroyed=22_058, saved_tensors=6_171, saved_bytes=80_777_000,
            freed_tensors=1_010, freed_bytes=32_861_956, returned_bytes=32_803_332, dropped_tensors=4_995,
            dropped_bytes=46_801_152, live_bytes=1_063_936, peak_saved_bytes=1_079_556,
            notes=("a parameter came back from ctx.saved_tensors as a plain Tensor; --no-hooks keeps its identity",),
        ),
        calls=_calls(), graphs=dict(GRAPHS), findings=_findings(), timeline=_timeline(), sources=dict(SOURCES),
    )  # fmt: skip


def unfinished_recording() -> Recording:
    """The same run killed during the warm-up: no outcome, and a summary of what was seen until then."""
    whole = canned_recording()
    critic, generator = whole.calls[:2]
    return replace(
        whole,
        outcome=Outcome(),
        summary=Summary(
            backward_calls=801, nodes=8_818, nodes_destroyed=8_800, saved_tensors=2_406, saved_bytes=31_879_168,
            freed_tensors=401, freed_bytes=13_139_968, returned_bytes=13_139_968, dropped_tensors=2_000,
            dropped_bytes=18_739_200, peak_saved_bytes=78_336,
        ),
        calls=(
            replace(critic, count=401, last_number=801, ended=0.8214),
            replace(generator, count=400, last_number=800, ended=0.8207),
        ),
        graphs={n: whole.graphs[n] for n in (CRITIC, GENERATOR)},
        findings=tuple(replace(each, count=399) for each in whole.findings if each.code == "GS303"),
        timeline=whole.timeline[:33],
    )  # fmt: skip


def empty_recording() -> Recording:
    """A script that never called backward."""
    return Recording(
        header=Header(
            gradscope="0.1.0",
            torch="2.13.0",
            python="3.11.9",
            script="hello.py",
            started=1_750_000_000.0,
        ),
        outcome=Outcome(exit_status=0, finished=True, ended=1_750_000_000.1),
    )


def clean_recording() -> Recording:
    """A healthy training loop of 500 iterations: one folded row, one graph, nothing found."""
    whole = canned_recording()
    source = dedent(
        """\
        for step in range(500):
            loss = critic(images).mean()
            loss.backward()
            optimizer.step()
        """
    )
    sources = {"clean.py": source}
    call = replace(
        whole.calls[0], site=at("clean.py", "loss.backward()", sources=sources), roots=(Root(0, "loss", "f32[]"),),
        last_number=500, count=500, nodes_built=5, nodes_destroyed=5, peak_bytes=32_768,
        ended=0.9994,
    )  # fmt: skip
    forward = at("clean.py", "critic(images)", sources=sources)
    return Recording(
        header=replace(whole.header, script="clean.py", argv=()),
        outcome=Outcome(exit_status=0, finished=True, ended=1_750_000_001.0),
        summary=Summary(
            backward_calls=500, nodes=2_500, nodes_destroyed=2_500, saved_tensors=500, saved_bytes=16_384_000,
            freed_tensors=500, freed_bytes=16_384_000, peak_saved_bytes=32_768,
        ),
        calls=(call,), graphs={CRITIC: critic_graph(forward)},
        timeline=tuple(Sample(round(i / 500, 3), 32_768 * (1 - i % 2), 0, i) for i in range(1, 500, 10)),
        sources=sources,
    )  # fmt: skip
