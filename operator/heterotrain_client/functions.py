"""A function of a notebook as a script that workers can run.

A worker is another process, perhaps on another machine: of the notebook it has the function's source alone. So what the
source needs from outside is refused by name, before anything is started. Kubeflow's SDK sends functions the same way.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, NoReturn

from heterotrain_client.errors import InvalidJobError
from heterotrain_operator.api import Problem

OPTION = "run"


def script_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """The text of a script that calls a function with these keyword arguments, which must be literals.

    Raises InvalidJobError for what has no source of its own (lambdas, methods, closures, other callables), uses names
    of its module, is decorated, or cannot be called so.
    """
    if not isinstance(function, FunctionType):
        kind = "a method" if inspect.ismethod(function) else f"a {type(function).__name__}"
        _refuse(f"is {kind}; give a script's path, or a function that is defined by def")
    if function.__name__ == "<lambda>":
        _refuse("is a lambda; give a function that is defined by def")
    name = function.__name__
    try:
        source = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        _refuse(f"{name} has no source that can be read, as in a plain interactive session; put it into a script")
    if source[:1].isspace():
        source = f"if True:\n{source}"  # to remove the indentation would change texts of several lines, too
    (definition,) = ast.parse(source).body
    if isinstance(definition, ast.If):
        (definition,) = definition.body
    if not isinstance(definition, ast.FunctionDef):
        _refuse(f"{name} is no plain function that is defined by def")
    if definition.decorator_list:
        _refuse(f"{name} is decorated, which a worker cannot repeat; give the plain function")
    if "self" in function.__code__.co_varnames[:1] or "cls" in function.__code__.co_varnames[:1]:
        _refuse(f"{name} is a method; give a function that is defined by def")
    _check_names(function, definition)
    _check_arguments(function, arguments)
    called = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    # Annotations are not evaluated: those of a notebook may name what a worker does not have.
    return f"from __future__ import annotations\n\n\n{source.rstrip()}\n\n\n{name}({called})\n"


def _check_names(function: FunctionType, definition: ast.FunctionDef) -> None:
    closed = function.__code__.co_freevars
    if closed:
        _refuse(f"{function.__name__} is a closure over {', '.join(closed)}; pass them by func_args")
    own = {function.__name__, *vars(builtins)}
    defaults = [*definition.args.defaults, *filter(None, definition.args.kw_defaults)]
    named = {node.id for each in defaults for node in ast.walk(each) if isinstance(node, ast.Name)}
    outside = sorted((named | set(_globals_of(function.__code__))) - own)
    if outside:
        words = ", ".join(outside)
        _refuse(f"{function.__name__} uses {words} from outside of it; import or define that within the function")


def _globals_of(code: CodeType) -> Iterator[str]:
    """Names that a function, and what is within it, look up in their module; the body of a class has its own."""
    instructions = [*dis.get_instructions(code)]
    own = {each.argval for each in instructions if each.opname == "STORE_NAME"}
    for each in instructions:
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME") and each.argval not in own:
            yield str(each.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _check_arguments(function: FunctionType, arguments: Mapping[str, Any]) -> None:
    for key, value in arguments.items():
        try:
            same = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            same = False
        if not same:
            kinds = "numbers, text, booleans, None, and lists, tuples, sets and dicts of these"
            raise InvalidJobError([Problem(f"func_args.{key}", f"must be a literal ({kinds}), found {value!r:.60}")])
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise InvalidJobError([Problem("func_args", f"{function.__name__}(): {error}")]) from None


def _refuse(reason: str) -> NoReturn:
    raise InvalidJobError([Problem(OPTION, reason)])
