"""The picture of the way of a gradient: which boxes, in which fields, with which arrows, of real programs."""

from __future__ import annotations

import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gradscope.fixing.gradient_paths import Answer, Arrival, Paths
from gradscope.fixing.origins import EngineUse
from gradscope.fixing.runs import Bounds, Program
from gradscope.launch.interpreter import header_of
from gradscope.render.pictures import Picture
from gradscope.render.pictures.why import draw_way, picture_of
from tests.command import started

BIRTHS = Path(__file__).parents[1] / "cases" / "births"

TWO_LOSSES = """\
import torch
from torch import nn

gen, dis = nn.Linear(3, 4), nn.Linear(4, 1)
g_optimizer = torch.optim.SGD(gen.parameters(), 0.1)
d_optimizer = torch.optim.SGD(dis.parameters(), 0.1)
for _ in range(4):
    fake = gen(torch.randn(8, 3))
    d_loss = dis(fake.detach()).mean() - dis(torch.randn(8, 4)).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    g_loss = -dis(fake).mean()
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
"""

SEVERAL_CUTS = """\
import torch
from torch import nn

encoder, head = nn.Linear(4, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], 0.1)
for _ in range(4):
    x = torch.randn(8, 4)
    code = encoder(x).detach()
    with torch.no_grad():
        mean = encoder(x).mean()
    loss = (head(code) - mean).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

DEEP = (
    """\
import torch
from torch import nn

layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(20))
optimizer = torch.optim.SGD(layers.parameters(), 0.1)
for _ in range(4):
    x = torch.randn(8, 4)
"""
    + "".join(f"    x{n} = layers[{n}](x{n - 1 or ''})\n" for n in range(1, 20))
    + """\
    loss = x19.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)

