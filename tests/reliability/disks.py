"""File systems of the lab's own: an image on a loop device, or a tmpfs. To be filled, cut off, broken, mounted anew.

They need root. Whatever a test does, the mount and the loop device are gone when its block is left.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

_FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2  # as if the power went: what is not on the disk now never comes there
_MIB = 1 << 20
_MAKE = {  # no blocks reserved for root: full is full
    "ext4": ["mkfs.ext4", "-q", "-F", "-m", "0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}
_OURS = re.compile(r"/lab-\w+-(\d+)-\w+/mounted$")
_SIZE_MIN = {"ext4": 4 * _MIB, "xfs": 320 * _MIB, "tmpfs": _MIB // 4}


def why_not(kind: str) -> str:
    """Why there can be no file system of this kind here; "" if there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return f"not root: {kind} cannot be mounted"
    if kind in _MAKE and shutil.which(_MAKE[kind][0]) is None:
        return f"{_MAKE[kind][0]} is not installed"
    if kind in _MAKE and not Path("/dev/loop-control").exists():
        return f"no loop devices: {kind} cannot be mounted"
    return ""


class Disk:
    """A file system, mounted while its block is entered; skips the test, with a reason, where there can be none.

    Args:
        kind: ext4, xfs or tmpfs.
        scratch: a folder for the image and the mount point.
        size_bytes: how large; xfs takes no less than 320 MiB.
        options: mount options.
        block_bytes: of ext4. Of such as are smaller than a page a mapped file can have a part, and no room for more.

    Attributes:
        folder: where it is mounted.
    """

    def __init__(
        self, kind: str, scratch: Path, size_bytes: int = 16 * _MIB, options: str = "", *, block_bytes: int = 1024
    ) -> None:
        reason = why_not(kind)
        if reason:
            pytest.skip(reason)
        self.kind = kind
        _sweep()
        self._scratch = Path(tempfile.mkdtemp(prefix=f"lab-{kind}-{os.getpid()}-", dir=scratch))
        self.folder = self._scratch / "mounted"
        self.folder.mkdir()
        self._image = self._scratch / "image"
        self._size = max(size_bytes, _SIZE_MIN[kind])
        self._options = options
        self._make = [*_MAKE[kind], *(["-b", str(block_bytes)] if kind == "ext4" else [])] if kind in _MAKE else []

    def __enter__(self) -> Self:
        try:
            if self._make:
                with self._image.open("wb") as image:
                    image.truncate(self._size)
                _run(*self._make, str(self._image))
            failure = self._mount(self._options)
        except BaseException:
            shutil.rmtree(self._scratch)
            raise
        if failure:
            shutil.rmtree(self._scratch)
            pytest.skip(f"{self.kind} cannot be mounted here: {failure}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmount()
        shutil.rmtree(self._scratch)

    def _mount(self, options: str) -> str:
        if self.kind == "tmpfs":
            words = ["-t", "tmpfs", "-o", ",".join([f"size={self._size}", *filter(None, [options])]), "tmpfs"]
        else:
            words = ["-t", self.kind, "-o", ",".join(["loop", *filter(None, [options])]), str(self._image)]
        done = subprocess.run(["mount", *words, str(self.folder)], capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr.strip() or f"mount: {done.returncode}"

    def _unmount(self) -> None:
        for _ in range(50):  # a child that was killed may still be leaving
            done = subprocess.run(["umount", str(self.folder)], capture_output=True, text=True, check=False)
            if done.returncode == 0 or not self.folder.is_mount():
                return
            time.sleep(0.1)
        subprocess.run(["umount", "-l", str(self.folder)], check=True)  # gone when the last user of it is
        msg = f"{self.folder} was still in use: {done.stderr.strip()}"
        raise AssertionError(msg)

    def mount_anew(self, options: str = "") -> None:
        """Unmount and mount again: what is on the disk now is all that there is."""
        self._unmount()
        failure = self._mount(options or self._options)
        assert not failure, failure

    def remount(self, options: str) -> str:
        """Change how it is mounted; why that was refused, or ""."""
        done = subprocess.run(
            ["mount", "-o", f"remount,{options}", str(self.folder)], capture_output=True, text=True, check=False
        )
        return "" if done.returncode == 0 else done.stderr.strip() or f"mount: {done.returncode}"

    def cut_power(self) -> None:
        """From now on nothing reaches the disk. To be followed by `mount_anew`."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def break_down(self) -> None:
        """Let ext4 meet an error of its own, after which it (errors=remount-ro) goes read-only under its users."""
        device = _run("findmnt", "-n", "-o", "SOURCE", str(self.folder)).strip()
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("lab", encoding="ascii")


def _sweep() -> None:
    """Unmount what a run left that was killed itself."""
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        folder = Path(line.split()[1])
        left = _OURS.search(str(folder))
        if left and not Path(f"/proc/{left[1]}").exists():
            subprocess.run(["umount", "-l", str(folder)], check=False)
            shutil.rmtree(folder.parent, ignore_errors=True)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout
