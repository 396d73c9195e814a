"""The mock server in a process of its own, and the batch (see batch.py).

    python -m examples.llm_batch [--fresh]

With --fresh all is asked anew. Without it a second run goes on where the first one ended.
"""

import asyncio
import os
import shutil
import subprocess
import sys

from examples.llm_batch import batch

BOOKS = batch.FOLDER / "paid.jsonl"
SERVER = [sys.executable, "-m", "examples.llm_batch.server", "--until-eof", "--books", str(BOOKS)]


def main() -> int:
    """Run both; the server ends with us, also when we are killed."""
    batch.FOLDER.mkdir(mode=0o700, exist_ok=True)
    with subprocess.Popen(
        SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        assert server.stdout is not None
        os.environ["LLM_URL"] = server.stdout.readline().strip()
        try:
            asyncio.run(batch.main())
        except KeyboardInterrupt:
            print("stopped; run it again to go on")
            return 130
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--fresh"]:
        shutil.rmtree(batch.FOLDER, ignore_errors=True)
    sys.exit(main())
