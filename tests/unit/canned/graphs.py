"""The graphs of the canned recordings, written out as torch builds them for the imagined program."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from gradscope.model import Edge, Graph, Node, NodeState, Root, SavedState, SavedTensor, Site

from .source import at

ENCODE = at("model.py", "torch.tanh(self.encoder(images))", "encode")
CRITIC = ("critic", "Linear")
ENCODER = ("net.encoder", "Linear")
ANIMAL = ("net.animal", "Linear")
AGE = ("net.age", "Linear")
TWO_TASK = ("net", "TwoTask")

STATE_OF_NODE = {
    SavedState.SAVED: NodeState.LIVE,
    SavedState.RETAINED: NodeState.RETAINED,
    SavedState.FREED: NodeState.FREED,
}


def tensor(
    name: str, shape: tuple[int, ...], storage: int, state: SavedState = SavedState.SAVED
) -> SavedTensor:
    """A saved f32 tensor on the CPU that fills its storage."""
    return SavedTensor(name, shape, "f32", "cpu", 4 * prod(shape), storage, state=state)


def weight(
    source: str,
    shape: tuple[int, ...],
    storage: int,
    version: int,
    state: SavedState = SavedState.SAVED,
) -> SavedTensor:
    """A parameter's transpose as a Linear saves it for its input's gradient."""
    saved = tensor("mat2", shape, storage, state)
    return replace(saved, version=version, is_parameter=True, source=source)


def op(
    index: int,
    name: str,
    sequence_nr: int,
    site: Site,
    *saved: SavedTensor,
    state: NodeState | None = None,
    module: tuple[str, str] | tuple[None, None] = (None, None),
    after: int = 0,
    freed_by: int | None = None,
    runs: bool = True,
) -> Node:
    """A node of an operation; its state follows from what it saved."""
    state = state or (STATE_OF_NODE[saved[0].state] if saved else NodeState.BUFFERLESS)
    more = {"freed_by": freed_by, "built_after": after, "will_run": runs}
    return Node(index, name, state, sequence_nr, saved, site, *module, **more)  # type: ignore[arg-type]


def leaf(index: int, variable: str, label: str, *, runs: bool = True) -> Node:
    """The AccumulateGrad node of a leaf."""
    node = Node(index, "AccumulateGrad", NodeState.BUFFERLESS, will_run=runs)
    return replace(node, variable=variable, variable_label=label)


def graph(nodes: list[Node], edges: str, *roots: Root) -> Graph:
    """``edges`` is written ``0>1 1>2``."""
    pairs = (edge.split(">") for edge in edges.split())
    return Graph(
        tuple(nodes), tuple(Edge(int(source), int(target)) for source, target in pairs), roots
    )


def critic_graph(forward: Site | None = None) -> Graph:
    """``critic(z.detach()).mean()``: one Linear, its input saved, its weight not (the input needs no gradient)."""
    site = forward or at("train.py", "critic(net.encode(images).detach())", "warm_up")
    nodes = [
        op(0, "MeanBackward0", 5, site),
        op(1, "AddmmBackward0", 4, site, tensor("mat1", (32, 256), 1), module=CRITIC),
        leaf(2, "critic.bias", "f32[1]"),
        op(3, "TBackward0", 3, site, module=CRITIC),
        leaf(4, "critic.weight", "f32[1, 256]"),
    ]
    return graph(nodes, "0>1 1>2 1>3 3>4", Root(0, "loss_d", "f32[]"))


def generator_graph() -> Graph:
    """``net(images)[0].pow(2).mean()``, retained: the saved tensors are kept on purpose."""
    made, head = (
        at("train.py", "net(images)[0].pow(2).mean()", "warm_up"),
        at("model.py", "self.animal(z)", "forward"),
    )
    kept = SavedState.RETAINED
    mat1 = tensor("mat1", (32, 256), 2, kept)
    saved_weight = weight("net.animal.weight", (256, 10), 4, 0, kept)
    nodes = [
        op(0, "MeanBackward0", 13, made),
        op(1, "PowBackward0", 12, made, tensor("self", (32, 10), 1, kept)),
        op(2, "AddmmBackward0", 9, head, mat1, saved_weight, module=ANIMAL),
        leaf(3, "net.animal.bias", "f32[10]"),
        op(4, "TanhBackward0", 7, ENCODE, tensor("result", (32, 256), 2, kept), module=TWO_TASK),
        op(5, "AddmmBackward0", 6, ENCODE, tensor("mat1", (32, 100), 3, kept), module=ENCODER),
        leaf(6, "net.encoder.bias", "f32[256]"),
        op(7, "TBackward0", 5, ENCODE, module=ENCODER),
        leaf(8, "net.encoder.weight", "f32[256, 100]"),
        op(9, "TBackward0", 8, head, module=ANIMAL),
        leaf(10, "net.animal.weight", "f32[10, 256]"),
    ]
    return graph(nodes, "0>1 1>2 2>3 2>4 2>9 4>5 5>6 5>7 7>8 9>10", Root(0, "loss_g", "f32[]"))


def offset_graph() -> Graph:
    """``(net.age.bias + critic.bias).sum()``: nothing saved, so it can be run backward any number of times."""
    site = at("train.py", "(net.age.bias + critic.bias).sum()", "offset")
    nodes = [
        op(0, "SumBackward0", 1, site),
        op(1, "AddBackward0", 0, site),
        leaf(2, "net.age.bias", "f32[1]"),
        leaf(3, "critic.bias", "f32[1]"),
    ]
    return graph(nodes, "0>1 1>2 1>3", Root(0, "shift", "f32[]"))


def penalty_graph() -> Graph:
    """``critic(x).pow(2).sum()`` asked only for ``x``: the weight's and bias's leaves do not run."""
    site = at("train.py", "critic(x).pow(2).sum()", "penalty")
    saved_weight = weight("critic.weight", (256, 1), 3, 1000)
    nodes = [
        op(0, "SumBackward0", 49, site),
        op(1, "PowBackward0", 48, site, tensor("self", (32, 1), 1)),
        op(
            2, "AddmmBackward0", 47, site, tensor("mat1", (32, 256), 2), saved_weight, module=CRITIC
        ),
        leaf(3, "critic.bias", "f32[1]", runs=False),
        leaf(4, "x", "f32[32, 256]"),
        op(5, "TBackward0", 46, site, module=CRITIC, runs=False),
        leaf(6, "critic.weight", "f32[1, 256]", runs=False),
    ]
    return graph(nodes, "0>1 1>2 2>3 2>4 2>5 5>6", Root(0, None, "f32[]"))


def stale_graph() -> Graph:
    """``critic(net.encode(images)).mean()`` after the critic's optimizer has stepped."""
    made = at("train.py", "critic(net.encode(images)).mean()", "late")
    mat1, stale = (
        tensor("mat1", (32, 256), 1),
        weight("critic.weight", (256, 1), 2, 1000, SavedState.STALE),
    )
    late = partial(op, after=2004)
    nodes = [
        late(0, "MeanBackward0", 58, made),
        late(1, "AddmmBackward0", 57, made, mat1, stale, state=NodeState.STALE, module=CRITIC),
        leaf(2, "critic.bias", "f32[1]"),
        late(3, "TanhBackward0", 55, ENCODE, tensor("result", (32, 256), 1)),
        late(4, "AddmmBackward0", 54, ENCODE, tensor("mat1", (32, 100), 3), module=ENCODER),
        leaf(5, "net.encoder.bias", "f32[256]"),
        late(6, "TBackward0", 53, ENCODE, module=ENCODER),
        leaf(7, "net.encoder.weight", "f32[256, 100]"),
        late(8, "TBackward0", 56, made, module=CRITIC),
        leaf(9, "critic.weight", "f32[1, 256]"),
    ]
    return graph(nodes, "0>1 1>2 1>3 1>8 3>4 4>5 4>6 6>7 8>9", Root(0, "loss_fake", "f32[]"))


