"""The interactive report: one self-contained HTML file that needs no network."""

from gradscope.render.html.page import to_html

__all__ = ["to_html"]
