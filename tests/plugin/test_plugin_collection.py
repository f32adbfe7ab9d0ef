"""Which items a suite becomes on which machine: ids, selection, replacement of microbatches, planning, bad input."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.hardware import Machine
from pytest_charllm.plugin.parametrize import Rows, choose, collect, scenarios

TABLE = """
@scenarios(Rows("llama3-1b", {"h200:1x8": "dp8 dp8+fsdp", "*:1x1": "dp1", "cpu:1x2": "dp2"}, microbatch=(1, 2)))
def test_table(measured):
    measured.check()
"""


def ids(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if "::" in line]


def collected(inner, *arguments: str) -> list[str]:
    return ids(inner.run("--co", "-q", *arguments))


def keys(*rows, machine: str = "h200-sxm", nodes: int = 1, gpus: int = 1, microbatches=None, **options) -> list[str]:
    found = Machine(variant=machine, gpus_per_node=gpus, nodes=nodes)
    mark = scenarios(*rows, **options).mark
    return [item.planned.scenario.key for item in collect([mark], found, microbatches)]


def test_ids_are_variant_and_key(inner):
    """The id is what people type, and what pytest-benchmark compares by: it names hardware and scenario, no more."""
    inner.suite(TABLE)
    assert collected(inner, "--charllm-assume=h200:1x8") == [
        f"test_suite.py::test_table[h200-sxm-llama3-1b.{rest}]"
        for rest in ("dp8.mb1", "dp8.mb2", "dp8+fsdp.mb1", "dp8+fsdp.mb2")
    ]


def test_ids_work_with_k(inner):
    """Dots, dashes and plus signs are all legal in -k."""
    inner.suite(TABLE)
    assert collected(inner, "--charllm-assume=h200:1x8", "-k", "llama3-1b.dp8+fsdp.mb2") == [
        "test_suite.py::test_table[h200-sxm-llama3-1b.dp8+fsdp.mb2]"
    ]


def test_microbatch_replaces_the_list(inner):
    """--microbatch is what the night asks for, not an addition to the suite's list."""
    inner.suite(TABLE)
    assert collected(inner, "--charllm-assume=h200:1x1", "--microbatch=4,8", "--microbatch=4") == [
        "test_suite.py::test_table[h200-sxm-llama3-1b.mb4]",
        "test_suite.py::test_table[h200-sxm-llama3-1b.mb8]",
    ]


def test_microbatch_that_does_not_divide_is_infeasible(inner):
    """It is a row of the table that this size cannot fill, not a mistake of the suite."""
    inner.suite(
        '@scenarios(Rows("llama3-1b", {"*:1x1": "dp1"}, global_batch=8))\n'
        "def test_it(measured):\n    measured.check()\n"
    )
    result = inner.run("--microbatch=3")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: batch: global batch 8 does not divide by mb3 x dp1"])


def test_function_without_rows_here_is_deselected(inner):
    """Not skipped: a table for another machine says nothing about this one."""
    inner.suite(TABLE + '\n\n@scenarios("llama3-1b.mb1", on="h100-sxm:1x1")\ndef test_other(measured):\n    pass\n')
    result = inner.run("--co", "--charllm-assume=h200:1x1")
    result.stdout.fnmatch_lines(["*2/3 tests collected (1 deselected)*"])


def test_rows_for_more_gpus_are_one_line(inner):
    """The study's tables on a node were a wall of skips, in which nobody would see the one that matters."""
    inner.suite(
        '@scenarios("llama3-1b.dp2.mb1", "llama3-1b.tp8.mb3.gb4", "llama3-1b.mb1", "llama3-1b.mb2.gb3")\n'
        "def test_it(measured):\n    measured.check()\n"
    )
    result = inner.run()
    result.assert_outcomes(passed=1, skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["charllm: 2 rows need more GPUs than h200-sxm 1x1 has, deselected"])


