"""The dashboard: look at a queue in a browser, and operate it.

    from runcue.web import routes
    app = Starlette(routes=[Mount("/runcue", routes=routes(cue))])     # into an application (FastAPI as well)

    app = runcue.web.app("queue.db")                                   # alone, for any ASGI server
    runcue.web.serve("queue.db")                                       # alone, and served here

The token gives all rights on the queue. A server that other machines reach needs TLS in front of it.
"""

from __future__ import annotations

from importlib import import_module

for _name in ("starlette", "sse_starlette", "uvicorn"):
    try:
        import_module(_name)
    except ModuleNotFoundError as _error:
        _advice = f'The dashboard needs {_name}: pip install "runcue[web]"'
        raise ModuleNotFoundError(_advice, name=_name) from _error

from runcue.web.mount import app, routes  # noqa: E402 (after the check for missing packages)
from runcue.web.serving import serve  # noqa: E402

__all__ = ["app", "routes", "serve"]