PICTURES: dict[str, tuple[str, str | int, str]] = {
    "a cut beside a way that arrives": (
        "advantage_actor_critic",
        "agent.critic",
        """
        agent.critic.* (2 parameters): no gradient arrives in 2 steps; optimizer.step() skips them
        0 loss.backward() | line 73 (a gradient arrives)
        1 loss | line 71 (a gradient arrives)
        2 critic_loss | line 70 (values without a graph)
        3 actor_loss | line 69 (a gradient arrives)
        4 advantage | line 68 (values without a graph)
        5 cut at line 68: detach | values.detach()
        6 … 5 lines | lines 39 to 53 (a gradient arrives)
        7 torch.stack(values) | line 53 (a graph that no gradient enters)
        8 self.critic(h).squeeze(-1) | line 39 (a graph that no gradient enters)
        9 h = self.body(obs) | line 38 (a gradient arrives)
        10 agent.critic.* (2 parameters) | no gradient arrives in 2 steps; | optimizer.step() skips them (a graph that no gradient enters)
        11 agent.body.*, agent.actor.* | (4 parameters) | a gradient arrives in 2 of 2 | steps; optimizer.step() uses them (a gradient arrives)
        0>1 1>2 1>3 1>6 2>4 3>4 3>6 4>5 5>7 6>9 6>11 7>8 8>10 9>11
        """,
    ),
    "two losses, one of them cut": (
        "two losses",
        "gen",
        """
        gen.* (2 parameters): a gradient arrives in 2 of 2 steps; g_optimizer.step() uses them
        0 d_loss.backward() | line 11 (a gradient arrives)
        1 g_loss.backward() | line 15 (a gradient arrives)
        2 g_loss | line 13 (a gradient arrives)
        3 d_loss | line 9 (a gradient arrives)
        4 cut at line 9: detach | fake.detach()
        5 fake | line 8 (a gradient arrives)
        6 gen.* (2 parameters) | a gradient arrives in 2 of 2 | steps; g_optimizer.step() uses | them (a gradient arrives)
        0>3 1>2 2>5 3>4 4>5 5>6
        """,
    ),
    "several cuts": (
        "several cuts",
        "encoder",
        """
        encoder.* (2 parameters): no gradient arrives in 2 steps; optimizer.step() skips them
        0 loss.backward() | line 13 (a gradient arrives)
        1 loss | line 11 (a gradient arrives)
        2 cut at line 8: detach and 1 more cut | encoder(x).detach()
        3 encoder(x) | line 8 (a graph that no gradient enters)
        4 encoder.* (2 parameters) | no gradient arrives in 2 steps; | optimizer.step() skips them (a graph that no gradient enters)
        5 head.* (2 parameters) | a gradient arrives in 2 of 2 | steps; optimizer.step() uses them (a gradient arrives)
        0>1 1>2 1>5 2>3 3>4
        """,
    ),
    "grad mode is off": (
        "eval_helper_training",
        49,
        """
        the call at eval_helper_training.py:49 starts from what has no graph
        0 loss.backward() | line 49 (values without a graph)
        1 self.criterion(pred, y) | line 20 (values without a graph)
        2 cut at line 19: inference_mode | self.model(x) | line 18: grad mode is off from | here on
        3 model.* (6 parameters) | no gradient arrives in 1 call (a graph that no gradient enters)
        0>1 1>2 2>3
        """,
    ),
    "numbers left torch and came back": (
        "multitask_average",
        41,
        """
        the call at multitask_average.py:41 starts from what has no graph
        0 total.backward() | line 41 (values without a graph)
        1 total | line 39 (values without a graph)
        2 cut at line 38: item | task_loss.item() | line 39: the numbers came back | here, without a graph
        3 F.smooth_l1_loss(outputs[task], y… | line 37 (a graph that no gradient enters)
        4 head(h) | line 19 (a graph that no gradient enters)
        5 self.trunk(x) | line 18 (a graph that no gradient enters)
        6 net.* (8 parameters) | no gradient arrives in 1 call (a graph that no gradient enters)
        0>1 1>2 2>3 3>4 4>5 4>6 5>6
        """,
    ),
    "frozen parameters": (
        "frozen_backbone_probe",
        "model.encoder.embed",
        """
        model.encoder.embed.weight f32[50, 24]: frozen at line 36
        0 loss.backward() | line 54 (a gradient arrives)
        1 loss | line 52 (a gradient arrives)
        2 self.head(self.encoder(ids)) | line 32 (a gradient arrives)
        3 h.mean(dim=1) | line 22 (a gradient arrives)
        4 h = h + layer(h) | line 21 (a gradient arrives)
        5 h = self.embed(ids) | line 19 (values without a graph)
        6 model.encoder.embed.weight f32[50, | 24] | frozen at line 36 (values without a graph)
        7 model.encoder.layers.2.*, | model.head.* (6 parameters) | a gradient arrives in 2 of 2 | steps; optimizer.step() uses them (a gradient arrives)
        0>1 1>2 2>3 2>7 3>4 4>5 4>7 5>6
        """,
    ),
    "no optimizer has them": (
        "transfer_new_head",
        "model.fc",
        """
        model.fc.* (2 parameters): a gradient arrives in 2 of 2 calls, and no optimizer has them
        0 loss.backward() | line 45 (a gradient arrives)
        1 loss | line 43 (a gradient arrives)
        2 self.fc(h.mean(dim=(2, 3))) | line 20 (a gradient arrives)
        3 model.fc.* (2 parameters) | a gradient arrives in 2 of 2 | calls, and no optimizer has them (a gradient arrives)
        0>1 1>2 2>3
        """,
    ),
    "nothing was computed from it": (
        "char_transformer",
        "gpt.pos_emb",
        """
        gpt.pos_emb.weight f32[16, 32]: nothing was computed from it in 2 steps
        0 loss.backward() | line 64 (a gradient arrives)
        1 F.cross_entropy(logits.flatten(0,… | line 44 (a gradient arrives)
        2 logits | line 41 (a gradient arrives)
        3 x + self.mlp(self.ln2(x)) | line 25 (a gradient arrives)
        4 x | line 24 (a gradient arrives)
        5 y | line 23 (a gradient arrives)
        6 q, k, v | line 22 (a gradient arrives)
        7 x = self.tok_emb(idx) | line 38 (a gradient arrives)
        8 gpt.pos_emb.weight f32[16, 32] | nothing was computed from it in 2 | steps (a graph that no gradient enters)
        9 gpt.tok_emb.*, gpt.layers.*, | gpt.ln_f.* and 1 more | (28 parameters) | a gradient arrives in 2 of 2 | steps; optimizer.step() uses them (a gradient arrives)
        0>1 1>2 2>3 2>9 3>4 3>9 4>5 4>7 4>9 5>6 6>7 6>9 7>9
        """,
    ),
    "a checkpoint without a gradient": (
        "lora_checkpoint",
        64,
        """
        the call at lora_checkpoint.py:64 starts from what has no graph
        0 loss.backward() | line 64 (values without a graph)
        1 loss | line 62 (values without a graph)
        2 self.norm_f(h) @ self.embed_token… | line 49 (values without a graph)
        3 cut at line 46: checkpoint | checkpoint(block, h, use_reentran… | a reentrant checkpoint is part of | the graph only if an input | requires grad
        4 model.blocks.*.qkv.lora_A, | model.blocks.*.qkv.lora_B, | model.blocks.*.proj.lora_A and 1 | more (12 parameters) | no gradient arrives in 1 call (a graph that no gradient enters)
        0>1 1>2 2>3 3>4
        """,
    ),
    "a gradient arrives over many lines": (
        "deep",
        "layers.1",
        """
        layers.1.* (2 parameters): a gradient arrives in 2 of 2 steps; optimizer.step() uses them
        0 loss.backward() | line 29 (a gradient arrives)
        1 loss = x19.pow(2).mean() | line 27 (a gradient arrives)
        2 x19 = layers[19](x18) | line 26 (a gradient arrives)
        3 x18 = layers[18](x17) | line 25 (a gradient arrives)
        4 x17 = layers[17](x16) | line 24 (a gradient arrives)
        5 x16 = layers[16](x15) | line 23 (a gradient arrives)
        6 … 11 lines | lines 12 to 22 (a gradient arrives)
        7 x4 = layers[4](x3) | line 11 (a gradient arrives)
        8 x3 = layers[3](x2) | line 10 (a gradient arrives)
        9 x2 = layers[2](x1) | line 9 (a gradient arrives)
        10 x1 = layers[1](x) | line 8 (a gradient arrives)
        11 layers.1.* (2 parameters) | a gradient arrives in 2 of 2 | steps; optimizer.step() uses them (a gradient arrives)
        0>1 1>2 2>3 3>4 4>5 5>6 6>7 7>8 8>9 9>10 10>11
        """,
    ),
}


