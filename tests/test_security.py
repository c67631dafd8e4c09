"""Whose a log is: permissions under any umask, other users' files, links and pipes that were planted, races at making.

What stands elsewhere: hard links, links to the log (`test_attacks`), a read-only file or folder (`test_sqlite_opening`,
`test_bad_input`). Secrets are in `test_security_secrets`, what a terminal would obey in `test_security_texts`.
"""

from __future__ import annotations

import codecs
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from bad_input import in_fork

from intentlog import BranchBusy, Log, LogDamaged, LogUnavailable, tool
from intentlog.cli import checkup
from intentlog.store import opening
from intentlog.store.findings import Verdict

NOBODY, SOMEBODY = 65534, 65533
VICTIM = b"what the victim had\n"
BESIDE = ("log.db-wal", "log.db-shm", "log.db-journal")
INSIDE = ("ballast", "making.lock", "keeper.lock", "owner-1-abc.lock", "draft-000000000000")
assert pwd  # loaded now, for the same reason as in `as_user`
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not root: no other user's files can be made")


@tool(name="security-effect")
def effect(number: int) -> int:
    return number


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="intentlog-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_user(uid: int, act: Callable[[], None]) -> None:
    """Do it in a child that is this user."""
    codecs.lookup("ascii")  # found now: the child may not be able to read the library's folder

    def dropped() -> None:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        act()

    assert in_fork(dropped) == 7


def use(path: Path) -> None:
    with Log.open(path) as log, log.attempt("order") as attempt:
        assert attempt.call(effect, 1) == 1


def refused(path: Path, match: str, *, kind: Any = LogUnavailable) -> None:
    with pytest.raises(kind, match=match) as caught:
        Log.open(path)
    assert caught.value.remedy


# --- permissions ------


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o277, 0o777])
def test_files_are_their_owners_alone_under_any_umask(open_folder: Path, umask: int) -> None:
    """DESIGN 9: 0600, the folder 0700, while it is open and after a death; and its owner can open it again."""
    folder = open_folder / "mine"
    folder.mkdir()
    uid = NOBODY if os.geteuid() == 0 else os.geteuid()
    if os.geteuid() == 0:
        os.chown(folder, uid, uid)

    def twice() -> None:
        os.umask(umask)
        for _ in range(2):
            use(folder / "log.db")
        log = Log.open(folder / "log.db")
        log.append("order", "noted", 1)
        (folder / "log.db.d" / "ballast").unlink()  # as where the disk was full
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*")}
        assert modes.pop("log.db.d") == 0o700
        assert {*BESIDE[:2], "keeper.lock", "making.lock"} <= set(modes)
        assert set(modes.values()) == {0o600}, modes
        log.close()
        use(folder / "log.db")
        assert (folder / "log.db.d" / "ballast").stat().st_mode & 0o777 == 0o600

    if os.geteuid() == 0:
        as_user(uid, twice)
    else:
        assert in_fork(twice) == 7


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
@pytest.mark.parametrize("what", ["log.db", "log.db-wal", "log.db-shm", "log.db.d", "log.db.d/keeper.lock"])
def test_what_others_may_write_is_refused(quick_folder: Path, what: str, mode: int) -> None:
    """A file of the log that a group or everybody may write, as PostgreSQL refuses its folder; readers may look."""
    path = quick_folder / "log.db"
    use(path)
    (quick_folder / what).chmod(mode | 0o100)
    before = {p: p.read_bytes() for p in quick_folder.rglob("*") if p.is_file()}
    refused(path, "can be written by others than its owner")
    assert {p: p.read_bytes() for p in quick_folder.rglob("*") if p.is_file()} == before
    with Log.open(path, read_only=True) as log:
        assert log.verify().ok
    (quick_folder / what).chmod(0o700)
    use(path)


@pytest.mark.parametrize(("mode", "is_refused"), [(0o777, True), (0o1777, False), (0o775, False), (0o700, False)])
def test_a_folder_that_everybody_may_write(quick_folder: Path, mode: int, is_refused: bool) -> None:
    """Whoever may write it may remove the log, and with it what is done; the sticky bit leaves that to owners."""
    path = quick_folder / "log.db"
    for there in (False, True):
        quick_folder.chmod(mode)
        if is_refused:
            refused(path, "everybody may write the folder")
            assert path.exists() is there
            quick_folder.chmod(0o700)
        use(path)
    quick_folder.chmod(mode)
    _, findings = checkup.examine(str(path))
    judged = {one.setting: one.verdict for one in findings}
    assert judged["its folder"] is (Verdict.WRONG if is_refused else Verdict.OK)