def test_what_takes_no_fault_is_one_line_under_injection(pytester: pytest.Pytester) -> None:
    """A collective that ends as our own error beside a gate that fired reads as if more had broken."""
    pytester.makepyfile("""
        from pytest_charllm import scenarios

        @scenarios("all-reduce.dp2.upto4mib", "tiny-llama.dp2.mb2.fp32.eager")
        def test_it(measured):
            measured.check()
    """)
    asked = ("--gpu=cpu", "--charllm-assume=cpu:1x2", "--collect-only", "-q")
    plain = pytester.runpytest(*asked)
    injected = pytester.runpytest(*asked, "--charllm-inject=slowdown=0.1")
    assert "no injected fault" not in plain.stdout.str()
    injected.stdout.fnmatch_lines("charllm: 1 test of a script or a collective takes no injected fault, deselected")
    injected.stdout.fnmatch_lines("*tiny-llama.dp2.mb2.fp32.eager*")
    injected.stdout.no_fnmatch_line("*all-reduce.dp2.upto4mib]")


def test_where_says_which_rows(inner):
    """A test about pipelines would otherwise need a table of its own, which drifts from the first."""
    inner.suite(
        '@scenarios(Rows("llama3-8b", {"h200:1x8": "dp8 pp8 tp2pp4"}, global_batch=8),\n'
        "           where=lambda row: row.layout.pp > 1)\n"
        "def test_it(measured):\n    measured.check()\n"
    )
    assert [name.partition("[")[2] for name in collected(inner, "--charllm-assume=h200:1x8")] == [
        "h200-sxm-llama3-8b.pp8.mb1.gb8]",
        "h200-sxm-llama3-8b.tp2pp4.mb1.gb8]",
    ]


def test_rows_reduce_where_they_say_so():
    """Only on the GPUs named, only to fewer, and from the table of their own family where there is one."""
    table = {"h200:4x8": "tp2pp16 pp16dp2", "h100:8x8": "tp8pp8"}
    rows = Rows("llama3-70b", table, global_batch=128, reduces="*", shares_optimizer=True)
    assert keys(rows, gpus=8) == ["llama3-70b.8L.tp2pp4.mb1.gb32", "llama3-70b.8L.pp4dp2.mb1.gb32.dist-opt"]
    assert keys(rows, machine="h100-sxm", gpus=8) == ["llama3-70b.2L.tp8.mb1.gb16"]
    assert keys(rows, machine="mi300x", gpus=1) == ["llama3-70b.2L.mb1.gb8"]
    assert keys(rows, gpus=8, nodes=4)[0] == "llama3-70b.tp2pp16.mb1.gb128"
    assert keys(rows, gpus=8, nodes=8) == []
    assert keys(rows, machine="cpu", gpus=2) == []
    assert keys(Rows("llama3-70b", table, reduces="h100"), gpus=8) == []
    with pytest.raises(BadInput, match="h20"):
        keys(Rows("llama3-70b", table, reduces="h20"), gpus=8)


def test_sequences_multiply_with_microbatches():
    """A row for each pair, and the same key where the length is the model's own."""
    rows = Rows("llama3-1b", {"*:1x1": "dp1"}, microbatch=(1, 2), seq=(4096, 8192))
    assert keys(rows) == ["llama3-1b.mb1", "llama3-1b.mb1.seq8192", "llama3-1b.mb2", "llama3-1b.mb2.seq8192"]


def test_empty_parameter_set_policy_does_not_interfere(inner):
    """`empty_parameter_set_mark = fail_at_collect` is common, and would make every other machine's table an error."""
    inner.suite(TABLE)
    inner.pytester.makeini("[pytest]\nempty_parameter_set_mark = fail_at_collect\n")
    inner.run("--co", "--charllm-assume=mi250:2x4").stdout.fnmatch_lines(["*1 deselected*"])


def test_rows_of_the_exact_machine_win():
    """Two entries that fit must not be added up: the table for the variant replaces the one for the family."""
    table = {"*:1x8": "any", "h200:1x8": "family", "h200-sxm:1x8": "variant"}

    def chosen(variant: str, gpus: int = 8) -> str | None:
        return choose(table, Machine(variant=variant, gpus_per_node=gpus))

    assert chosen("h200-sxm") == "variant"
    assert chosen("h200-nvl") == "family"
    assert chosen("h100-sxm") == "any"
    assert chosen("cpu") is None, "a table for any GPU must never train a 70B model on a CPU"
    assert chosen("h200-sxm", gpus=4) is None


