"""Checks of a target as a list of marks and remedies."""

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Check:
    """One check: `ok` is None where it does not apply, `latents` are those that fail, `remedy` says what to do."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""
    latents: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{_MARKS[self.ok]} {self.name}: {self.detail}"
        return head if self.ok is not False else f"{head}\n    {self.remedy}"


_MARKS = {True: "✓", False: "✗", None: "-"}
_STYLES = {True: "green", False: "red", None: "dim"}


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The result of `curvi.check`. `ok` is whether nothing failed; `report["gradient"]` is one check."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok is not False for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        return {check.name: check for check in self.checks}[name]

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def _verdict(self) -> str:
        wrong = [check.name for check in self.checks if check.ok is False]
        return "the target is ready to be fitted" if not wrong else f"not ready: {', '.join(wrong)}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), self._verdict()])

    def __rich__(self):
        from rich.text import Text

        text = Text()
        for check in self.checks:
            text.append(f"{check}\n", style=_STYLES[check.ok])
        return text.append(self._verdict(), style="bold")