def two_loss_graph(*, before: bool) -> Graph:
    """``step``: before the first backward what ``loss_animal`` reaches; after it both losses, and what it freed."""
    animal_loss = at("train.py", "F.cross_entropy(net.animal(z), animals)", "step")
    age_loss = at("train.py", "F.mse_loss(net.age(z), ages)", "step")
    held, by = (SavedState.SAVED, None) if before else (SavedState.FREED, 2006)
    target = SavedTensor("target", (32,), "i64", "cpu", 256, 2, state=held)
    loss = (tensor("self", (32, 10), 1, held), target, tensor("total_weight", (), 3, held))
    probabilities, z = tensor("result", (32, 10), 1, held), tensor("result", (32, 256), 4, held)
    head = (
        tensor("mat1", (32, 256), 4, held),
        weight("net.animal.weight", (256, 10), 6, 1000, held),
    )
    pixels = tensor("mat1", (32, 100), 5, held)
    built = partial(op, after=2005)
    freed = partial(built, freed_by=by)
    nodes = [
        freed(0, "NllLossBackward0", 65, animal_loss, *loss, runs=before),
        freed(1, "LogSoftmaxBackward0", 64, animal_loss, probabilities, runs=before),
        freed(2, "AddmmBackward0", 63, animal_loss, *head, module=ANIMAL, runs=before),
        leaf(3, "net.animal.bias", "f32[10]", runs=before),
        freed(4, "TanhBackward0", 61, ENCODE, z),
        freed(5, "AddmmBackward0", 60, ENCODE, pixels, module=ENCODER),
        leaf(6, "net.encoder.bias", "f32[256]"),
        built(7, "TBackward0", 59, ENCODE, module=ENCODER),
        leaf(8, "net.encoder.weight", "f32[256, 100]"),
        built(9, "TBackward0", 62, animal_loss, module=ANIMAL, runs=before),
        leaf(10, "net.animal.weight", "f32[10, 256]", runs=before),
    ]
    edges = "0>1 1>2 2>3 2>4 2>9 4>5 5>6 5>7 7>8 9>10"
    animal_root = Root(0, "loss_animal", "f32[]")
    if before:
        return graph(nodes, edges, animal_root)
    head = (tensor("mat1", (32, 256), 4), weight("net.age.weight", (256, 1), 9, 0))
    ages = (tensor("self", (32, 1), 7), tensor("target", (32, 1), 8))
    nodes += [
        built(11, "MseLossBackward0", 68, age_loss, *ages),
        built(12, "AddmmBackward0", 67, age_loss, *head, module=AGE),
        leaf(13, "net.age.bias", "f32[1]"),
        built(14, "TBackward0", 66, age_loss, module=AGE),
        leaf(15, "net.age.weight", "f32[1, 256]"),
    ]
    edges += " 11>12 12>13 12>4 12>14 14>15"
    return graph(nodes, edges, animal_root, Root(11, "loss_age", "f32[]"))