@pytest.mark.parametrize("machine", ["h200-sxm", "h200-sxm:8", "h20:1x8", "*:0x8", "h200-sxm;1x8"])
def test_entry_that_names_no_machine_is_refused(machine):
    """A typo there would otherwise be a row that silently never runs."""
    with pytest.raises(BadInput, match=r"machine|hardware"):
        choose({machine: "dp1"}, Machine(variant="h200-sxm", gpus_per_node=1))


def test_options_multiply():
    """A tuple of values makes a row for each, over all options."""
    assert keys("llama3-1b.mb1", recompute=("none", "full"), precision=("bf16", "fp32"), compile=False) == [
        "llama3-1b.mb1.eager",
        "llama3-1b.mb1.fp32.eager",
        "llama3-1b.mb1.recompute-full.eager",
        "llama3-1b.mb1.recompute-full.fp32.eager",
    ]


def test_layers_per_machine():
    """The reduced model where the full one does not fit, under its own key."""
    rows = Rows("llama3-8b", {"*:1x1": "dp1", "*:1x8": "dp8+fsdp"}, layers={"*:1x1": 8})
    assert keys(rows) == ["llama3-8b.8L.mb1"]
    assert keys(rows, gpus=8) == ["llama3-8b.dp8+fsdp.mb1"]


def test_the_same_scenario_twice_is_one_item(inner):
    """Stacked tables that overlap would otherwise give ids with a counter behind them, which change with the order."""
    inner.suite(
        '@scenarios("llama3-1b.mb1", "llama3-1b.mb1")\n@scenarios(Rows("llama3-1b", {"*:1x1": "dp1"}))\n'
        "def test_it(measured):\n    measured.check()\n"
    )
    assert collected(inner) == ["test_suite.py::test_it[h200-sxm-llama3-1b.mb1]"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('"llama4-1b.mb1"', "*test_it: *llama4-1b*"),
        ('"llama3-1b.tp0.mb1"', "*test_it: *tp0*"),
        ('Rows("llama3-1b", {"*:1x1": "xp2"})', "*test_it: *xp2*"),
        ('Rows("llama3-1b", {"h100:1x8": "dpp8", "*:1x1": "dp1"})', "*test_it: *dpp8*"),
        ('Rows("lama3-1b", {"h100:1x8": "dp8"})', "*test_it: model 'lama3-1b' is not known; did you mean llama3-1b*"),
        ('Rows("llama3-1b", {"*:1x1": "dp1"}, microbatch=0)', "*test_it: microbatch is 0*"),
        ('"llama3-1b.mb1", recompute="ful"', "*test_it: *: recompute='ful': it takes none, selective, full*"),
        ('"llama3-1b.mb1", compile="no"', "*test_it: *: compile='no': Expected `bool`, got `str`*"),
        ('"llama3-1b.mb1", recomput="full"', "*test_it: *: no option 'recomput'; did you mean recompute? options are*"),
        ('Rows("llama3-1b", {"*:1x1": ["dp1"]})', "E * TypeError: Rows('llama3-1b'): layouts is a dict *"),
        ('Rows("llama3-1b", {"*:1x1": "dp1"}, microbatch="2")', "E * TypeError: Rows('llama3-1b'): microbatch is *"),
        ('Rows("llama3-1b", {"*:1x1": "dp1"}, microbatch=())', "E * TypeError: Rows('llama3-1b'): microbatch is *"),
        ("5", "E * TypeError: a row is Rows(...), *, not 5"),
    ],
)
def test_bad_row_is_one_line(inner, row, says):
    """A mistake in a suite file names the test and the word that cannot be read."""
    inner.suite(f"@scenarios({row})\ndef test_it(measured):\n    measured.check()\n")
    result = inner.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([says])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*During handling*")


def test_measured_without_scenarios(inner):
    """Forgetting the decorator must not read as "fixture not found"."""
    inner.suite("def test_it(measured):\n    measured.check()\n")
    inner.run().stdout.fnmatch_lines(["test_it takes `measured` but has no @scenarios(...)"])


def test_measured_in_a_unittest_class(inner):
    """pytest does not parametrize those: the test was deselected, like one that has no row on this machine."""
    inner.suite(
        "import unittest\n\n@scenarios('llama3-1b.mb1')\n@pytest.mark.usefixtures('measured')\n"
        "class TestIt(unittest.TestCase):\n    def test_it(self):\n        pass\n"
    )
    result = inner.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: test_suite.py::TestIt::test_it: a unittest method cannot take `measured`; *"])


