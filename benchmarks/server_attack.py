"""Attack a server for as long as is asked: good clients among slow, large, random and malicious ones.

    python benchmarks/server_attack.py --seconds 300             # a small model of its own
    python benchmarks/server_attack.py runs/flowers photo.jpg --good 64 --slow 200 --oversize 50 --garbage 50 --bombs 20

Prints what good clients saw, the slowest health check, how much the memory grew and how soon all was as before, and
writes benchmarks/results/server-attack.json. The same code as tests/end_to_end/test_attack.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from attacking import Crowd, attack  # noqa: E402 - the tests are no package that is installed
from corpus.writing import encoded, photo  # noqa: E402
from served import saved, serving  # noqa: E402


def main() -> None:
    """Serve, attack, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("picture", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=300)
    for name, default in vars(Crowd()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    crowd = Crowd(**{name: vars(options)[name] for name in vars(Crowd())})
    picture = encoded(photo(), "PNG") if options.picture is None else options.picture.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or saved(Path(folder) / "tiny")
        with serving(model) as server:
            found = attack(server.port, server.child.pid, picture, options.seconds, crowd)
            lines = server.ask("/metrics").body.decode().splitlines()
            found["server"] = [line for line in lines if line.startswith("vitrail_requests_total")]
    result = json.dumps({"crowd": vars(crowd), **found}, indent=2)
    (ROOT / "benchmarks" / "results" / "server-attack.json").write_text(result + "\n", encoding="utf-8")
    print(result)


if __name__ == "__main__":
    main()
