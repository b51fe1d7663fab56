"""What the formats for machines share: a finding as plain text, and JSON in printable ASCII."""

from __future__ import annotations

import json
from typing import Any

from gradscope.model import Finding
from gradscope.render.choices import alternative, reasons
from gradscope.units import short_path


def whole_message(finding: Finding) -> str:
    """Return all that a finding says."""
    lines = [f"{finding.message}: {finding.label}" if finding.label else finding.message]
    for related in finding.related:
        where = f" ({short_path(related.site.file)}:{related.site.line})" if related.site else ""
        lines.append(f"note: {related.message}{where}")
    if finding.withdrawn:
        lines.append(f"withdrawn: {finding.withdrawn}")
    if finding.fix is not None:
        lines.append(f"help: {finding.fix.message}")
        lines += [f"{word}: {text}" for word, text in reasons(finding.fix)]
    lines += [f"or: {alternative(other)}" for other in finding.alternatives]
    if finding.suppression is not None:
        lines.append(f"suppressed {finding.suppression.reason}")
    return "\n".join(lines)


def dumped(value: Any, **options: Any) -> str:
    """Return a value as JSON that any encoding has, and that no terminal obeys."""
    return json.dumps(value, **options).replace("\x7f", "\\u007f")