# --- other users ------


@needs_root
@pytest.mark.parametrize("opener", [0, NOBODY, SOMEBODY])
@pytest.mark.parametrize("owner", [0, NOBODY])
def test_a_log_of_another_user_is_refused(open_folder: Path, owner: int, opener: int) -> None:
    """Only its owner appends, root not excepted: what root made beside it, its owner could not open any more."""
    folder = open_folder / "theirs"
    folder.mkdir()
    os.chown(folder, owner, owner)
    as_user(owner, lambda: use(folder / "log.db"))
    folder.chmod(0o1777)
    for file in folder.glob("log.db*"):
        file.chmod(0o755 if file.is_dir() else 0o644)

    def opens() -> None:
        if owner == opener:
            use(folder / "log.db")
        else:
            refused(folder / "log.db", "belongs to|cannot be written")

    before = (folder / "log.db").read_bytes()
    as_user(opener, opens)
    made = {p.stat().st_uid for p in folder.rglob("*")}
    assert made == {owner}
    assert owner == opener or (folder / "log.db").read_bytes() == before


@needs_root
@pytest.mark.parametrize("planted", ["log.db", *BESIDE, "log.db.d", *(f"log.db.d/{name}" for name in INSIDE)])
@pytest.mark.parametrize("opener", [0, NOBODY])
def test_a_file_that_another_user_planted_is_refused(open_folder: Path, planted: str, opener: int) -> None:
    """In a folder like /tmp: an open one of the log's names was taken before it was made."""
    folder = open_folder / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    place = folder / planted
    if planted.startswith("log.db.d"):
        (folder / "log.db.d").mkdir()
        os.chown(folder / "log.db.d", opener, opener)
    if planted != "log.db.d":
        place.write_bytes(b"")
        place.chmod(0o666)
    os.chown(place, SOMEBODY, SOMEBODY)
    as_user(opener, lambda: refused(folder / "log.db", f"{place.name} belongs to"))
    assert place.stat().st_size == 0 or place.is_dir()


@needs_root
def test_a_link_that_another_user_made_is_not_followed(open_folder: Path) -> None:
    """In a folder like /tmp a name leads where another user wants it; the user's own link leads to the log, as ever."""
    use(open_folder / "log.db")
    mine, theirs = open_folder / "mine.db", open_folder / "theirs.db"
    for link in (mine, theirs):
        link.symlink_to("log.db")
    os.lchown(theirs, SOMEBODY, SOMEBODY)
    refused(theirs, "a link that another user has made")
    with Log.open(mine) as log:
        assert log.verify().ok


@needs_root
def test_doctor_says_whose_it_is(open_folder: Path) -> None:
    """WRONG, since every writer of another name is refused."""
    use(open_folder / "log.db")
    assert {one.setting: one.verdict for one in checkup.examine(str(open_folder / "log.db"))[1]}["owner"] is Verdict.OK
    os.chown(open_folder / "log.db", SOMEBODY, SOMEBODY)
    found = {one.setting: one for one in checkup.examine(str(open_folder / "log.db"))[1]}
    assert found["owner"].verdict is Verdict.WRONG
    assert found["owner"].remedy


# --- links, pipes, folders that were planted ------


