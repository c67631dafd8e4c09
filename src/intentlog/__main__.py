"""`intentlog`, and `python -m intentlog`: the command line."""

import signal
import sys
from collections.abc import Callable


def main() -> int:
    """Load the command line and run it. A Ctrl-C while it loads ends the process as it ends others: with no words."""
    asked = signal.getsignal(signal.SIGINT)
    if asked is not signal.default_int_handler:  # ignored, as of a job in the background
        return _loaded()()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _loaded()(lambda: signal.signal(signal.SIGINT, asked))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _loaded() -> Callable[..., int]:
    try:
        from intentlog.cli import main as command
    except (ImportError, OSError) as error:  # no descriptor left to read a module with, say
        sys.stderr.write(f"error: the command line cannot be loaded: {error}\n")
        sys.exit(1)

    return command


if __name__ == "__main__":
    sys.exit(main())
