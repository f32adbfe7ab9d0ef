"""Baseline files: what goes in comes out, and nothing that was touched since is ever judged against."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_charllm.errors import BadRecord, HarnessError
from pytest_charllm.hardware import Machine
from pytest_charllm.records import Baseline, Comparable
from pytest_charllm.store import seal
from pytest_charllm.store.baselines import BaselineStore

KEY = "llama3-1b.mb1"


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines", tmp_path / ".charllm" / "baselines")


@pytest.fixture
def path(store: BaselineStore, baseline: Baseline, h200: Machine) -> Path:
    return store.write(baseline, h200)


def leaves(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every single value of a JSON document lies."""
    if isinstance(document, dict | list):
        for name in document if isinstance(document, dict) else range(len(document)):
            yield from leaves(document[name], (*at, name))
    else:
        yield at


def edit(path: Path, change: Callable[[Any], None]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document, indent=2))


def test_what_was_written_is_found(store: BaselineStore, path: Path, baseline: Baseline, h200: Machine) -> None:
    """Values, order of stacks and provenance survive; the path is the documented one."""
    assert path == store.shipped / "h200-sxm" / "1x1" / f"{KEY}.json"
    found = store.find(h200, KEY)
    assert found is not None
    assert found.reference.stack.driver == "590.1"
    assert [s.values for s in found.reference.samples] == [s.values for s in baseline.reference.samples]
    assert store.find(h200, "llama3-1b.mb2") is None


def test_rewriting_changes_nothing(store: BaselineStore, path: Path, h200: Machine) -> None:
    """A diff must show what was accepted, and only that."""
    before = path.read_bytes()
    found = store.find(h200, KEY)
    assert found is not None
    store.write(found, h200)
    assert path.read_bytes() == before


def test_one_value_a_line(path: Path) -> None:
    """A reviewer reads a changed number as one changed line."""
    lines = path.read_text().splitlines()
    assert '"throughput": 40773.25,' in [line.strip() for line in lines]
    assert max(map(len, lines)) < 100


def test_whole_numbers_keep_their_digest(store: BaselineStore, baseline: Baseline, h200: Machine) -> None:
    """An int where a float belongs is read back as a float; its digest once differed from the written one."""
    sample = msgspec.structs.replace(baseline.reference.samples[0], values={"throughput": 40_000})
    stack = msgspec.structs.replace(baseline.reference, samples=(sample,))
    store.write(msgspec.structs.replace(baseline, stacks=(stack,)), h200)
    found = store.find(h200, KEY)
    assert found is not None
    store.write(found, h200)
    assert store.find(h200, KEY) == found


def test_truncated_anywhere_is_refused(store: BaselineStore, path: Path, h200: Machine) -> None:
    """A half-copied file must never be judged against, wherever the copy stopped."""
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(BadRecord, match=path.name):
            store.find(h200, KEY)


def test_any_edited_value_is_refused(store: BaselineStore, path: Path, h200: Machine) -> None:
    """Every number and text in the file is covered by some digest, check or schema."""
    whole = path.read_bytes()
    for at in leaves(json.loads(whole)):

        def change(document: Any, at: tuple[Any, ...] = at) -> None:
            for name in at[:-1]:
                document = document[name]
            old = document[at[-1]]
            document[at[-1]] = old + 1 if isinstance(old, int | float) else f"{old or ''}x"

        path.write_bytes(whole)
        edit(path, change)
        with pytest.raises(BadRecord, match=path.name):
            store.find(h200, KEY)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_digit_is_refused(data: st.DataObject, store: BaselineStore, path: Path, h200: Machine) -> None:
    """Whichever digit anywhere in the file becomes another one, the file is refused by name."""
    store.write(_found(store, h200), h200)
    whole = path.read_bytes()
    position = data.draw(st.sampled_from([i for i, byte in enumerate(whole) if chr(byte).isdigit()]))
    digit = data.draw(st.sampled_from([d for d in b"0123456789" if d != whole[position]]))
    path.write_bytes(whole[:position] + bytes([digit]) + whole[position + 1 :])
    try:
        with pytest.raises(BadRecord, match=path.name):
            store.find(h200, KEY)
    finally:
        path.write_bytes(whole)


def _found(store: BaselineStore, machine: Machine) -> Baseline:
    found = store.find(machine, KEY)
    assert found is not None
    return found


def test_one_edited_launch_is_named(store: BaselineStore, path: Path, h200: Machine) -> None:
    """The message must name the launch, or nobody finds it in a file of thousands of lines."""

    def flatter(document: Any) -> None:
        document["stacks"][0]["samples"][2]["values"]["throughput"] = 39_000.0

    edit(path, flatter)
    with pytest.raises(BadRecord) as caught:
        store.find(h200, KEY)
    assert str(caught.value).endswith(
        "h200-sxm/1x1/llama3-1b.mb1.json: stacks[0].samples[2] was edited after it was accepted (digest differs); "
        "restore it from git, or delete it and accept a new run"
    )


def test_a_removed_launch_is_noticed(store: BaselineStore, path: Path, h200: Machine) -> None:
    """Deleting the one slow launch leaves every other digest intact; only the stack's own tells."""
    edit(path, lambda document: document["stacks"][1]["samples"].pop())
    with pytest.raises(BadRecord, match=r"stacks\[1\] was edited"):
        store.find(h200, KEY)


def test_a_removed_stack_is_noticed(store: BaselineStore, path: Path, h200: Machine) -> None:
    """Deleting the newest stack silently brings back the old reference."""
    edit(path, lambda document: document["stacks"].pop())
    with pytest.raises(BadRecord, match="the head was edited"):
        store.find(h200, KEY)


def test_reformatting_is_no_edit(store: BaselineStore, path: Path, baseline: Baseline, h200: Machine) -> None:
    """Digests cover content: another indentation or key order is not tampering."""
    path.write_text(json.dumps(json.loads(path.read_bytes()), sort_keys=True))
    assert _found(store, h200).comparable == baseline.comparable


def test_a_later_version_may_add_fields_with_defaults(store: BaselineStore, path: Path, h200: Machine) -> None:
    """A field that old files lack must not make all of them look edited."""

    def drop_optional(document: Any) -> None:
        for stack in document["stacks"]:
            del stack["label"]

    edit(path, drop_optional)
    document = json.loads(path.read_bytes())
    for stack in document["stacks"]:
        stack["digest"] = seal._digest(seal._stack(stack))
    document["digest"] = seal._digest(seal._head(document))
    path.write_text(json.dumps(document))
    assert _found(store, h200).reference.label == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema=99), "field schema is 99, this version reads 1"),
        (lambda d: d.pop("schema"), "field schema is none"),
        (lambda d: d["stacks"][0].pop("host"), "host"),
        (lambda d: d["stacks"][0].update(colour="red"), "colour"),
        (lambda d: d.update(stacks=[]), "field stacks holds no launches"),
    ],
    ids=["foreign-schema", "no-schema", "missing-field", "unknown-field", "no-stacks"],
)
def test_bad_structure_names_the_field(
    store: BaselineStore, path: Path, h200: Machine, change: Callable[[Any], None], message: str
) -> None:
    """One clear line with file and field, never a traceback of the decoder."""
    edit(path, change)
    with pytest.raises(BadRecord, match=message) as caught:
        store.find(h200, KEY)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nesting_without_end_is_corrupt_too(store: BaselineStore, path: Path, h200: Machine) -> None:
    """The decoder gives up on it with an error of its own kind, which was a traceback."""
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(BadRecord, match=r"llama3-1b.mb1.json: not valid JSON \(maximum recursion depth exceeded"):
        store.find(h200, KEY)


def test_a_file_in_another_place_is_refused(store: BaselineStore, path: Path, h200: Machine) -> None:
    """A baseline copied to another scenario or another GPU's folder would be judged against silently."""
    path.with_name("llama3-1b.mb2.json").write_bytes(path.read_bytes())
    with pytest.raises(BadRecord, match=r"field scenario_key is llama3-1b.mb1, its place says llama3-1b.mb2"):
        store.find(h200, "llama3-1b.mb2")
    elsewhere = store.shipped / "h100-sxm" / "1x1" / path.name
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(path.read_bytes())
    with pytest.raises(BadRecord, match=r"field comparable.variant is h200-sxm, its place says h100-sxm"):
        store.find(msgspec.structs.replace(h200, variant="h100-sxm"), KEY)


