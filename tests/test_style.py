"""The style of this project, held by tests: what a linter cannot know, because the rule is ours."""

import ast
import functools
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "intentlog"
SOURCES = sorted(PACKAGE.rglob("*.py"))
CORE = [path for path in SOURCES if PACKAGE / "core" in path.parents]

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
BANNED_MODULE_WORDS = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}

# Decorators after which nobody needs to name the function: it was handed to a registry.
REGISTERING = {"callback", "command", "probe", "register"}
# What a pure core does not call, beyond the modules that import-linter keeps out of it.
IMPURE_CALLS = {"breakpoint", "input", "now", "open", "print", "today", "utcnow", "uuid1", "uuid4"}

MARKER = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
SUPPRESSION = re.compile(r"#\s*(?:type:\s*ignore|pyright:|noqa|ruff:\s*noqa|mypy:)", re.IGNORECASE)
# A code in full, then, after white space or a hyphen or a hash, words.
REASONED = re.compile(
    r"""\#\s*(?:
        noqa:\s*[A-Z]+[0-9]+(?:\s*,\s*[A-Z]+[0-9]+)*
      | (?:type|pyright):\s*ignore\[[\w,\s-]+\]
    )[\s#-]+\w+""",
    re.VERBOSE,
)

# "Once" can be promised only together with the receiver. The package of that name, in backticks, may be mentioned.
# Between the two words: white space, a hyphen, a line's end with the next line's comment sign.
OVERPROMISE = re.compile(r"exactly[\s#*>-]+once", re.IGNORECASE)
PACKAGE_OF_THAT_NAME = "`exactly-once`"
# What belongs to somebody's machine or desk, and not to the project.
FOREIGN = re.compile(
    r"(?<![\w/.:*-])/(?:work|farm)\b|\bsub-?agents?\b|\blanguage[ -]model[ -](?:wrote|written)\b", re.IGNORECASE
)


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), filename=str(path))


def at(path: Path, line: int = 0) -> str:
    where = path.relative_to(ROOT).as_posix()
    return f"{where}:{line}" if line else where


def expect_none(found: Iterable[str], rule: str) -> None:
    """Fail with every place that was found, each on its line: an assert would cut the list short."""
    listing = "\n  ".join(found)
    if listing:
        pytest.fail(f"{rule}:\n  {listing}", pytrace=False)


def lines_matching(pattern: re.Pattern[str], path: Path) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(text_of(path).splitlines(), 1) if pattern.search(line))


@functools.cache
def text_files() -> tuple[Path, ...]:
    """Every text file that git tracks or would track; without git (a source archive), those of the usual places."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        paths = {ROOT / name.decode() for name in listing.stdout.split(b"\0") if name}
    except (OSError, subprocess.CalledProcessError):
        inside = ("src", "tests", "examples", "docs", "requirements")
        paths = {*ROOT.glob("*"), *(path for folder in inside for path in (ROOT / folder).rglob("*"))}
    return tuple(sorted(path for path in paths if path.is_file() and b"\0" not in path.read_bytes()))


def docstring_lines(node: ast.AST) -> int:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or ast.get_docstring(node) is None:
        return 0
    docstring = node.body[0]
    return docstring.end_lineno - docstring.lineno + 1


def without_docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, documented) and ast.get_docstring(n)}
    return (node for node in ast.walk(tree) if id(node) not in docstrings)


def mentions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Each word that code can refer to something by, and its line: names, attributes, imports, strings in use."""
    for node in without_docstrings(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.alias(name=word):
                yield from ((part, node.lineno) for part in word.split("."))
            case ast.Constant(value=str() as value):
                yield from ((word, node.lineno) for word in re.findall(r"\w+", value))


def is_registered(node: ast.stmt) -> bool:
    calls = (d.func if isinstance(d, ast.Call) else d for d in getattr(node, "decorator_list", []))
    return any(isinstance(call, ast.Attribute) and call.attr in REGISTERING for call in calls)


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Each function, class and constant of a module's top level, `if` and `try` included."""
    pending = list(tree.body)
    while pending:
        node = pending.pop(0)
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if not is_registered(node):
                    yield name, node
            case ast.Assign(targets=targets):
                names = (leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name))
                yield from ((name, node) for name in names)
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node
            case ast.If(body=body, orelse=orelse):
                pending += [*body, *orelse]
            case ast.Try(body=body, handlers=handlers, orelse=orelse):
                pending += [*body, *orelse, *(inner for handler in handlers for inner in handler.body)]


