"""Over all scenarios of a run: a GPU that is slow in several of them is the node's matter, not the framework's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_charllm.records import Judgement

SCENARIOS = 2
"""In how many scenarios a GPU must be slow before the node is suspect."""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """`causes`: what each of those scenarios says of the GPU, each said once."""

    uuid: str
    keys: tuple[str, ...]
    causes: tuple[str, ...]

    @property
    def text(self) -> str:
        return (
            f"{self.uuid} is slow in {len(self.keys)} scenarios, so it is not the framework: {'; '.join(self.causes)}"
        )


def suspects(judgements: Sequence[Judgement]) -> tuple[Suspect, ...]:
    """The GPUs that two or more scenarios call slow."""
    said: dict[str, dict[str, list[str]]] = {}
    for judgement in judgements:
        for diagnosis in judgement.diagnosis:
            for uuid in diagnosis.devices:
                said.setdefault(uuid, {}).setdefault(judgement.scenario_key, []).append(diagnosis.cause)
    return tuple(
        Suspect(
            uuid=uuid,
            keys=tuple(keys),
            causes=tuple(dict.fromkeys(cause for causes in keys.values() for cause in causes)),
        )
        for uuid, keys in said.items()
        if len(keys) >= SCENARIOS
    )
