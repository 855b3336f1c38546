"""Run another script unchanged, as a worker with another build of the library would.

usage: other_library.py WORKER KIND SCRIPT [ARGUMENT...]

KIND `other`: it says that it is another one. `older`: it is from before workers said so.
"""

import os
import runpy
import sys
from typing import Any

from heterotrain.training import group, traits

worker, kind = sys.argv[1], sys.argv[2]
traits_of = group.traits_of


def older_traits_of(*arguments: Any) -> dict[str, str]:
    return {name: value for name, value in traits_of(*arguments).items() if name != traits.LIBRARY}


if os.environ["HETEROTRAIN_WORKER"] == worker:
    if kind == "other":
        traits.library_of = lambda folder: "heterotrain, checksum 01234567"
    else:
        group.traits_of = older_traits_of
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