def test_there_is_something_to_check() -> None:
    """The rules below would all hold of nothing."""
    assert CORE


def test_files_are_short() -> None:
    """A file has at most FILE_LINES_MAX lines."""
    lengths = {path: len(text_of(path).splitlines()) for path in SOURCES}
    long = (f"{at(path)}: {lines} lines" for path, lines in lengths.items() if lines > FILE_LINES_MAX)
    expect_none(long, f"files over {FILE_LINES_MAX} lines")


def test_functions_are_short() -> None:
    """A function has at most FUNCTION_LINES_MAX lines, its docstring not counted."""
    long = []
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1 - docstring_lines(node)
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{at(path, node.lineno)} {node.name}: {lines} lines")
    expect_none(long, f"functions over {FUNCTION_LINES_MAX} lines")


def test_modules_are_named_for_what_they_hold() -> None:
    """No module or package is called utils, helper, manager, common or misc, nor has such a word in its name."""
    found = []
    for path in SOURCES:
        words = {word for part in path.relative_to(PACKAGE).with_suffix("").parts for word in part.split("_")}
        found += [at(path)] if words & BANNED_MODULE_WORDS else []
    expect_none(found, "modules whose name says nothing")


def test_nothing_is_left_for_later() -> None:
    """No marker of unfinished work in the package: finish it, or file it."""
    found = (at(path, number) for path in SOURCES for number, _ in lines_matching(MARKER, path))
    expect_none(found, "unfinished work")


def test_no_error_is_swallowed() -> None:
    """No bare `except:`, and no `except Exception: pass` or `except BaseException: pass`."""
    found = []
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else set()
            idle = all(
                isinstance(n, ast.Pass) or (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
                for n in node.body
            )
            if node.type is None or (idle and caught & {"Exception", "BaseException"}):
                found.append(at(path, node.lineno))
    expect_none(found, "errors swallowed")


def test_no_checker_is_silenced_in_the_core() -> None:
    """The core has no `type: ignore`, no `pyright:` comment and no noqa."""
    found = (at(path, number) for path in CORE for number, _ in lines_matching(SUPPRESSION, path))
    expect_none(found, "checkers silenced in the core")


def test_a_silenced_checker_is_given_a_reason() -> None:
    """Elsewhere a noqa or ignore names its code and says why: `# noqa: S603 - the arguments are our own`."""
    silenced = ((path, number, line) for path in SOURCES for number, line in lines_matching(SUPPRESSION, path))
    found = (at(path, number) for path, number, line in silenced if not REASONED.search(line))
    expect_none(found, "checkers silenced without a code or a reason")


def test_the_core_calls_nothing_impure() -> None:
    """The core opens no file, reads no clock and draws no chance, by a built-in or a method, either."""
    found = []
    for path in CORE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                found += [f"{at(path, node.lineno)} {called}"] if called in IMPURE_CALLS else []
    expect_none(found, "impure calls in the core")


@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        pytest.param(OVERPROMISE, "promised, though no library can without the receiver", id="promise"),
        pytest.param(FOREIGN, "what belongs to somebody's desk, not to the project", id="foreign"),
    ],
)
def test_no_text_says(pattern: re.Pattern[str], rule: str) -> None:
    """Two kinds of words stand in no text file, this one excepted: the false promise, and what is foreign here."""
    found = []
    for path in text_files():
        if path == Path(__file__).resolve():
            continue
        text = path.read_bytes().decode("utf-8", errors="replace").replace(PACKAGE_OF_THAT_NAME, "")
        found += [at(path, text.count("\n", 0, match.start()) + 1) for match in pattern.finditer(text)]
    expect_none(found, rule)


def test_nothing_is_dead() -> None:
    """Every function, class and constant at a module's top level is referred to outside its own definition."""
    files = (path for folder in ("src", "tests", "examples") for path in sorted((ROOT / folder).rglob("*.py")))
    readers = [path for path in files if path != Path(__file__).resolve()]  # this file uses nothing of the package
    words = {path: list(mentions(tree_of(path))) for path in readers}
    everywhere = Counter(word for found in words.values() for word, _ in found)
    everywhere.update(re.findall(r"\w+", text_of(ROOT / "pyproject.toml")))  # the command's entry point
    dead = []
    for path in SOURCES:
        for name, node in definitions(tree_of(path)):
            own = sum(word == name and node.lineno <= line <= node.end_lineno for word, line in words[path])
            if not name.startswith("__") and everywhere[name] <= own:
                dead.append(f"{at(path, node.lineno)} {name}")
    expect_none(dead, "defined and never used")