def test_scenarios_without_measured(inner):
    """The decorator alone would be a test that runs once, on nothing, and passes."""
    inner.suite('@scenarios("llama3-1b.mb1")\ndef test_it():\n    pass\n')
    inner.run().stdout.fnmatch_lines(["test_it has @scenarios(...) but never takes `measured`"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu=h20"], "ERROR: --gpu=h20: hardware 'h20' is not known; *"),
        (["--gpu=h100,mi250"], "ERROR: --gpu=h100,mi250: no such GPU here; found h200-sxm 1x1 (1 x NVIDIA H200)"),
        (["--gpu="], "ERROR: --gpu: no name given; *"),
        (["--charllm-replay="], "ERROR: --charllm-replay: no folder given; *"),
        (["--charllm-dir= "], "ERROR: --charllm-dir: no folder given; *"),
        (["--charllm-assume=h200:8"], "ERROR: --charllm-assume=h200:8: '8' is not <nodes>x<gpus>*"),
        (["--charllm-assume="], "ERROR: --charllm-assume: no hardware given; name it, *"),
        (["--charllm-assume=nope"], "ERROR: --charllm-assume=nope: hardware 'nope' is not known; *"),
        (["--charllm-known="], "ERROR: --charllm-known: no file given; *"),
        (["--charllm-rules="], "ERROR: --charllm-rules: no file given; *"),
        (["--charllm-assume=h200:1x8", "--gpu=h100"], "ERROR: --gpu=h100: no such GPU here; --charllm-assume=*"),
        (["--charllm-assume=h200:1x1"], "ERROR: --charllm-assume runs nothing: *"),
        (["--microbatch=0"], "ERROR: --microbatch: 0 is below 1"),
        (["--microbatch=two"], "ERROR: --microbatch: 'two' is not a whole number"),
        (["--microbatch="], "ERROR: --microbatch: no size given; *"),
        (["--charllm-launches=0"], "ERROR: --charllm-launches: 0 is below 1"),
        (["--charllm-tier=daily"], "ERROR: --charllm-tier: 'daily' is none of smoke, nightly, weekly"),
        (["--charllm-missing=ignore"], "ERROR: --charllm-missing: 'ignore' is none of fail, record, skip"),
        (["--charllm-replay=./no/where"], "ERROR: --charllm-replay: *no/where is not a directory"),
        (["--charllm-replay=nowhere"], "ERROR: --charllm-replay: no directory nowhere, and no runs in *"),
        (["--charllm-replay=."], "ERROR: --charllm-replay: * holds no recorded launch; name a run, or latest"),
        (
            [f"--charllm-replay={'x' * 300}"],
            "ERROR: --charllm-replay: * cannot be read: File name too long; check the path",
        ),
        (
            [f"--charllm-known={'x' * 300}"],
            "ERROR: --charllm-known: * cannot be read: File name too long; check the path",
        ),
        (["--charllm-replay=latest"], "ERROR: --charllm-replay: no directory latest, and no runs in *"),
        (["--charllm-baselines=test_suite.py"], "ERROR: --charllm-baselines: test_suite.py is not a directory"),
        (["--charllm-inject=crash", "--charllm-replay=."], "ERROR: --charllm-inject: nothing can be injected *"),
        (["--charllm-rules=r.toml"], "ERROR: --charllm-rules: *r.toml is no file"),
        (["--charllm-rules=test_suite.py"], "ERROR: --charllm-rules: only recorded launches are judged *"),
        (["--charllm-inject=slow=0.1"], "ERROR: --charllm-inject: fault 'slow' is not known*"),
        (["--charllm-seed=-1"], "ERROR: --charllm-seed: -1 is below 0"),
        ([f"--charllm-seed={2**63}"], "ERROR: --charllm-seed: 9223372036854775808 is above 9223372036854775807"),
    ],
)
def test_bad_option_is_one_line_and_exit_4(inner, arguments, says):
    """What the user typed, in one line, before anything is launched.

    Empty values are what a CI job gives whose variable is not set: the guard ``--gpu=$GPU`` must not become ``auto``.
    """
    inner.suite(TABLE)
    result = inner.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR")]
    assert pytest.LineMatcher([line]).fnmatch_lines([says]) is None
    assert not inner.campaigns


