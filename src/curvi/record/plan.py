"""What a fit will take in memory, known before anything runs."""

import dataclasses

from curvi.model.memory import words
from curvi.record.plain import register


@register
@dataclasses.dataclass(frozen=True)
class Plan:
    """What a fit takes in memory at its peak, beyond what imports take, and how its buffers are cut for that.

    Attributes
    ----------
    parts
        Names of the parts and their bytes.
    memory
        Bytes that the fit may take.
    draws_at_once
        Draws for which the model is computed at a time.
    num_draws
        Draws that are stored at most; None where their number takes no memory.
    remedy
        What makes it less, besides more memory.
    """

    parts: tuple[tuple[str, int], ...]
    memory: int
    draws_at_once: int = 1
    num_draws: int | None = None
    remedy: str = ""

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.parts)

    def why_not(self, name: str) -> str | None:
        """Why a method of this name is refused, as a sentence for the user; None where the plan is within memory."""
        if self.num_bytes <= self.memory:
            return None
        return (
            f"{name} needs {words(self.num_bytes)} of memory here ({self._listed()}), and may take "
            f"{words(self.memory)}: pass memory={self.num_bytes} or more, if there is as much, or {self.remedy}"
        )

    def __str__(self) -> str:
        stored = "" if self.num_draws is None else f", at most {self.num_draws:,} stored"
        return f"{words(self.num_bytes)} planned of {words(self.memory)}; draws {self.draws_at_once} at a time{stored}"

    def _listed(self) -> str:
        largest = sorted(self.parts, key=lambda part: -part[1])[:4]
        return ", ".join(f"{name} {words(size)}" for name, size in largest if size)