def test_nan_is_never_written(store: BaselineStore, path: Path, baseline: Baseline, h200: Machine) -> None:
    """A NaN would be stored as null and make the file unreadable from then on; the old file must survive."""
    before = path.read_bytes()
    sample = msgspec.structs.replace(baseline.reference.samples[0], values={"throughput": float("nan")})
    stack = msgspec.structs.replace(baseline.reference, samples=(sample,))
    with pytest.raises(BadRecord, match="values"):
        store.write(msgspec.structs.replace(baseline, stacks=(stack,)), h200)
    assert path.read_bytes() == before


def test_local_wins(store: BaselineStore, path: Path, baseline: Baseline, h200: Machine) -> None:
    """A trial baseline beside the shipped one is the one to be judged against."""
    local = BaselineStore(store.local, store.local)
    local.write(msgspec.structs.replace(baseline, stacks=baseline.stacks[:1]), h200)
    assert len(_found(store, h200).stacks) == 1
    assert [entry.path for entry in store.entries()] == [store.local / "h200-sxm" / "1x1" / path.name]


def test_cpu_baselines_stay_local(store: BaselineStore, baseline: Baseline, cpu: Machine) -> None:
    """No CPU baseline ships: its speed means nothing on another machine."""
    comparable = Comparable(
        variant="cpu", shape="1x2", cpu_model="EPYC", flop_formula="causal_half", window="smoke", measuring=1
    )
    path = store.write(msgspec.structs.replace(baseline, comparable=comparable), cpu)
    assert path == store.local / "cpu" / "1x2" / f"{KEY}.json"
    assert not store.shipped.exists()


def test_published_figures_are_no_baselines(store: BaselineStore, path: Path) -> None:
    """Figures from papers lie beside the variants under a reserved name, in whatever format."""
    paper = store.shipped / "published" / "1x8" / "llama.json"
    paper.parent.mkdir(parents=True)
    paper.write_text("{}")
    assert [(entry.variant, entry.shape, entry.key) for entry in store.entries()] == [("h200-sxm", "1x1", KEY)]


def test_a_refusing_disk_is_one_line(store: BaselineStore, baseline: Baseline, h200: Machine) -> None:
    """Said in one line, with the option that helps: a GPU's baselines are not in the run directory. Nothing is left."""
    store.shipped.parent.mkdir(exist_ok=True)
    store.shipped.write_text("in the way")
    with pytest.raises(HarnessError, match=r"not writable: .*; choose another folder with --charllm-baselines"):
        store.write(baseline, h200)
    assert store.shipped.read_text() == "in the way"


def test_a_file_in_the_place_of_a_folder_is_not_an_empty_record(store: BaselineStore, h200: Machine) -> None:
    """The gate was off then: "no baseline", and PASS."""
    store.local.parent.mkdir(exist_ok=True)
    store.local.write_text("in the way")
    with pytest.raises(BadRecord, match="there is a file where a folder should be"):
        store.find(h200, KEY)


def test_runs_on_record_are_those_of_every_file(tmp_path: Path, h200: Machine, baseline: Baseline) -> None:
    """What decides over the life of a run's folder must overlook neither history nor a file that a local one hides."""
    shipped, local = tmp_path / "baselines", tmp_path / "local"
    BaselineStore(shipped, shipped).write(baseline, h200)
    (newest,) = baseline.stacks[1:]
    trial = msgspec.structs.replace(baseline, stacks=(msgspec.structs.replace(newest, run_id="trial"),))
    BaselineStore(local, local).write(trial, h200)
    store = BaselineStore(shipped, local)
    assert store.run_ids() == {"run-580.159.04", "run-590.1", "trial"}
    next(shipped.glob("*/*/*.json")).write_text("{}")
    with pytest.raises(BadRecord):
        store.run_ids()