def program_of(name: str) -> str:
    texts = {"two losses": TWO_LOSSES, "several cuts": SEVERAL_CUTS, "deep": DEEP}
    return texts.get(name) or (BIRTHS / f"{name}.py").read_text(encoding="utf-8")


def asked(name: str, what: str | int, folder: Path) -> tuple[Paths, Answer | EngineUse]:
    """Rehearse a program, and return what is known of parameters or of the call at a line."""
    file = folder / f"{name.replace(' ', '_')}.py"
    file.write_text(program_of(name), encoding="utf-8")
    ways = Paths(Program(header_of([str(file)], hooks=True), True, started).follow(Bounds(0, 60)))
    if isinstance(what, int):
        return ways, ways.calls_at(str(file), what)[-1]
    answers = ways.of_leaves(ways.named(what))
    return ways, max(answers, key=lambda answer: answer.state is Arrival.CUT)


def written(picture: Picture) -> str:
    """Return title, boxes with the field that each stands in, and arrows, as text."""
    titles = {cluster.id: cluster.title for cluster in picture.clusters}
    boxes = []
    for box in picture.boxes:
        texts = " | ".join([box.title, *(row.text for row in box.rows)])
        frame = f" ({titles[box.cluster]})" if box.cluster is not None else ""
        boxes.append(f"{box.id} {texts}{frame}")
    arrows = " ".join(f"{arrow.source}>{arrow.target}" for arrow in picture.arrows)
    return "\n".join([picture.title, *boxes, arrows]) + "\n"


@pytest.mark.full(but=4)
@pytest.mark.parametrize(("name", "what", "expected"), PICTURES.values(), ids=PICTURES)
def test_boxes_fields_and_arrows(name: str, what: str | int, expected: str, tmp_path: Path) -> None:
    picture = picture_of(*asked(name, what, tmp_path))
    assert written(picture) == textwrap.dedent(expected).lstrip("\n")
    assert len(picture.boxes) <= 12


def test_every_format_has_the_scissors(tmp_path: Path) -> None:
    ways, about = asked("several cuts", "encoder", tmp_path)
    svg = draw_way(ways, about)._repr_svg_()
    assert svg is not None
    root = ElementTree.fromstring(svg.encode())
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "✂" not in "".join(filter(None, texts)), "the font does not have it"
    assert svg.count("translate(") == 2, "all of the picture, and the scissors"
    assert "✂ cut at line 8" in draw_way(ways, about, tmp_path / "way.dot").content.decode()
    draw_way(ways, about, tmp_path / "way.png")
    assert (tmp_path / "way.png").read_bytes().startswith(b"\x89PNG")
