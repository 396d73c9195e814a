"""The mock server in a process of its own, and the batch: see batch.py."""

import asyncio
import os
import subprocess
import sys

from examples.llm_batch import batch

SERVER = [sys.executable, "-m", "examples.llm_batch.server", "--until-eof", "--books", str(batch.FOLDER / "paid.jsonl")]

if __name__ == "__main__":
    with subprocess.Popen(SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.environ["LLM_URL"] = server.stdout.readline().strip()
        asyncio.run(batch.main())
