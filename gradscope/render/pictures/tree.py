"""Writes a picture as a tree for the terminal, with the same folds as in the image."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from gradscope.model import Severity
from gradscope.render.pictures.picture import Box, BoxKind, Link, LinkKind, Picture, Row, ranks
from gradscope.render.theme import NODE_STATES, SAVED_STATES, SEVERITIES

_ENTERS = {
    LinkKind.BOUNDARY: "  enters the shared part",
    LinkKind.CARRIED: "  enters an older graph",
}
_STYLES = {BoxKind.LEAF: "italic", BoxKind.FOLD: "bold"}


def picture_tree(picture: Picture) -> Tree:
    """Return the picture as a rich tree.

    The longest way on follows below a node, shorter ones are indented. Each box stands below the
    last of those that lead to it; the others name it by its number: ``→ see [3]``.
    """
    return _Writer(picture).tree()


class _Writer:
    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        rank = ranks(picture)
        self.parent: dict[int, Link] = {}
        for link in picture.links:
            known = self.parent.get(link.target)
            if known is None or rank[link.source] > rank[known.source]:
                self.parent[link.target] = link
        self.others: dict[int, list[Link]] = {}
        for link in picture.links:
            if self.parent[link.target] is not link:
                self.others.setdefault(link.source, []).append(link)
        named = {link.target for links in self.others.values() for link in links}
        self.number = {box: n for n, box in enumerate(sorted(named), 1)}
        height = [0] * len(picture.boxes)
        self.children: dict[int, list[int]] = {}
        for box in reversed(range(len(picture.boxes))):
            self.children.get(box, []).sort(key=lambda child: (height[child], child))
            if box in self.parent:
                above = self.parent[box].source
                height[above] = max(height[above], height[box] + 1)
                self.children.setdefault(above, []).append(box)

    def tree(self) -> Tree:
        tree = Tree(Text(self.picture.title, style="bold"), guide_style="dim")
        tree.add(Text(self.picture.subtitle, style="dim"))
        for note in self.picture.notes:
            tree.add(Text(f"note: {note}", style=SEVERITIES[Severity.WARNING].terminal))
        tops = [box.id for box in self.picture.boxes if box.id not in self.parent]
        waiting = [(box, tree, True) for box in reversed(tops)]
        while waiting:
            box, branch, first = waiting.pop()
            own = branch.add(self.line(self.picture.boxes[box], first))
            for row in self.picture.boxes[box].rows:
                if row.text:
                    own.add(self.row(row))
            for link in self.others.get(box, ()):
                own.add(self.see(link))
            if box in self.children:
                *short, longest = self.children[box]
                waiting.append((longest, branch, False))
                waiting += [(child, own, True) for child in reversed(short)]
        return tree

    def line(self, box: Box, first: bool) -> Text:
        """Return one box as a line.

        It holds how the box is reached, its state, what it is and, where others point to it, its
        number.
        """
        text = Text("" if first else "↓ ", style="dim")
        look = NODE_STATES[box.state] if box.state is not None else None
        if box.root:
            text.append(f"{box.root}  ", style="bold cyan")
        if look is not None:
            text.append(f"{look.symbol} ", style=look.terminal)
        text.append(box.title, style=_STYLES.get(box.kind, ""))
        if box.note:
            text.append(f"  {box.note}", style=look.terminal if look is not None else "dim")
        if box.caption:
            text.append(f"  {box.caption}", style="dim")
        if box.id in self.number:
            text.append(f"  [{self.number[box.id]}]", style="cyan")
        if box.id in self.parent:
            text.append(_ENTERS.get(self.parent[box.id].kind, ""), style="cyan")
        if box.alarm:
            text.append(f"  <- {box.alarm}", style=SEVERITIES[Severity.ERROR].terminal)
        return text

    def row(self, row: Row) -> Text:
        look = SAVED_STATES[row.state] if row.state is not None else None
        style = look.terminal if look and not row.muted else "dim"
        text = Text(f"{look.symbol} " if look else "", style=style)
        text.append(row.text, style="dim" if row.muted else "")
        text.append(f"  {row.note}" if row.note else "", style=style)
        return text

    def see(self, link: Link) -> Text:
        target = self.picture.boxes[link.target]
        enters = _ENTERS.get(link.kind, "")
        return Text(f"→ see [{self.number[link.target]}] {target.title}{enters}", style="cyan")
