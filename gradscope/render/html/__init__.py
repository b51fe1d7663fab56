"""The interactive report: one self-contained HTML file that needs no network, made from a recording."""

from gradscope.render.html.page import to_html

__all__ = ["to_html"]
