"""Says which findings comments, settings and a baseline suppress, and what suppresses nothing.

A baseline has the findings that a project has already, so that only new ones count. A finding is
known there by its code, its file and the text of its line, so that lines may move.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import NamedTuple

from gradscope.errors import GradscopeError
from gradscope.model import Finding, Recording, Suppression, SuppressionKind
from gradscope.rules import by_code
from gradscope.rules.settings import Settings
from gradscope.units import counted, short_path

Sources = Mapping[str, str]
_COMMENT = re.compile(r"#\s*gradscope:\s*ignore\b(?:\[(?P<codes>[^\]]*)\])?")


class Suppressor:
    """Judges findings by comments, settings and a baseline, and remembers what was of use."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        file = None if settings.write_baseline else settings.baseline
        self.baseline = None if file is None else read_baseline(file)
        self._used: set[tuple[str, int, str]] = set()

    def judged(self, finding: Finding, sources: Sources | None = None) -> Finding:
        """Return the finding with the reason for which it does not count, if there is one."""
        found = self._suppression(finding, sources)
        return finding if finding.suppression else replace(finding, suppression=found)

    def of_findings(self, recording: Recording) -> Recording:
        """Return a recording with its findings judged."""
        findings = tuple(self.judged(one, recording.sources) for one in recording.findings)
        return replace(recording, findings=findings)

    def applied(self, recording: Recording) -> Recording:
        """Return a recording with its findings judged, and with notes on what was of no use."""
        recording = self.of_findings(recording)
        findings = recording.findings
        sites = [call.site for call in recording.calls] + [one.site for one in findings]
        files = dict.fromkeys(site.file for site in sites if site is not None)
        is_whole = recording.outcome.finished and not recording.outcome.exception
        unused = tuple(self.unused(files, recording.sources)) if is_whole else ()
        summary = replace(recording.summary, notes=recording.summary.notes + unused)
        return replace(recording, summary=summary)

    def unused(self, files: Iterable[str], sources: Sources | None = None) -> Iterator[str]:
        """Yield a note for each suppression in files, and for a baseline, that was of no use in a
        whole run.
        """
        for file in files:
            for comment in suppressing(_lines(file, sources)):
                yield from self._unused(file, comment)
        if self.baseline is not None:
            left = len(self.baseline.entries - self.baseline.met)
            if left:
                known = counted(len(self.baseline.entries), "finding")
                yield (
                    f"{left:,} of {known} of the baseline "
                    f"{short_path(str(self.baseline.file))} did not appear in this run"
                )

    def _unused(self, file: str, comment: Comment) -> Iterator[str]:
        at = f"{short_path(file)}:{comment.line}: `{comment.text}`"
        used = {code for name, line, code in self._used if (name, line) == (file, comment.line)}
        if not comment.codes and not used:
            yield f"{at} suppressed nothing in this run"
        for name in comment.codes:
            try:
                code = by_code(name).code
            except GradscopeError as error:
                yield f"{at}: {error}"
                continue
            if code not in used:
                nothing = "nothing" if len(comment.codes) == 1 else f"no {code}"
                yield f"{at} suppressed {nothing} in this run"

    def _suppression(self, finding: Finding, sources: Sources | None) -> Suppression | None:
        site, code = finding.site, finding.code
        if site is not None:
            lines = _lines(site.file, sources)
            covered = range(site.line, max(site.line, site.end_line) + 1)
            for comment in suppressing(lines):
                if comment.line in covered and _names(comment, finding):
                    self._used.add((site.file, comment.line, code))
                    return Suppression(SuppressionKind.IN_SOURCE, f"by `{comment.text}`")
            pattern = self._settings.pattern_for(code, site.file)
            if pattern is not None:
                return Suppression(SuppressionKind.EXTERNAL, f"by per-file-ignores of {pattern}")
        if code in self._settings.ignored:
            return Suppression(SuppressionKind.EXTERNAL, f"by {self._settings.ignored[code]}")
        if self.baseline is not None and self.baseline.knows(
            _entry(finding, self.baseline, sources)
        ):
            where = short_path(str(self.baseline.file))
            return Suppression(SuppressionKind.EXTERNAL, f"as known by the baseline {where}")
        return None


