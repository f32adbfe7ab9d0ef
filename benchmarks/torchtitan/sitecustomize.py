"""On the ranks' PYTHONPATH it has torchtitan train in the place of the native engine, in the same measuring loop."""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

_SETUP = "pytest_charllm.engines.native.setup"


class _InSetup(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != _SETUP:
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def and_replace(module):
            execute(module)
            from titan_step import TitanStep

            module.Step = TitanStep

        spec.loader.exec_module = and_replace
        return spec


if "CHARLLM_TORCHTITAN" in os.environ:
    sys.meta_path.insert(0, _InSetup())
