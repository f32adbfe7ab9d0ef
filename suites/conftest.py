"""Which rows are smoke: on GPUs those of the functions marked so, on a CPU all that cost one launch."""

import pytest

from pytest_charllm.plugin.parametrize import collected


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        row = collected(item)
        if row is not None and not row.planned.speed and not row.planned.scenario.options.compile:
            item.add_marker(pytest.mark.smoke)