def _entry(finding: Finding, baseline: Baseline, sources: Sources | None) -> Entry:
    """Return a finding as an entry of a baseline."""
    site = finding.site
    if site is None:
        return baseline.entry(finding.code, "<unknown>", "")
    lines = _lines(site.file, sources)
    text = lines[site.line - 1] if 0 < site.line <= len(lines) else ""
    return baseline.entry(finding.code, site.file, text)


def write_baseline(file: Path, findings: Iterable[Finding], sources: Sources | None = None) -> str:
    """Write a baseline of the findings that count; return a line that says so."""
    baseline = Baseline(file)
    entries = {_entry(finding, baseline, sources) for finding in findings if finding.counts}
    baseline.write(entries)
    return f"baseline: {short_path(str(file))} ({counted(len(entries), 'finding')})"


def _names(comment: Comment, finding: Finding) -> bool:
    return not comment.codes or any(
        name.lower() in (finding.code.lower(), finding.name) for name in comment.codes
    )


def _lines(file: str, sources: Sources | None) -> list[str]:
    """Return the lines of a file as a recording has them; of a program that runs, from the file."""
    if sources is not None:
        return sources.get(file, "").splitlines(keepends=True)
    try:
        return linecache.getlines(file)
    except ValueError:  # no file can have such a name
        return []


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment at a line, with the codes or names that it suppresses; without one, with all."""

    line: int
    codes: tuple[str, ...]
    text: str


def suppressing(lines: Sequence[str]) -> Iterator[Comment]:
    """Yield the suppressing comments of a source, given as lines with their ends."""
    if not any(map(_COMMENT.search, lines)):
        return
    try:
        for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found:
                codes = re.split(r"[,\s]+", found["codes"] or "")
                yield Comment(token.start[0], tuple(filter(None, codes)), found[0])
    except (tokenize.TokenError, SyntaxError, StopIteration):
        return  # no Python from here on


_KIND = "gradscope baseline"
_VERSION = 1


class Entry(NamedTuple):
    """A known finding; the file is relative to the baseline's folder."""

    file: str
    code: str
    line: str


class Baseline:
    """The entries of a file, and which of them were met."""

    def __init__(self, file: Path, entries: Iterable[Entry] = ()) -> None:
        self.file = file
        self.entries = frozenset(entries)
        self.met: set[Entry] = set()

    def entry(self, code: str, file: str, line: str) -> Entry:
        """Return the entry for a finding at a line of text."""
        if not file.startswith("<"):
            with suppress(ValueError):  # on another drive
                file = PurePath(os.path.relpath(file, self.file.parent)).as_posix()
        return Entry(file, code, " ".join(line.split()))

    def knows(self, entry: Entry) -> bool:
        """Return whether an entry is in the file, and note that it was met."""
        known = entry in self.entries
        if known:
            self.met.add(entry)
        return known

    def write(self, entries: Iterable[Entry]) -> None:
        """Write the file anew; raise GradscopeError if that fails."""
        rows = [entry._asdict() for entry in sorted(set(entries))]
        text = json.dumps({"kind": _KIND, "version": _VERSION, "findings": rows}, indent=1)
        try:
            self.file.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise GradscopeError(f"cannot write {self.file}: {error.strerror}") from None


def read_baseline(file: Path) -> Baseline:
    """Read a baseline; raise GradscopeError if it cannot be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["kind"] != _KIND or content["version"] != _VERSION:
            raise ValueError
        return Baseline(file, [Entry(**row) for row in content["findings"]])
    except FileNotFoundError:
        raise GradscopeError(
            f"there is no baseline {file}; `gradscope run --write-baseline {file} …` writes it"
        ) from None
    except OSError as error:
        raise GradscopeError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise GradscopeError(
            f"{file} is no baseline of this gradscope; write it again with --write-baseline"
        ) from None
