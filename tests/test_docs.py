"""The pages under docs/, held against what they describe: signatures, options, tolerances, links."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_charllm.judge import tolerances
from pytest_charllm.measure.values import DEVICE_METRICS
from pytest_charllm.plugin import options, outcomes
from pytest_charllm.records import METRICS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def blocks(page: str, language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))


INTERFACES = re.findall(r"^([a-z]\w*(?:\.\w+)+)(?:\((.*?)\)|:)", blocks("architecture.md", "python"), re.MULTILINE)


def found(dotted: str) -> Any:
    """The object of that name below the package: the longest prefix that is a module, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(["pytest_charllm", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            thing = getattr(thing, name)
        return thing
    raise AssertionError(f"no module of {dotted}")


def parameters(thing: Any) -> str:
    """``request, *, speed``: names alone, as the page writes them."""
    names: list[str] = []
    for name, parameter in inspect.signature(thing).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        if name != "self":
            names.append(name)
    return ", ".join(names)


def test_interfaces_are_listed() -> None:
    """A changed fence or indentation would leave the next test without anything to check."""
    assert len(INTERFACES) > 30


@pytest.mark.parametrize(("name", "written"), INTERFACES, ids=[name for name, _ in INTERFACES])
def test_architecture_has_the_real_signatures(name: str, written: str) -> None:
    """Interfaces once planned go on standing in the page after the code has moved on."""
    thing = found(name)
    if callable(thing):
        assert written == parameters(thing)


class Group:
    """In the place of pytest's option group: remembers names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def getgroup(self, *_: str) -> Group:
        return self

    def addoption(self, name: str, **_: Any) -> None:
        self.names.append(name)


def test_every_option_is_in_the_table() -> None:
    """An option that the page leaves out is found by nobody."""
    group = Group()
    options.add_options(group)  # type: ignore[arg-type]
    rows = re.findall(r"^\| `(--[a-z-]+)", (DOCS / "howto.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(group.names)


def test_exit_codes_of_our_own_are_in_the_table() -> None:
    """A nightly job's script is written from that table."""
    text = (DOCS / "howto.md").read_text()
    for code in (outcomes.EXIT_UNDECIDED, outcomes.EXIT_NOTHING_JUDGED):
        assert f"\n| {code} |" in text


@pytest.mark.parametrize("metric", [*tolerances.GPU, *tolerances.CPU])
def test_tolerances_of_the_page_are_those_of_the_judge(metric: str) -> None:
    """A tolerance that was changed in one of the two places only."""
    rule = (tolerances.GPU | tolerances.CPU)[metric]
    row = re.search(rf"^\| `{metric}`[^|]*\|([^|]*)\|([^|]*)\|", (DOCS / "how-it-works.md").read_text(), re.MULTILINE)
    assert row is not None, f"no row of {metric}"
    kind = METRICS[metric]
    scale = 100 if kind.relative or kind.unit == "share" else 1
    numbers = [float(re.findall(r"[0-9.]+", cell)[0]) for cell in row.groups()]
    assert numbers == pytest.approx([scale * rule.floor, scale * rule.cap])


@pytest.mark.parametrize("metric", DEVICE_METRICS)
def test_metrics_of_sensors_are_defined(metric: str) -> None:
    """A number whose formula nobody can look up."""
    rows = [line for line in (DOCS / "metrics.md").read_text().splitlines() if line.startswith("| ")]
    assert any(f"`{metric}`" in row.split(" | ")[0] for row in rows)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    """A renamed page or heading."""
    for target, anchor in re.findall(r"\]\(((?!https?:)[^)#]*)(?:#([^)]+))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{page.name} links to {target}#{anchor}"