def to_a_file(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def to_nothing(place: Path, victim: Path) -> None:
    place.symlink_to(victim.with_name("made-by-nobody"))


def a_pipe(place: Path, victim: Path) -> None:
    os.mkfifo(place)


def a_folder(place: Path, victim: Path) -> None:
    place.mkdir()


@pytest.mark.parametrize("there", [True, False], ids=["the log is there", "it is not"])
@pytest.mark.parametrize("plant", [to_a_file, to_nothing, a_pipe, a_folder])
@pytest.mark.parametrize("name", [*BESIDE, *(f"log.db.d/{name}" for name in INSIDE)])
def test_what_was_planted_is_not_followed(quick_folder: Path, name: str, plant: Any, there: bool) -> None:
    """A link at each name that the library opens: the victim keeps its bytes, nothing is made elsewhere, no hang."""
    folder = quick_folder / "log"
    folder.mkdir()
    path, victim = folder / "log.db", quick_folder / "victim"
    victim.write_bytes(VICTIM)
    if there:
        use(path)
    (folder / "log.db.d").mkdir(mode=0o700, exist_ok=True)
    place = folder / name
    place.unlink(missing_ok=True)
    plant(place, victim)

    def opens() -> None:
        refused(path, "link|not what belongs there|cannot be opened", kind=(LogUnavailable, LogDamaged))

    assert in_fork(opens) == 7, "refused, and at once"
    assert victim.read_bytes() == VICTIM
    assert sorted(p.name for p in quick_folder.iterdir()) == ["log", "victim"]
    assert path.exists() is there


@pytest.mark.parametrize("name", [*BESIDE[:2], "log.db.d/keeper.lock", "log.db.d/owner-1-abc.lock"])
@pytest.mark.parametrize("plant", [to_a_file, to_nothing, a_pipe])
def test_a_reader_does_not_hang_or_write(quick_folder: Path, name: str, plant: Any) -> None:
    """Whoever only looks at a log may be shown nothing, but is not led away and not held up."""
    path, victim = quick_folder / "log.db", quick_folder / "victim"
    victim.write_bytes(VICTIM)
    use(path)
    place = quick_folder / name
    place.unlink(missing_ok=True)
    plant(place, victim)

    def reads() -> None:
        try:
            with Log.open(path, read_only=True) as log:
                log.unfinished()
                log.verify()
        except (LogUnavailable, LogDamaged):
            pass

    assert in_fork(reads) == 7
    assert victim.read_bytes() == VICTIM
    assert not (quick_folder / "made-by-nobody").exists()


@pytest.mark.parametrize("with_a_ballast", [True, False])
def test_a_folder_of_locks_that_is_a_link(quick_folder: Path, monkeypatch: pytest.MonkeyPatch, with_a_ballast: bool):
    """To a folder of the victim's: nothing is made in it, and no `ballast` of his is removed where room is short."""
    (quick_folder / "victims").mkdir()
    if with_a_ballast:
        (quick_folder / "victims" / "ballast").write_bytes(VICTIM)
    (quick_folder / "log.db.d").symlink_to("victims")
    monkeypatch.setattr(opening, "FREE_BYTES_MIN", shutil.disk_usage(quick_folder).total * 2)
    refused(quick_folder / "log.db", "is a link")
    assert [p.read_bytes() for p in (quick_folder / "victims").iterdir()] == [VICTIM] * with_a_ballast


def test_a_link_at_the_logs_name_to_what_is_no_log(quick_folder: Path) -> None:
    """The user's own link to a file of another kind: refused as that file is, which keeps its bytes."""
    victim = quick_folder / "victim"
    victim.write_bytes(VICTIM * 1_000)
    (quick_folder / "log.db").symlink_to(victim)
    refused(quick_folder / "log.db", "not a log", kind=LogDamaged)
    assert victim.read_bytes() == VICTIM * 1_000
    connection = apsw.Connection(str(quick_folder / "other.db"))
    connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    content = (quick_folder / "other.db").read_bytes()
    (quick_folder / "log.db").unlink()
    (quick_folder / "log.db").symlink_to("other.db")
    refused(quick_folder / "log.db", "another program", kind=LogDamaged)
    assert (quick_folder / "other.db").read_bytes() == content


def test_two_make_a_log_and_a_third_plants_links(quick_folder: Path) -> None:
    """Twenty rounds: two processes make it while a third puts links under its names; the victim keeps its bytes."""
    victim = quick_folder / "victim"
    victim.write_bytes(VICTIM)
    names = ("log.db", *BESIDE, "log.db.d", "log.db.d/ballast", "log.db.d/keeper.lock", "log.db.d/making.lock")

    def plants(folder: Path) -> None:
        for _ in range(30):
            for name in names:
                try:
                    (folder / name).symlink_to(victim)
                except OSError:
                    continue

    def makes(folder: Path) -> None:
        with suppress(LogUnavailable, LogDamaged, BranchBusy):  # planted, or the other one's
            use(folder / "log.db")

    for number in range(20):
        folder = quick_folder / str(number)
        folder.mkdir()
        children = []
        for act in (plants, makes, makes):
            child = os.fork()
            if child == 0:
                try:
                    act(folder)
                except BaseException:
                    os._exit(1)
                os._exit(7)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [7, 7, 7]
        assert victim.read_bytes() == VICTIM
        shutil.rmtree(folder)


def test_who_wrote_the_file_runs_nothing_in_the_reader(quick_folder: Path) -> None:
    """A view in the place of a table calls no function that SQLite does not take for harmless."""
    path = quick_folder / "log.db"
    use(path)
    connection = apsw.Connection(str(path))
    connection.execute("ALTER TABLE meta RENAME TO kept")
    connection.execute("CREATE VIEW meta AS SELECT key, load_extension('/tmp/evil') AS value FROM kept")
    connection.close()
    for read_only in (True, False):
        with pytest.raises(LogDamaged):
            Log.open(path, read_only=read_only)