def test_named_baselines_that_are_not_there_yet(inner):
    """The first night of another tier has none, and `accept` makes the folder: no reason to refuse. Of a slip of the
    keyboard nothing was said at all."""
    inner.suite(TABLE)
    result = inner.run("--charllm-baselines=smoke")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["charllm: --charllm-baselines: there is no smoke: nothing is on record there; *"])
    inner.campaigns.clear()
    inner.run().stdout.no_fnmatch_line("*there is no baselines*")


def test_one_of_several_gpus_is_enough(inner):
    """Several values mean any of them; a family means each of its variants."""
    inner.suite(TABLE)
    inner.run("--gpu=h100", "--gpu=mi250,h200").assert_outcomes(passed=2)
    inner.campaigns.clear()
    inner.run("--gpu=auto").assert_outcomes(passed=2)


def test_gpu_options_are_ignored_where_no_item_is_ours(inner):
    """The plugin is loaded everywhere: other projects' sessions never look for hardware."""
    inner.suite("def test_plain():\n    pass\n")
    assert inner.run("--gpu=h100").ret == 0


def test_plan_prints_and_runs_nothing(inner):
    """What would run, what cannot and why, and the memory to expect."""
    inner.suite(TABLE + '\n\n@scenarios("gpt3-175b.mb1")\ndef test_big(measured):\n    measured.check()\n')
    result = inner.run("--charllm-plan", "--charllm-assume=h200:1x1")
    result.stdout.fnmatch_lines(
        [
            "llama3-1b.mb1 *GiB *2.6 *feasible",
            "llama3-1b.mb2 *GiB*feasible",
            "gpt3-175b.mb1 *GiB*INFEASIBLE memory: *",
            "3 scenarios on h200-sxm 1x1, assumed: 2 feasible, about 5 min (estimate)",
        ]
    )
    assert result.ret == 0
    assert not inner.campaigns


def test_plan_of_several_files_tells_what_each_takes(inner):
    """Where all is more than a night, files are what one chooses by: a scenario of both is launched once."""
    inner.suite(TABLE)
    inner.pytester.makepyfile(
        test_other="from pytest_charllm import scenarios\n\n\n"
        '@scenarios("llama3-1b.mb2", "llama3-1b.mb4", "gpt3-175b.mb1")\ndef test_other(measured):\n    pass\n'
    )
    result = inner.run("--charllm-plan", "--charllm-assume=h200:1x1")
    result.stdout.fnmatch_lines(
        [
            "file alone * scenarios * about",
            "test_other.py * 2 * 5 min",
            "4 scenarios on h200-sxm 1x1, assumed: 3 feasible, about 8 min (estimate)",
        ]
    )
    assert inner.run("--charllm-plan", "--charllm-assume=h200:1x1", "-k", "other").stdout.str().count("file alone") == 0


def test_empty_plan_is_an_answer(inner):
    """Nothing for this machine: said, and no error."""
    inner.suite(TABLE)
    result = inner.run("--charllm-plan", "--charllm-assume=h200:4x8")
    result.stdout.fnmatch_lines(["0 scenarios on h200-sxm 4x8, assumed: 0 feasible"])
    assert result.ret == 0


def test_collecting_imports_no_torch(inner):
    """2,000 scenarios are planned on a laptop; torch alone would cost seconds and memory."""
    inner.suite(TABLE)
    code = (
        "import sys, pytest\n"
        "code = pytest.main(['--co', '-q', '--charllm-assume=h200:1x8', '-p', 'charllm'])\n"
        "heavy = {'torch', 'pynvml', 'deepspeed', 'numpy', 'psutil', 'tabulate'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy), int(code))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=inner.pytester.path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: [] 0"


def test_interrupted_collection_opens_no_campaign(inner):
    """A broken neighbour file ends the session before any test: no run directory, no device lock."""
    inner.suite(TABLE)
    inner.pytester.makepyfile(test_broken="import nothing_like_this")
    assert inner.run().ret == pytest.ExitCode.INTERRUPTED
    assert not inner.campaigns
